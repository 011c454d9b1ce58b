// The channels of x[N,C,S], a part at a time: what an invocation reads, and totals of what several have added up.
//
// A unit of work is a part of a channel, CHUNK of its LEN = N·S elements, or with lines of eight neighbouring channels.
// APART invocations share it: each takes every APART-th element. A cell is what one of them reads at once: an element,
// or a line of bf16. It is HALVES values of type V, which are computed alike.
//
// Four cells are read at a time, so that loads need not wait for one another. Sums have three levels (STRETCH cells of
// an invocation, its stretches, all invocations), so every chain of additions is short: all additions to a sum after an
// outlier may round in the same direction.
//
// Defines: FORMAT  full or lines
//          WG      a multiple of APART
//          LEN, C, S   with lines, memory is [LEN, C], padded to whole lines, and S is not used
//          UNITS   of work, PARTS·C, or with lines PARTS·⌈C/8/EIGHTS⌉ groups of EIGHTS
//          PARTS, CHUNK   every part has an element: (PARTS − 1)·CHUNK < LEN ≤ PARTS·CHUNK
//          LANES; see shared/totals (full): APART is LANES
//          EIGHTS  neighbouring lines of a workgroup, a power of two (lines): APART is WG/EIGHTS

#include "shared/grid"

const WG: u32 = ${WG};
const LEN: u32 = ${LEN};
const C: u32 = ${C};
const UNITS: u32 = ${UNITS};
const PARTS: u32 = ${PARTS};
const CHUNK: u32 = ${CHUNK};

/// Cells of a stretch.
const STRETCH: u32 = 32u;

#if FORMAT == lines
#include "shared/bf16"

const EIGHTS: u32 = ${EIGHTS};
const LINES: u32 = (C + 7u) / 8u;
const BLOCKS: u32 = (LINES + EIGHTS - 1u) / EIGHTS;
const APART: u32 = WG / EIGHTS;

alias Held = vec4<u32>;
alias V = vec4<f32>;
alias Cell = array<vec4<f32>, 2>;

fn cell(held: Held) -> Cell {
    let line = eight_of(held);
    return Cell(line.first, line.second);
}

fn kept(x: V, there: bool) -> V {
    return select(V(), x, there);
}

var<workgroup> totals: array<Cell, WG>;

/// The total of a cell over the invocations of a line. All invocations of a workgroup call it together.
fn total_of(lane: u32, x: Cell) -> Cell {
    // The previous total has been read after this barrier.
    workgroupBarrier();
    totals[lane] = x;
    for (var stride = WG / 2u; stride >= EIGHTS; stride /= 2u) {
        workgroupBarrier();
        if lane < stride {
            totals[lane] = Cell(totals[lane][0] + totals[lane + stride][0], totals[lane][1] + totals[lane + stride][1]);
        }
    }
    workgroupBarrier();
    return totals[lane % EIGHTS];
}
#else
#include "shared/totals"

const S: u32 = ${S};
const APART: u32 = LANES;

alias Held = f32;
alias V = f32;
alias Cell = array<f32, 1>;

fn cell(held: Held) -> Cell {
    return Cell(held);
}

fn kept(x: V, there: bool) -> V {
    return select(0.0, x, there);
}
#endif

/// The work of an invocation.
struct Work {
    /// A channel, or a line of channels; the last one where there is none.
    own: u32,
    part: u32,
    /// The number of this invocation among those of the unit.
    member: u32,
    /// The first cell of the part, and the one after the last for this invocation; none where it has no unit.
    begin: u32,
    end: u32,
    is_unit: bool,
}

/// Neighbouring units are neighbouring channels.
fn work_of(index: u32, lane: u32) -> Work {
#if FORMAT == lines
    let line = index % BLOCKS * EIGHTS + lane % EIGHTS;
    let part = index / BLOCKS;
    let is_unit = line < LINES;
    let own = min(line, LINES - 1u);
    let member = lane / EIGHTS;
#else
    // Invocations without a unit must still reach the barriers: they repeat the last one.
    let wanted = index * (WG / LANES) + lane / LANES;
    let unit = min(wanted, UNITS - 1u);
    let part = unit / C;
    let is_unit = wanted < UNITS;
    let own = unit % C;
    let member = lane % LANES;
#endif
    let begin = part * CHUNK;
    return Work(own, part, member, begin, min(begin + CHUNK, LEN), is_unit);
}

/// The place of a cell of a channel, or of a line of channels.
fn place(own: u32, r: u32) -> u32 {
#if FORMAT == lines
    return r * LINES + own;
#else
    return (r / S * C + own) * S + r % S;
#endif
}

/// Work of workgroups after the last.
fn is_beyond(index: u32) -> bool {
#if FORMAT == lines
    return index >= UNITS;
#else
    return index * (WG / LANES) >= UNITS;
#endif
}

/// The number of cells r, r + APART, … below `end`.
fn count_of(r: u32, end: u32) -> u32 {
    return (end - r + APART - 1u) / APART;
}
