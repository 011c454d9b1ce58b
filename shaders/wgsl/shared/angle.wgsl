// Angles reduced to a quarter turn, for any finite f32. Drivers reduce large angles in f32, which loses all digits.

#include "shared/float"

/// An angle as quarter·π/2 + rest, with |rest| ≤ π/4 up to rounding. Only quarter modulo 4 matters.
struct Angle {
    rest: f32,
    quarter: u32,
}

/// The angle x; anything if x is not finite. Relative error of the rest: 2e-7 where |x| is above 8192, else 5e-7
/// and an absolute error of 3e-11.
fn angle_of(x: f32) -> Angle {
    if abs(x) <= 8192.0 {
        // The distance to the nearest multiple n of π/2. π/2 is a sum of three parts. The first two have so few digits
        // that n times each is exact.
        let n = round(x * 0.63661977);
        let rest = ((x - n * 1.5703125) - n * 4.837513e-4) - n * 7.54979e-8;
        return Angle(rest, bitcast<u32>(i32(n)));
    }
    return large_angle(x);
}

/// The upper 32 bits of a product of a number below 2²⁴ and any other.
fn high_product(a: u32, b: u32) -> u32 {
    let middle = (a >> 16u) * (b & 0xffffu) + (((a & 0xffffu) * (b & 0xffffu)) >> 16u);
    let other = (a & 0xffffu) * (b >> 16u) + (middle & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (middle >> 16u) + (other >> 16u);
}

/// The angle x of at least 8192 in magnitude, by the method of Payne and Hanek (1983): x·2/π modulo 4, in integers. Of
/// 2/π it takes the 96 bits that matter. Those above give multiples of 4, those below less than 2⁻⁷⁰, while no f32 is
/// nearer to a multiple of π/2 than 2⁻³⁵.
fn large_angle(x: f32) -> Angle {
    // 2/π, of which the first word is the integer part.
    var digits = array<u32, 8>(
        0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu,
    );
    let bits = bitcast<u32>(x);
    // |x| = mantissa·2^(exponent − 150), and the exponent is at least 140. The first bit that matters is the one that,
    // times 2^(exponent − 150), is 2.
    let mantissa = (bits & 0x7fffffu) | 0x800000u;
    let first = ((bits >> 23u) & 0xffu) - 120u;
    // Within the table for any x.
    let word = min(first >> 5u, 4u);
    let shift = first & 31u;
    let window = vec3<u32>(
        (digits[word] << shift) | ((digits[word + 1u] >> 1u) >> (31u - shift)),
        (digits[word + 1u] << shift) | ((digits[word + 2u] >> 1u) >> (31u - shift)),
        (digits[word + 2u] << shift) | ((digits[word + 3u] >> 1u) >> (31u - shift)),
    );
    // The product modulo 2⁹⁶, in units of 2⁻⁹⁴: its two highest bits count quarters.
    let low = mantissa * window.z;
    let part = mantissa * window.y;
    let middle = part + high_product(mantissa, window.z);
    let high = mantissa * window.x + high_product(mantissa, window.y) + select(0u, 1u, middle < part);
    let quarter = (high + 0x20000000u) >> 30u;
    let signed = high - (quarter << 30u);
    // The magnitude of the rest, up to the last bit: the complement of a negative number.
    let is_negative = (signed >> 31u) == 1u;
    let flip = select(0u, 0xffffffffu, is_negative);
    let words = vec3<u32>(signed ^ flip, middle ^ flip, low ^ flip);
    let is_tiny = words.x == 0u;
    let top = select(words.x, words.y, is_tiny);
    let next = select(words.y, words.z, is_tiny);
    let zeros = min(countLeadingZeros(top), 31u);
    let leading = (top << zeros) | ((next >> 1u) >> (31u - zeros));
    let number = f32(leading >> 8u) + f32(leading & 0xffu) * 0.00390625;
    // Times 2^(8 − 30 − zeros), and 2⁻³² if it is tiny.
    let unit = bitcast<f32>((105u - zeros - select(0u, 32u, is_tiny)) << 23u);
    let rest = number * unit * 1.5707964;
    let is_back = (bits >> 31u) == 1u;
    return Angle(select(rest, -rest, is_negative != is_back), select(quarter, 0u - quarter, is_back));
}

/// The sine of a rest, minimax.
fn sine_of(rest: f32) -> f32 {
    let z = rest * rest;
    return rest + rest * z * (-0.166666546 + z * (0.00833216076 - z * 0.000195152829));
}

/// The cosine of a rest, minimax.
fn cosine_of(rest: f32) -> f32 {
    let z = rest * rest;
    return (1.0 - 0.5 * z) + z * z * (0.0416666469 + z * (-0.00138873675 + z * 2.44384512e-5));
}

/// The sine of `turns` quarter turns more than x.
fn sine_after(x: f32, turns: u32) -> f32 {
    let angle = angle_of(x);
    let quarter = angle.quarter + turns;
    let y = select(sine_of(angle.rest), cosine_of(angle.rest), (quarter & 1u) == 1u);
    return select(quiet_nan(), select(y, -y, (quarter & 2u) == 2u), is_finite(x));
}

/// sin(x), absolute error 3e-7.
fn m_sin(x: f32) -> f32 {
    return sine_after(x, 0u);
}

/// cos(x), absolute error 3e-7.
fn m_cos(x: f32) -> f32 {
    return sine_after(x, 1u);
}

/// tan(x), relative error 7e-7 + 3e-11·|tan(x)|.
fn m_tan(x: f32) -> f32 {
    let angle = angle_of(x);
    // tan(r) for |r| ≤ π/4, minimax.
    let r = angle.rest;
    let z = r * r;
    let tail = 2.44301354e-2 + z * (3.11992233e-3 + z * 9.38540186e-3);
    let y = r + r * z * (3.33331569e-1 + z * (1.33387994e-1 + z * (5.34112807e-2 + z * tail)));
    let turned = select(y, -1.0 / y, (angle.quarter & 1u) == 1u);
    return select(quiet_nan(), turned, is_finite(x));
}
