// `main` of kernels whose results are sums of terms. BY invocation: each invocation computes a result; ⌈RESULTS/WG⌉
// workgroups. BY slices: SLICES invocations share a result, each of which adds up a slice of its terms;
// ⌈RESULTS·SLICES/WG⌉ workgroups. BY workgroup: each workgroup computes one, in a tree of fixed order; RESULTS
// workgroups.
//
// The kernel declares
//     const RESULTS: u32                             the number of results
//     struct Terms                                   what the terms of a result have in common, with
//                                                    `extent: vec2<u32>`, how many there are down and across
//     fn terms_of(at: u32) -> Terms                  those of result `at`
//     fn term(terms: Terms, t: vec2<u32>) -> Value   the term in row t.x and column t.y of the extent
//     fn result(terms: Terms, sum: Value) -> Value   the result, from the sum of all terms
//
// Defines: that of shared/values; unless BY is invocation, FORMAT is full
//          BY      invocation, slices or workgroup
//          WG      BY slices: a multiple of SLICES. BY workgroup: a power of two
//          SLICES  BY slices: at least 2
//          EACH    BY workgroup: terms that an invocation loads at once, so that loads need not wait for one another

#include "shared/grid"
#include "shared/values"

const WG: u32 = ${WG};

#if BY == invocation
@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = workgroup_index(workgroup, workgroups) * WG + lane;
    if at >= RESULTS {
        return;
    }
    let terms = terms_of(at);
    var sum = Value();
    for (var row = 0u; row < terms.extent.x; row++) {
        // Each row has a sum of its own: in one long chain, small terms would be rounded away.
        var of_row = Value();
        for (var column = 0u; column < terms.extent.y; column++) {
            of_row += term(terms, vec2(row, column));
        }
        sum += of_row;
    }
    store_value(at, result(terms, sum));
}
#else
fn numbered(terms: Terms, t: u32) -> Value {
    return term(terms, vec2(t / terms.extent.y, t % terms.extent.y));
}

#if BY == slices
const SLICES: u32 = ${SLICES};
/// Results of a workgroup. Invocations next to each other compute results next to each other.
const ACROSS: u32 = WG / SLICES;

var<workgroup> sums: array<Value, WG>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = workgroup_index(workgroup, workgroups) * ACROSS + lane % ACROSS;
    let slice = lane / ACROSS;
    let there = at < RESULTS;
    let terms = terms_of(select(0u, at, there));
    let count = terms.extent.x * terms.extent.y;
    let each = (count + SLICES - 1u) / SLICES;
    let end = select(0u, min(slice * each + each, count), there);
    var sum = 0.0;
    for (var t = slice * each; t < end; t++) {
        sum += numbered(terms, t);
    }
    sums[lane] = sum;
    workgroupBarrier();
    if slice == 0u && there {
        for (var other = 1u; other < SLICES; other++) {
            sum += sums[other * ACROSS + lane];
        }
        store_value(at, result(terms, sum));
    }
}
#else
#include "shared/reduce"

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
    let count = terms.extent.x * terms.extent.y;
    var sum = 0.0;
    var t = lane;
    for (; t + (EACH - 1u) * WG < count; t += EACH * WG) {
#for E in EACH
        let term_${E} = numbered(terms, t + ${E}u * WG);
#endfor
#for E in EACH
        sum += term_${E};
#endfor
    }
#if EACH != 1
    for (; t < count; t += WG) {
        sum += numbered(terms, t);
    }
#endif
    let total = workgroup_sum(lane, sum);
    if lane == 0u {
        store_value(at, result(terms, total));
    }
}
#endif
#endif
