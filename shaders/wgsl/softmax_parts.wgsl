// The parts of a softmax or a cross-entropy whose rows are split. For each part of CHUNK elements: peak = max x, mass =
// Σ exp(x − peak) and drift = Σ (x − peak). A part of −∞ alone has mass 0 and drift −∞.
//
// Bindings: x[OUTER,LEN,INNER] → peak[PARTS,OUTER,INNER], mass, and with DRIFT 1 drift, likewise. A segment of LANES
// invocations computes a part of a row; PARTS·⌈OUTER·INNER·LANES/WG⌉ workgroups.
//
// Defines: WG, LANES powers of two; ACROSS 0 or 1, see shared/segments; OUTER, LEN, INNER; DRIFT 0 or 1
//          BLOCKS        workgroups for a part of all rows, ⌈OUTER·INNER/SEGMENTS⌉
//          PARTS, CHUNK  every part has an element: (PARTS − 1)·CHUNK < LEN ≤ PARTS·CHUNK

#include "shared/grid"
#include "shared/row_statistics"

const WG: u32 = ${WG};
const LEN: u32 = ${LEN};
const INNER: u32 = ${INNER};
const ROWS: u32 = ${OUTER} * INNER;
const PARTS: u32 = ${PARTS};
const CHUNK: u32 = ${CHUNK};
const BLOCKS: u32 = ${BLOCKS};

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> peak: array<f32>;
@group(0) @binding(2) var<storage, read_write> mass: array<f32>;
#if DRIFT == 1
@group(0) @binding(3) var<storage, read_write> drift: array<f32>;
#endif

fn largest_at(row: u32, l: u32) -> f32 {
    return x[(row / INNER * LEN + l) * INNER + row % INNER];
}

fn sums_at(row: u32, l: u32, peak: f32) -> vec2<f32> {
    let below = largest_at(row, l) - peak;
    return vec2(exp(below), below);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups);
    if index >= PARTS * BLOCKS {
        return;
    }
    let part = index / BLOCKS;
    let wanted = index % BLOCKS * SEGMENTS + segment_of(lane);
    // Invocations without a row must still reach the barriers: they repeat the last row, and store nothing.
    let row = min(wanted, ROWS - 1u);
    let first = part * CHUNK;
    let end = min(first + CHUNK, LEN);

    let shift = row_peak(row, first, end, lane);
    let sums = row_sums(row, first, end, lane, shift);
    let total_exp = segment_sum(lane, sums.x);
#if DRIFT == 1
    let total = segment_sum(lane, sums.y);
#endif

    if wanted == row && member_of(lane) == 0u {
        let at = part * ROWS + row;
        let nothing = bitcast<u32>(shift) == bitcast<u32>(negative_infinity());
        peak[at] = shift;
        mass[at] = select(total_exp, 0.0, nothing);
#if DRIFT == 1
        drift[at] = select(total, shift, nothing);
#endif
    }
}
