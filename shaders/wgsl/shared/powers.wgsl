// Powers of two that bring numbers into the range of f16, 6e-8 to 65,504.

/// The exponents that bring these largest magnitudes to 2^(14 − room) or above, below 2^(15 − room): between those of
/// normal numbers whose inverses are normal.
fn exponents_for(peaks: vec2<f32>, room: i32) -> vec2<i32> {
    return clamp(vec2(141 - room) - vec2<i32>(bitcast<vec2<u32>>(peaks) >> vec2(23u)), vec2(-113), vec2(113));
}

fn powers(exponents: vec2<i32>) -> vec2<f32> {
    return bitcast<vec2<f32>>(vec2<u32>(exponents + 127) << vec2(23u));
}

fn largest(x: vec4<f32>) -> f32 {
    return max(max(x.x, x.y), max(x.z, x.w));
}

/// Magnitudes, zero for what is not finite.
fn finite_magnitudes(x: vec4<f32>) -> vec4<f32> {
    let bits = bitcast<vec4<u32>>(x) & vec4(0x7fffffffu);
    return bitcast<vec4<f32>>(select(vec4<u32>(), bits, bits < vec4(0x7f800000u)));
}
