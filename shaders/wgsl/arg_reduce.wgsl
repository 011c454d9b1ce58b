// y[o] = the index r < LEN of the OP of x[BASE(o) + STEP(r)]; the lowest one if several elements attain it. NaN counts
// as the extremum.
//
// Bindings: x → y. x comes through shared/prologue where FROM is operand. A segment of LANES invocations computes a
// result. With PARTS > 1 it computes a part of one, CHUNK elements long: that of part p goes to y[p·OUTS + o], with its
// key, and a second launch chooses among the parts. PARTS·⌈OUTS·LANES/WG⌉ workgroups.
//
// Defines: WG, LANES powers of two; ACROSS 0 or 1, see shared/segments
//          FROM operand or scratch; TO result or scratch; not both scratch
//          OP    max or min
//          ELEMENT see shared/element
//          FOLD  the most elements of a part for an invocation: few below 4, run up to 64, stretches above
//          OUTS  number of results; BLOCKS: ⌈OUTS/SEGMENTS⌉
//          LEN   number of elements of each, at least one
//          PARTS, CHUNK  every part has an element: (PARTS − 1)·CHUNK < LEN ≤ PARTS·CHUNK
//          BASE  the place of the first element of result o, an expression of `o: u32`
//          STEP  the distance from there of element r, an expression of `r: u32`

#include "shared/element"
#include "shared/grid"
#include "shared/segments"
#if FROM == operand
#include "shared/prologue"
#endif

const WG: u32 = ${WG};
const OUTS: u32 = ${OUTS};
const LEN: u32 = ${LEN};
const PARTS: u32 = ${PARTS};
const CHUNK: u32 = ${CHUNK};

const BLOCKS: u32 = ${BLOCKS};

/// An element: its index, and a key that is larger for an element to be preferred.
struct Candidate {
    key: Key,
    index: u32,
}

#if FROM == scratch
@group(0) @binding(0) var<storage, read> x: array<Candidate>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
#else
#if TO == scratch
@group(0) @binding(0) var<storage, read_write> y: array<Candidate>;
#else
@group(0) @binding(0) var<storage, read_write> y: array<u32>;
#endif
#endif

var<workgroup> candidates: array<Candidate, WG>;

fn candidate(o: u32, r: u32) -> Candidate {
    let base: u32 = ${BASE};
    let step: u32 = ${STEP};
#if FROM == scratch
    return x[base + step];
#else
    let value = load(base + step);
#if OP == max
    let order = key_of_element(value);
#else
    let order = ~key_of_element(value);
#endif
#if ELEMENT == f32
    return Candidate(select(order, 0xffffffffu, is_nan(value)), r);
#else
    return Candidate(order, r);
#endif
#endif
}

/// The preferred one of two elements.
fn preferred(a: Candidate, b: Candidate) -> Candidate {
    if is_key_below(a.key, b.key) || (is_same_key(a.key, b.key) && b.index < a.index) {
        return b;
    }
    return a;
}

/// The preferred one of elements r = first + member, first + member + LANES, … below `end`; that of `first` if there
/// are none. Where there are four or more, four at a time, so that loads need not wait for one another.
fn fold(o: u32, first: u32, end: u32, member: u32) -> Candidate {
    var best = candidate(o, first);
    var r = first + member;
#if FOLD != few
    for (; r + 3u * LANES < end; r += 4u * LANES) {
        let a = candidate(o, r);
        let b = candidate(o, r + LANES);
        let c = candidate(o, r + 2u * LANES);
        let d = candidate(o, r + 3u * LANES);
        best = preferred(best, preferred(preferred(a, b), preferred(c, d)));
    }
#endif
    for (; r < end; r += LANES) {
        best = preferred(best, candidate(o, r));
    }
    return best;
}

/// The preferred one of a segment, for its first member.
fn segment_preferred(lane: u32, value: Candidate) -> Candidate {
    if LANES == 1u {
        return value;
    }
    candidates[lane] = value;
    for (var stride = LANES / 2u; stride > 0u; stride /= 2u) {
        workgroupBarrier();
        if member_of(lane) < stride {
            candidates[lane] = preferred(candidates[lane], candidates[lane + stride * NEXT_MEMBER]);
        }
    }
    return candidates[lane];
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
    let o = index % BLOCKS * SEGMENTS + segment_of(lane);
    // Invocations without a result must still reach the barriers: they repeat the last result.
    let value = fold(min(o, OUTS - 1u), part * CHUNK, min(part * CHUNK + CHUNK, LEN), member_of(lane));
    let best = segment_preferred(lane, value);
    if o < OUTS && member_of(lane) == 0u {
#if TO == result
        y[o] = best.index;
#else
        y[part * OUTS + o] = best;
#endif
    }
}
