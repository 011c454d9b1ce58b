// Cumulative log-sum-exp: y[o,k,i] = ln Σ exp(x[o,l,i]) over l ≤ k. A sum of exponentials is kept as a peak and a mass,
// mass·exp(peak).
//
// Bindings: x[O,LEN,INNER] → y by its epilogue. BY invocation: each invocation scans a line; ⌈LINES/WG⌉ workgroups. BY
// workgroup: each workgroup scans a line, WG elements at a time, in log₂ WG steps; LINES workgroups.
//
// Defines: WG; BY invocation or workgroup
//          LINES, LEN, INNER

#include "shared/epilogue"
#include "shared/float"
#include "shared/grid"

const WG: u32 = ${WG};
const LINES: u32 = ${LINES};
const LEN: u32 = ${LEN};
const INNER: u32 = ${INNER};

@group(0) @binding(0) var<storage, read> x: array<f32>;

fn place(line: u32, k: u32) -> u32 {
    return (line / INNER * LEN + k) * INNER + line % INNER;
}

/// exp(x − peak): 1 at the peak, even an infinite one.
fn share(x: f32, peak: f32) -> f32 {
    return select(exp(x - peak), 1.0, bitcast<u32>(x) == bitcast<u32>(peak));
}

/// The sum of two sums, each as (peak, mass).
fn joined(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
    let peak = m_max(a.x, b.x);
    return vec2(peak, a.y * share(a.x, peak) + b.y * share(b.x, peak));
}

#if BY == invocation
@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let line = workgroup_index(workgroup, workgroups) * WG + lane;
    if line >= LINES {
        return;
    }
    var sum = vec2(negative_infinity(), 0.0);
    for (var k = 0u; k < LEN; k++) {
        sum = joined(sum, vec2(x[place(line, k)], 1.0));
        store(place(line, k), sum.x + log(sum.y));
    }
}
#else
var<workgroup> partials: array<vec2<f32>, WG>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let line = workgroup_index(workgroup, workgroups);
    var before = vec2(negative_infinity(), 0.0);
    for (var first = 0u; first < LEN; first += WG) {
        let k = first + lane;
        var sum = vec2(negative_infinity(), 0.0);
        if line < LINES && k < LEN {
            sum = vec2(x[place(line, k)], 1.0);
        }
        for (var step = 1u; step < WG; step *= 2u) {
            partials[lane] = sum;
            workgroupBarrier();
            if lane >= step {
                sum = joined(partials[lane - step], sum);
            }
            workgroupBarrier();
        }
        partials[lane] = sum;
        workgroupBarrier();
        if line < LINES && k < LEN {
            let whole = joined(before, sum);
            store(place(line, k), whole.x + log(whole.y));
        }
        before = joined(before, partials[WG - 1u]);
        workgroupBarrier();
    }
}
#endif
