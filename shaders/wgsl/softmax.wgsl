// y[o,l,i] = exp(x[o,l,i] − m) / Σ_l exp(x[o,l,i] − m) with m = max over l of x[o,l,i]; LOG 1: its logarithm.
//
// Bindings: x[OUTER,LEN,INNER] → y[OUTER,LEN,INNER]. A segment of LANES invocations computes the row of one o and i;
// ⌈OUTER·INNER·LANES/WG⌉ workgroups.
//
// Defines: WG, LANES powers of two; ACROSS 0 or 1, see shared/segments; OUTER, LEN, INNER; LOG 0 or 1

#include "shared/epilogue"
#include "shared/grid"
#include "shared/segments"

const WG: u32 = ${WG};
const OUTER: u32 = ${OUTER};
const LEN: u32 = ${LEN};
const INNER: u32 = ${INNER};

@group(0) @binding(0) var<storage, read> x: array<f32>;

fn place(row: u32, l: u32) -> u32 {
    return (row / INNER * LEN + l) * INNER + row % INNER;
}

fn element(row: u32, l: u32) -> f32 {
    return x[place(row, l)];
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let first = workgroup_index(workgroup, workgroups) * SEGMENTS;
    if first >= OUTER * INNER {
        return;
    }
    let wanted = first + segment_of(lane);
    // Those without a row of their own must still meet the others: they repeat the last, and write nothing.
    let row = min(wanted, OUTER * INNER - 1u);
    let member = member_of(lane);

    var largest = element(row, 0u);
    for (var l = member; l < LEN; l += LANES) {
        largest = m_max(largest, element(row, l));
    }
    let shift = segment_max(lane, largest);

    var sum = 0.0;
    for (var l = member; l < LEN; l += LANES) {
        sum += exp(element(row, l) - shift);
    }
    let total = segment_sum(lane, sum);

    if wanted != row {
        return;
    }
    // Said here, because a compiler may take x − x for 0 whatever x is.
    let none = !is_finite(shift);
    for (var l = member; l < LEN; l += LANES) {
#if LOG == 1
        store(place(row, l), select(element(row, l) - shift - log(total), quiet_nan(), none));
#else
        store(place(row, l), select(exp(element(row, l) - shift) / total, quiet_nan(), none));
#endif
    }
}
