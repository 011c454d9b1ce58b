// y[o,l,i] = exp(x[o,l,i] − m) / Σ_l exp(x[o,l,i] − m) with m = max over l of x[o,l,i]; LOG 1: its logarithm.
//
// Bindings: x[OUTER,LEN,INNER] → y[OUTER,LEN,INNER]. One workgroup computes the row of one o and i; OUTER·INNER workgroups.
//
// Defines: WG a power of two; OUTER, LEN, INNER; LOG 0 or 1

#include "shared/epilogue"
#include "shared/grid"
#include "shared/reduce"

const WG: u32 = ${WG};
const OUTER: u32 = ${OUTER};
const LEN: u32 = ${LEN};
const INNER: u32 = ${INNER};

@group(0) @binding(0) var<storage, read> x: array<f32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = workgroup_index(workgroup, workgroups);
    if row >= OUTER * INNER {
        return;
    }
    let base = row / INNER * LEN * INNER + row % INNER;

    var largest = x[base];
    for (var l = lane; l < LEN; l += WG) {
        largest = m_max(largest, x[base + l * INNER]);
    }
    let shift = workgroup_max(lane, largest);

    var sum = 0.0;
    for (var l = lane; l < LEN; l += WG) {
        sum += exp(x[base + l * INNER] - shift);
    }
    let total = workgroup_sum(lane, sum);

    for (var l = lane; l < LEN; l += WG) {
        let at = base + l * INNER;
#if LOG == 1
        store(at, x[at] - shift - log(total));
#else
        store(at, exp(x[at] - shift) / total);
#endif
    }
}
