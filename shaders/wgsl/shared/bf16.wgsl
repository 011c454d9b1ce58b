// bf16 in memory: the upper 16 bits of an f32, with f32's range and eight significant bits. Two are in a word, the
// first in its lower half. A line is eight neighbours, mostly channels of a pixel, read and written at once.

struct Eight {
    first: vec4<f32>,
    second: vec4<f32>,
}

fn eight_of(words: vec4<u32>) -> Eight {
    let lower = bitcast<vec4<f32>>(words << vec4(16u));
    let upper = bitcast<vec4<f32>>(words & vec4(0xffff0000u));
    return Eight(vec4(lower.x, upper.x, lower.y, upper.y), vec4(lower.z, upper.z, lower.w, upper.w));
}

/// Element i of a line, i from 0 to 7, from the word that it is in.
fn bf16_at(word: u32, i: u32) -> f32 {
    return bitcast<f32>(select(word & 0xffff0000u, word << 16u, i % 2u == 0u));
}

/// Rounds to bf16, ties to even. NaN is found by its bits, because drivers may assume that nothing is NaN.
fn bf16_of(x: vec4<f32>) -> vec4<u32> {
    let bits = bitcast<vec4<u32>>(x);
    let rounded = (bits + vec4(0x7fffu) + ((bits >> vec4(16u)) & vec4(1u))) >> vec4(16u);
    let is_nan = (bits & vec4(0x7fffffffu)) > vec4(0x7f800000u);
    return select(rounded, vec4(0x7fc0u), is_nan);
}

fn line_of(x: Eight) -> vec4<u32> {
    let first = bf16_of(x.first);
    let second = bf16_of(x.second);
    return vec4(first.xz | (first.yw << vec2(16u)), second.xz | (second.yw << vec2(16u)));
}
