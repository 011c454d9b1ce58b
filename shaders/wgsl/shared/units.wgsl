// Operands of matrix units: 16-bit numbers, in fours in workgroup memory; and powers of two that scale numbers into the
// range of f16, from 6e-8 to 65,504.
//
// The numbers are f16, to which lines of bf16 are scaled; or, with BF16_UNITS, bf16, bit for bit as in memory. WGSL has
// no bf16. With BF16_UNITS, the host has the driver compile f16 as bf16, so kernels compute nothing with f16 but
// products on matrix units.
//
// Defines: BF16_UNITS  defined where f16 means bf16

#include "shared/bf16"

alias Four = vec4<f16>;

/// The four 16-bit numbers in two words, bit for bit.
fn four_of(words: vec2<u32>) -> Four {
    return Four(vec2<f16>(unpack2x16float(words.x)), vec2<f16>(unpack2x16float(words.y)));
}

/// The first four elements of a line of bf16, for matrix units: scaled to f16, or with BF16_UNITS bit for bit.
fn first_four(words: vec4<u32>, scale: f32) -> Four {
#if BF16_UNITS
    return four_of(words.xy);
#else
    return Four(eight_of(words).first * scale);
#endif
}

/// The last four.
fn last_four(words: vec4<u32>, scale: f32) -> Four {
#if BF16_UNITS
    return four_of(words.zw);
#else
    return Four(eight_of(words).second * scale);
#endif
}

/// The exponents of the powers of two that scale these peaks into [2^(14 − room), 2^(15 − room)), clamped so that the
/// powers and their inverses are normal numbers.
fn exponents_for(peaks: vec2<f32>, room: i32) -> vec2<i32> {
    return clamp(vec2(141 - room) - vec2<i32>(bitcast<vec2<u32>>(peaks) >> vec2(23u)), vec2(-113), vec2(113));
}

/// 2 to the power of each exponent.
fn powers(exponents: vec2<i32>) -> vec2<f32> {
    return bitcast<vec2<f32>>(vec2<u32>(exponents + 127) << vec2(23u));
}

fn largest(x: vec4<f32>) -> f32 {
    return max(max(x.x, x.y), max(x.z, x.w));
}

/// Magnitudes, with zero for elements that are not finite.
fn finite_magnitudes(x: vec4<f32>) -> vec4<f32> {
    let bits = bitcast<vec4<u32>>(x) & vec4(0x7fffffffu);
    return bitcast<vec4<f32>>(select(vec4<u32>(), bits, bits < vec4(0x7f800000u)));
}
