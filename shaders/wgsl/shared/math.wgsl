// Elementary functions that WGSL lacks, or whose accuracy or special cases it leaves open. NaN in, NaN out, except in
// `m_pow`. The errors stated do not include that of the driver's `exp`, which WGSL allows to be off by 3 + 2·|x| units
// in the last place.
//
// Where two formulas are cheap, both are evaluated and one is selected: without branches, the work on several elements
// overlaps. No function has a loop: functions run in the loops of kernels, whose iterations `Workgroups::loops` counts.

#include "shared/angle"
#include "shared/float"

/// -1, 0 or 1.
fn m_sign(x: f32) -> f32 {
    return select(sign(x), x, is_nan(x));
}

/// eˣ − 1, relative error 4e-7.
fn m_expm1(x: f32) -> f32 {
    // The Taylor series; its first missing term is x⁹/9!, below 1.1e-8 of x.
    let tail = 1.0 / 6.0 + x * (1.0 / 24.0 + x * (1.0 / 120.0 + x * (1.0 / 720.0 + x * (1.0 / 5040.0 + x / 40320.0))));
    return select(exp(x) - 1.0, x + x * x * (0.5 + x * tail), abs(x) < 0.5);
}

/// ln(1 + x) for x > −1, relative error 3e-7.
fn m_log1p(x: f32) -> f32 {
    if abs(x - 0.25) < 0.75 {
        // 2·artanh(s) = 2·(s + s³/3 + s⁵/5 + …) with |s| ≤ 1/3; the first missing term is s¹⁷/17, below 1.4e-9 of s.
        let s = x / (2.0 + x);
        let t = s * s;
        let tail = 1.0 / 7.0 + t * (1.0 / 9.0 + t * (1.0 / 11.0 + t * (1.0 / 13.0 + t / 15.0)));
        return 2.0 * (s + s * t * (1.0 / 3.0 + t * (1.0 / 5.0 + t * tail)));
    }
    return log(1.0 + x);
}

/// tanh(x), relative error 6e-7. No exponent is positive, so nothing overflows.
fn m_tanh(x: f32) -> f32 {
    let e = m_expm1(-2.0 * abs(x));
    let y = -e / (2.0 + e);
    return select(y, -y, x < 0.0);
}

/// 1/(1 + e⁻ˣ), relative error 4e-7, also where it is tiny.
fn m_sigmoid(x: f32) -> f32 {
    let e = exp(-abs(x));
    return select(1.0, e, x < 0.0) / (1.0 + e);
}

/// ln(1 + eˣ) = max(x, 0) + ln(1 + e^−|x|), relative error 6e-7.
fn m_softplus(x: f32) -> f32 {
    return m_max(x, 0.0) + m_log1p(exp(-abs(x)));
}

/// x − x: 0, and NaN where x is not finite. Compilers replace the difference of one operand with itself by 0.
fn m_sub_itself(x: f32) -> f32 {
    return select(quiet_nan(), 0.0, is_finite(x));
}

/// x / x: 1, and NaN where x is 0 or not finite. Compilers replace the quotient of one operand and itself by 1.
fn m_div_itself(x: f32) -> f32 {
    return select(quiet_nan(), 1.0, is_finite(x) && !is_zero(x));
}

/// erf(x), relative error 2e-7.
fn m_erf(x: f32) -> f32 {
    return select(erf_of_number(x), x, is_nan(x));
}

/// erf(x). Of NaN it may be a number, because compilers make a minimum that loses NaN.
fn erf_of_number(x: f32) -> f32 {
    let a = abs(x);
    let s = x * x;
    // x + x·p(x²), minimax.
    let p = 1.12819925e-1 + s * (-2.67681349e-2 + s * (4.99119423e-3 - s * 5.96761703e-4));
    let small = x + x * (1.28379166e-1 + s * (-3.76125336e-1 + s * p));
    // 1 − e^q(|x|), minimax; from |x| = 4 on the result is 1, and q stays below −15.
    let t = select(a, 4.0, a > 4.0);
    let r = (3.83197126e-4 - 1.72853470e-5 * t) * (t * t) + (2.42546219e-2 - 3.88396438e-3 * t);
    let q = (((r * t - 1.06777877e-1) * t - 6.34846687e-1) * t - 1.28717512e-1) * t - t;
    let large = 1.0 - exp(q);
    return select(select(large, -large, x < 0.0), small, a < 0.9277344);
}

