// Powers of two that bring operands into the range of f16, 6e-8 to 65,504: their largest elements to 2¹⁴ or above, below 2¹⁵.
// `peaks` holds maxima of both operands' magnitudes, PEAKS of each, which the kernel `peaks` found. WG is a power of two.

/// Maxima of each operand.
const PEAKS: u32 = 512u;

/// The largest magnitudes that each invocation knows of.
var<workgroup> lane_peaks: array<vec2<f32>, WG>;

/// Powers of two for both operands.
fn scales(lane: u32) -> vec2<f32> {
    var peak = vec2<f32>();
    for (var at = lane; at < PEAKS; at += WG) {
        peak = max(peak, vec2(peaks[at], peaks[PEAKS + at]));
    }
    lane_peaks[lane] = peak;
    for (var stride = WG / 2u; stride > 0u; stride /= 2u) {
        workgroupBarrier();
        if lane < stride {
            lane_peaks[lane] = max(lane_peaks[lane], lane_peaks[lane + stride]);
        }
    }
    workgroupBarrier();
    return vec2(scale_for(lane_peaks[0].x), scale_for(lane_peaks[0].y));
}

/// The power of two that brings a magnitude to 2¹⁴ or above, below 2¹⁵.
fn scale_for(peak: f32) -> f32 {
    let exponent = i32(bitcast<u32>(peak) >> 23u) - 127;
    return bitcast<f32>(u32(clamp(14 - exponent, -100, 100) + 127) << 23u);
}
