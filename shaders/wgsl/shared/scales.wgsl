// The powers of two by which a product's operands are scaled. Every workgroup finds them anew from what `peaks` has left, which takes
// less time than a launch of their own.

#include "shared/powers"

const PEAKS: u32 = ${PEAKS};

/// Of operand 0, and of operand 1.
@group(0) @binding(2) var<storage, read> peaks_0: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> peaks_1: array<vec4<f32>>;

/// Invocations that look at the peaks. That they are few saves workgroup memory: see `Tiling::memory`.
const FINDERS: u32 = min(WG, 128u);

/// The exponents of the scales of operands 0 and 1. All invocations call this together. Uses `sums`, 2·FINDERS elements.
fn scale_exponents(lane: u32) -> vec2<i32> {
    if lane < FINDERS {
        var of_0 = vec4<f32>();
        var of_1 = vec4<f32>();
        for (var at = lane; at < PEAKS / 4u; at += FINDERS) {
            of_0 = max(of_0, peaks_0[at]);
            of_1 = max(of_1, peaks_1[at]);
        }
        sums[lane] = max(max(of_0.x, of_0.y), max(of_0.z, of_0.w));
        sums[FINDERS + lane] = max(max(of_1.x, of_1.y), max(of_1.z, of_1.w));
    }
    for (var stride = FINDERS / 2u; stride > 0u; stride /= 2u) {
        workgroupBarrier();
        if lane < stride {
            sums[lane] = max(sums[lane], sums[lane + stride]);
            sums[FINDERS + lane] = max(sums[FINDERS + lane], sums[FINDERS + lane + stride]);
        }
    }
    workgroupBarrier();
    return exponents_for(vec2(sums[0], sums[FINDERS]));
}
