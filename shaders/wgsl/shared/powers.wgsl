// Powers of two that bring numbers into the range of f16, 6e-8 to 65,504: the largest of them to 2¹⁴ or above, below 2¹⁵.

/// The exponents for these largest magnitudes: between those of normal numbers whose inverses are normal.
fn exponents_for(peaks: vec2<f32>) -> vec2<i32> {
    return clamp(vec2(141) - vec2<i32>(bitcast<vec2<u32>>(peaks) >> vec2(23u)), vec2(-113), vec2(113));
}

fn powers(exponents: vec2<i32>) -> vec2<f32> {
    return bitcast<vec2<f32>>(vec2<u32>(exponents + 127) << vec2(23u));
}
