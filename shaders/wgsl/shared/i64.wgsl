// 64-bit signed integers, which WebGPU lacks: two words in two's complement, the lower one first. Arithmetic wraps
// around.

alias I64 = vec2<u32>;

fn i64_of_i32(x: i32) -> I64 {
    return I64(bitcast<u32>(x), bitcast<u32>(x >> 31u));
}

fn i64_is_negative(x: I64) -> bool {
    return x.y >= 0x80000000u;
}

/// `true` if a is below b.
fn i64_is_below(a: I64, b: I64) -> bool {
    if a.y != b.y {
        return bitcast<i32>(a.y) < bitcast<i32>(b.y);
    }
    return a.x < b.x;
}

fn i64_sum(a: I64, b: I64) -> I64 {
    let low = a.x + b.x;
    return I64(low, a.y + b.y + u32(low < a.x));
}

fn i64_negated(x: I64) -> I64 {
    return I64(0u - x.x, 0u - x.y - u32(x.x != 0u));
}

fn i64_difference(a: I64, b: I64) -> I64 {
    return I64(a.x - b.x, a.y - b.y - u32(a.x < b.x));
}

/// The product of two words. Products of halves do not overflow.
fn i64_product_of_words(a: u32, b: u32) -> I64 {
    let a_low = a & 0xffffu;
    let a_high = a >> 16u;
    let b_low = b & 0xffffu;
    let b_high = b >> 16u;
    let low = a_low * b_low;
    let one = a_high * b_low + (low >> 16u);
    let other = a_low * b_high + (one & 0xffffu);
    return I64((other << 16u) | (low & 0xffffu), a_high * b_high + (one >> 16u) + (other >> 16u));
}

fn i64_product(a: I64, b: I64) -> I64 {
    let product = i64_product_of_words(a.x, b.x);
    return I64(product.x, product.y + a.x * b.y + a.y * b.x);
}

/// x moved to the left by fewer than 64 bits. Shifts by 32 bits would be shifts by none.
fn i64_left(x: I64, bits: u32) -> I64 {
    if bits == 0u {
        return x;
    }
    if bits >= 32u {
        return I64(0u, x.x << (bits - 32u));
    }
    return I64(x.x << bits, (x.y << bits) | (x.x >> (32u - bits)));
}

/// x moved to the right by fewer than 64 bits, with copies of the sign.
fn i64_right(x: I64, bits: u32) -> I64 {
    if bits == 0u {
        return x;
    }
    let high = bitcast<i32>(x.y);
    if bits >= 32u {
        return I64(bitcast<u32>(high >> (bits - 32u)), bitcast<u32>(high >> 31u));
    }
    return I64((x.x >> bits) | (x.y << (32u - bits)), bitcast<u32>(high >> bits));
}

/// The magnitude, of 64 bits without a sign.
fn i64_magnitude(x: I64) -> vec2<u32> {
    if i64_is_negative(x) {
        return i64_negated(x);
    }
    return x;
}

/// The nearest float; ties to even.
fn i64_to_f32(x: I64) -> f32 {
    let magnitude = i64_magnitude(x);
    var value = f32(magnitude.x);
    if magnitude.y != 0u {
        // The 32 bits from the leading one on decide the result, with a mark for all below them.
        let bits = 32u - countLeadingZeros(magnitude.y);
        var top = magnitude.y;
        var below = magnitude.x;
        if bits < 32u {
            top = (magnitude.y << (32u - bits)) | (magnitude.x >> bits);
            below = magnitude.x << (32u - bits);
        }
        value = f32(top | u32(below != 0u)) * bitcast<f32>((127u + bits) << 23u);
    }
    return select(value, -value, i64_is_negative(x));
}

/// The float rounded towards 0; the nearest integer if there is none, 0 for NaN.
fn i64_of_f32(x: f32) -> I64 {
    let bits = bitcast<u32>(x);
    let exponent = (bits >> 23u) & 0xffu;
    let is_negative = bits >= 0x80000000u;
    if exponent < 127u || (exponent == 255u && (bits & 0x7fffffu) != 0u) {
        return I64(0u, 0u);
    }
    if exponent >= 127u + 63u {
        return select(I64(0xffffffffu, 0x7fffffffu), I64(0u, 0x80000000u), is_negative);
    }
    let mantissa = (bits & 0x7fffffu) | 0x800000u;
    var magnitude = I64(mantissa >> min(150u - exponent, 31u), 0u);
    if exponent >= 150u {
        magnitude = i64_left(I64(mantissa, 0u), exponent - 150u);
    }
    return select(magnitude, i64_negated(magnitude), is_negative);
}
