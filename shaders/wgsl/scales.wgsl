// Powers of two that bring operands into the range of f16, 6e-8 to 65,504: their largest elements to 2¹⁴ or above, below 2¹⁵; and
// the inverse of each.
//
// Bindings: peaks[2,GROUPS], from `peaks` → scales[4]: of both operands, then their inverses. One workgroup.
//
// Defines: WG a power of two; GROUPS

#include "shared/reduce"

const WG: u32 = ${WG};
const GROUPS: u32 = ${GROUPS};

@group(0) @binding(0) var<storage, read> peaks: array<f32>;
@group(0) @binding(1) var<storage, read_write> scales: array<f32>;

/// The exponent of the scale for a magnitude: between those of normal numbers whose inverses are normal.
fn exponent_for(peak: f32) -> i32 {
    return clamp(14 - (i32(bitcast<u32>(peak) >> 23u) - 127), -113, 113);
}

fn power(exponent: i32) -> f32 {
    return bitcast<f32>(u32(exponent + 127) << 23u);
}

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lane: u32) {
    var of_a = 0.0;
    var of_b = 0.0;
    for (var at = lane; at < GROUPS; at += WG) {
        of_a = max(of_a, peaks[at]);
        of_b = max(of_b, peaks[GROUPS + at]);
    }
    let a = exponent_for(workgroup_max(lane, of_a));
    let b = exponent_for(workgroup_max(lane, of_b));
    if lane == 0u {
        scales[0] = power(a);
        scales[1] = power(b);
        scales[2] = power(-a);
        scales[3] = power(-b);
    }
}
