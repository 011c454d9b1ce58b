// The powers of two by which a product's operands are scaled. Every workgroup finds them anew from what `peaks` has left, which takes
// less time than a launch of their own.

#include "shared/powers"

const PEAKS: u32 = ${PEAKS};

/// Of operand 0, and of operand 1.
@group(0) @binding(2) var<storage, read> peaks_0: array<f32>;
@group(0) @binding(3) var<storage, read> peaks_1: array<f32>;

var<workgroup> largest: array<vec2<f32>, WG>;

/// The exponents of the scales of operands 0 and 1. All invocations call this together.
fn scale_exponents(lane: u32) -> vec2<i32> {
    var peak = vec2<f32>();
    for (var at = lane; at < PEAKS; at += WG) {
        peak = max(peak, vec2(peaks_0[at], peaks_1[at]));
    }
    largest[lane] = peak;
    for (var stride = WG / 2u; stride > 0u; stride /= 2u) {
        workgroupBarrier();
        if lane < stride {
            largest[lane] = max(largest[lane], largest[lane + stride]);
        }
    }
    workgroupBarrier();
    return exponents_for(largest[0]);
}
