// The main of kernels whose results are sums of many terms: a workgroup computes a result, in a tree whose order is fixed.
//
// The kernel that includes this says what a result is:
//   const RESULTS: u32                         the number of results
//   struct Terms                               what the terms of a result have in common; `count: u32` is their number
//   fn terms_of(at: u32) -> Terms              those of result `at`
//   fn term(terms: Terms, t: u32) -> f32       term t, below the count
//   fn result(terms: Terms, sum: f32) -> f32   the result, from the sum of all terms
//
// RESULTS workgroups.
//
// Defines: WG    a power of two
//          EACH  terms that an invocation adds in a row, so that loads need not wait for one another

#include "shared/epilogue"
#include "shared/grid"
#include "shared/reduce"

const WG: u32 = ${WG};
const EACH: u32 = ${EACH};

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = workgroup_index(workgroup, workgroups);
    if at >= RESULTS {
        return;
    }
    let terms = terms_of(at);
    var sum = 0.0;
    var t = lane;
    for (; t + (EACH - 1u) * WG < terms.count; t += EACH * WG) {
#for E in EACH
        let term_${E} = term(terms, t + ${E}u * WG);
#endfor
#for E in EACH
        sum += term_${E};
#endfor
    }
#if EACH != 1
    for (; t < terms.count; t += WG) {
        sum += term(terms, t);
    }
#endif
    let total = workgroup_sum(lane, sum);
    if lane == 0u {
        store(at, result(terms, total));
    }
}
