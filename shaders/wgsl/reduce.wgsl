// y[o] = OP over r < LEN of x[BASE(o) + STEP(r)]. A maximum or minimum is NaN where any of its elements is.
//
// Bindings: x → y, x through shared/prologue. FORM tree: one workgroup computes a result, OUTS workgroups. FORM serial: one invocation computes a result,
// which pays where LEN is short; ⌈OUTS/WG⌉ workgroups.
//
// Defines: WG   a power of two in FORM tree
//          FORM tree or serial
//          OP   sum, max or min
//          OUTS number of results
//          LEN  number of elements in each, at least one
//          BASE where the elements of result o begin, an expression of `o: u32`
//          STEP how far from there element r is, an expression of `r: u32`

#include "shared/epilogue"
#include "shared/float"
#include "shared/grid"
#include "shared/prologue"
#if FORM == tree
#include "shared/reduce"
#endif

const WG: u32 = ${WG};
const OUTS: u32 = ${OUTS};
const LEN: u32 = ${LEN};

fn element(o: u32, r: u32) -> f32 {
    let base: u32 = ${BASE};
    let step: u32 = ${STEP};
    return load(base + step);
}

/// Folds `element(o, r)` over r = first, first + stride, …; there may be none.
fn fold(o: u32, first: u32, stride: u32) -> f32 {
#if OP == sum
    var result = 0.0;
#else
    // No number is neutral for the extremum of infinities, but it may count an element twice.
    var result = element(o, 0u);
#endif
    for (var r = first; r < LEN; r += stride) {
#if OP == sum
        result += element(o, r);
#else
        result = m_${OP}(result, element(o, r));
#endif
    }
    return result;
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
#if FORM == tree
    let o = workgroup_index(workgroup, workgroups);
    if o >= OUTS {
        return;
    }
    let result = workgroup_${OP}(lane, fold(o, lane, WG));
    if lane == 0u {
        store(o, result);
    }
#else
    let o = workgroup_index(workgroup, workgroups) * WG + lane;
    if o >= OUTS {
        return;
    }
    store(o, fold(o, 0u, 1u));
#endif
}