/// The inverse of erf, relative error 4e-7 besides that of the driver's `log`: by the quantile of the normal
/// distribution, PPND7 of Wichura, 1988. Its third region lies beyond the largest f32 below 1.
fn m_erfinv(y: f32) -> f32 {
    let a = abs(y);
    let r = 0.180625 - 0.25 * y * y;
    let above = 3.3871327179 + r * (50.434271938 + r * (159.29113202 + r * 59.10937472));
    let below = 1.0 + r * (17.895169469 + r * (78.757757664 + r * 67.1875636));
    let small = 0.35355339 * y * (above / below);
    // A logarithm that is finite in all branches.
    let s = sqrt(-log(select(0.5, 0.5 * (1.0 - a), a < 1.0))) - 1.6;
    let large = 0.70710678 * (1.4234372777 + s * (2.75681539 + s * (1.3067284816 + s * 0.17023821103)))
        / (1.0 + s * (0.7370016425 + s * 0.12021132975));
    let inside = select(select(large, -large, y < 0.0), small, a <= 0.85);
    let outside = select(quiet_nan(), select(infinity(), negative_infinity(), y < 0.0), a == 1.0);
    return select(select(outside, inside, a < 1.0), y, is_nan(y));
}

/// x·Φ(x), Φ being the normal distribution; absolute error 2e-7 times max(1, |x|).
fn m_gelu(x: f32) -> f32 {
    // At −10 the result is 0, as it is from there to −∞. The factor x keeps NaN.
    let t = select(x, -10.0, x < -10.0 && !is_nan(x));
    return 0.5 * t * (1.0 + erf_of_number(t * 0.70710678));
}

/// The derivative of m_gelu, Φ(x) + x·φ(x), φ being the density; absolute error 3e-7. From ±10 on it is 1 or 0.
fn m_gelu_slope(x: f32) -> f32 {
    let t = select(select(select(x, 10.0, x > 10.0), -10.0, x < -10.0), x, is_nan(x));
    // The factor t keeps NaN.
    return 0.5 + 0.5 * erf_of_number(t * 0.70710678) + t * (0.39894228 * exp(-0.5 * t * t));
}

/// 0.5·x·(1 + tanh(u)) = x·sigmoid(2·u) with u = √(2/π)·(x + 0.044715·x³).
fn m_gelu_tanh(x: f32) -> f32 {
    return x * m_sigmoid(1.5957691 * x * (1.0 + 0.044715 * x * x));
}

/// x·sigmoid(x).
fn m_silu(x: f32) -> f32 {
    return x * m_sigmoid(x);
}

/// xʸ as in IEEE 754: x⁰ = 1ʸ = 1 for every x and y, and a negative finite x to a non-integer power is NaN. A chain of
/// products where |y| is an integer up to 16; else the relative error is |y| times the error of the driver's `log2`.
fn m_pow(x: f32, y: f32) -> f32 {
    if y == 0.0 || x == 1.0 {
        return 1.0;
    }
    if is_nan(x) || is_nan(y) {
        return quiet_nan();
    }
    let size = abs(x);
    let whole = floor(y) == y;
    // From 2²⁴ on, every f32 is even.
    let odd = whole && abs(y) < 16777216.0 && (u32(abs(y)) & 1u) == 1u;
    var power: f32;
    if whole && abs(y) <= 16.0 {
        power = 1.0;
        var square = size;
#for BIT in 5
        power *= select(1.0, square, (u32(abs(y)) & (1u << ${BIT}u)) != 0u);
        square *= square;
#endfor
        power = select(power, 1.0 / power, y < 0.0);
    } else if size == 0.0 {
        power = select(0.0, 1.0 / size, y < 0.0);
    } else if size == 1.0 {
        power = 1.0;
    } else {
        power = exp2(y * log2(size));
    }
    // Only a negative x that is neither zero nor infinite needs an integer y. The bound is in hexadecimal, because Tint
    // takes the rounded decimal for a number beyond f32.
    if x < 0.0 && x >= -0x1.fffffep+127 && !whole {
        return quiet_nan();
    }
    // By the sign bit, because minus zero has a sign.
    let negative = (bitcast<u32>(x) >> 31u) == 1u;
    return select(power, -power, negative && odd);
}
