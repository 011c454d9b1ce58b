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

/// `true` if floats are certain to be added in the order in which it is written. The host sets it if so.
const EXACT_SUMS: bool = false;

/// Rounds to bf16, ties to even: the results' upper halves. NaN stays NaN, and infinity infinity. With exact sums it
/// takes few instructions, which bound kernels that store much; then numbers from 2⁸⁶ on may be rounded to the
/// neighbour towards 0.
fn to_nearest(x: vec4<f32>) -> vec4<u32> {
    let bits = bitcast<vec4<u32>>(x);
    if EXACT_SUMS {
        // The sum with 3·2¹⁵ times the power of two below a number ends with bf16's last bit. Larger shifts could make
        // a finite number infinite.
        let shift = min(bitcast<vec4<f32>>(bits & vec4(0x7f800000u)), vec4(0x1p85f));
        return bitcast<vec4<u32>>(fma(shift, vec4(-98304.0), fma(shift, vec4(98304.0), x)));
    }
    // NaN is found by its bits, because drivers may assume that nothing is NaN.
    let is_nan = (bits & vec4(0x7fffffffu)) > vec4(0x7f800000u);
    return select(bits + vec4(0x7fffu) + ((bits >> vec4(16u)) & vec4(1u)), vec4(0x7fc00000u), is_nan);
}

fn bf16_of(x: vec4<f32>) -> vec4<u32> {
    return to_nearest(x) >> vec4(16u);
}

fn line_of(x: Eight) -> vec4<u32> {
    let first = to_nearest(x.first);
    let second = to_nearest(x.second);
    return vec4(
        (first.yw & vec2(0xffff0000u)) | (first.xz >> vec2(16u)),
        (second.yw & vec2(0xffff0000u)) | (second.xz >> vec2(16u)),
    );
}
