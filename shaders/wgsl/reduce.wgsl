// y[o] = OP over r < LEN of x[BASE(o) + STEP(r)]. A maximum or minimum is NaN where any of its elements is; a sum of
// integers wraps around.
//
// Bindings: x → y. x comes through shared/prologue where FROM is operand, and y goes through shared/epilogue where TO
// is result. A segment of LANES invocations computes a result. With PARTS > 1 it computes a part of one, CHUNK elements
// long: the result of part p goes to y[p·OUTS + o], and a second launch reduces the parts. PARTS·⌈OUTS·LANES/WG⌉
// workgroups.
//
// Defines: WG, LANES powers of two; ACROSS 0 or 1, see shared/segments
//          FROM operand or scratch; TO result or scratch; not both scratch
//          OP    sum, max or min
//          ELEMENT see shared/element
//          FOLD  the most elements of a part for an invocation: few below 4, run up to 64, stretches above
//          OUTS  number of results; BLOCKS: ⌈OUTS/SEGMENTS⌉
//          LEN   number of elements in each, at least one
//          PARTS, CHUNK  every part has an element: (PARTS − 1)·CHUNK < LEN ≤ PARTS·CHUNK
//          BASE  the place of the first element of result o, an expression of `o: u32`
//          STEP  the distance from there of element r, an expression of `r: u32`

#include "shared/element"
#include "shared/grid"
#include "shared/segments"
#if FROM == operand
#include "shared/prologue"
#endif
#if TO == result
#include "shared/epilogue"
#endif

const WG: u32 = ${WG};
const OUTS: u32 = ${OUTS};
const LEN: u32 = ${LEN};
const PARTS: u32 = ${PARTS};
const CHUNK: u32 = ${CHUNK};

const BLOCKS: u32 = ${BLOCKS};

#if FROM == scratch
@group(0) @binding(0) var<storage, read> x: array<Element>;

fn load(i: u32) -> Element {
    return x[i];
}
#endif
#if TO == scratch
@group(0) @binding(0) var<storage, read_write> y: array<Element>;
#endif

fn element(o: u32, r: u32) -> Element {
    let base: u32 = ${BASE};
    let step: u32 = ${STEP};
    return load(base + step);
}

fn join(a: Element, b: Element) -> Element {
    return e_${OP}(a, b);
}

/// The initial value for a result that has element `first`.
fn neutral(o: u32, first: u32) -> Element {
#if OP == sum
    return Element();
#else
    // A maximum or minimum has no neutral number, because elements may be infinite. But an element may count twice.
    return element(o, first);
#endif
}

/// Folds `element(o, r)` over r = first + member, first + member + LANES, … below `end`; there may be none. Where there
/// are four or more, four at a time, so that loads need not wait for one another.
fn fold_run(o: u32, first: u32, end: u32, member: u32) -> Element {
    var a = neutral(o, first);
    var r = first + member;
#if FOLD != few
    var b = a;
    var c = a;
    var d = a;
    for (; r + 3u * LANES < end; r += 4u * LANES) {
        a = join(a, element(o, r));
        b = join(b, element(o, r + LANES));
        c = join(c, element(o, r + 2u * LANES));
        d = join(d, element(o, r + 3u * LANES));
    }
#endif
    for (; r < end; r += LANES) {
        a = join(a, element(o, r));
    }
#if FOLD == few
    return a;
#else
    return join(join(a, b), join(c, d));
#endif
}

#if FOLD != stretches
/// Folds as `fold_run` does, for any length.
fn fold(o: u32, first: u32, end: u32, member: u32) -> Element {
    return fold_run(o, first, end, member);
}
#else
/// Elements of a stretch. Sums have three levels (run, stretch, total), so every chain of additions is short.
const STRETCH: u32 = 16u * RUN;

/// Folds as `fold_run` does, for any length.
fn fold(o: u32, first: u32, end: u32, member: u32) -> Element {
    var result = neutral(o, first);
    for (var begin = first; begin < end;) {
        let stretch_end = begin + min(STRETCH, end - begin);
        var stretch = neutral(o, first);
        while begin < stretch_end {
            let run_end = begin + min(RUN, stretch_end - begin);
            stretch = join(stretch, fold_run(o, begin, run_end, member));
            begin = run_end;
        }
        result = join(result, stretch);
    }
    return result;
}
#endif

var<workgroup> partials: array<Element, WG>;

/// Joins the values of a segment, for its first member, in a tree of fixed order.
fn segment_fold(lane: u32, value: Element) -> Element {
    if LANES == 1u {
        return value;
    }
    partials[lane] = value;
    for (var stride = LANES / 2u; stride > 0u; stride /= 2u) {
        workgroupBarrier();
        if member_of(lane) < stride {
            partials[lane] = join(partials[lane], partials[lane + stride * NEXT_MEMBER]);
        }
    }
    return partials[lane];
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
    let result = segment_fold(lane, value);
    if o < OUTS && member_of(lane) == 0u {
#if TO == result
        store(o, result);
#else
        y[part * OUTS + o] = result;
#endif
    }
}
