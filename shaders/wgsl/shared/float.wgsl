// NaN and infinity. WGSL lets implementations assume that neither occurs, so `x != x`, `max(x, y)` or a literal cannot
// be relied on; bits can.

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn any_nan(x: f32, y: f32) -> bool {
    return is_nan(x) || is_nan(y);
}

/// `true` if x ≤ 0; false for NaN. A compiler that ignores NaN may turn `x <= 0.0` into a maximum that loses it.
fn is_at_most_zero(x: f32) -> bool {
    let bits = bitcast<u32>(x);
    return bits == 0u || (bits >= 0x80000000u && bits <= 0xff800000u);
}

/// `true` if x is zero of either sign; `false` for NaN.
fn is_zero(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) == 0u;
}

/// `true` if x is neither NaN nor infinite.
fn is_finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u;
}

fn quiet_nan() -> f32 {
    // A variable, because a constant expression must be finite.
    var bits = 0x7fc00000u;
    return bitcast<f32>(bits);
}

fn infinity() -> f32 {
    var bits = 0x7f800000u;
    return bitcast<f32>(bits);
}

fn negative_infinity() -> f32 {
    var bits = 0xff800000u;
    return bitcast<f32>(bits);
}

/// The smaller one; NaN if either is.
fn m_min(x: f32, y: f32) -> f32 {
    return select(select(min(x, y), y, is_nan(y)), x, is_nan(x));
}

/// The larger one; NaN if either is.
fn m_max(x: f32, y: f32) -> f32 {
    return select(select(max(x, y), y, is_nan(y)), x, is_nan(x));
}
