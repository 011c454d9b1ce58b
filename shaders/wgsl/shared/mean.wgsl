// Means that are the sum of two numbers, `high + low`; see `group_norm`.

#include "shared/float"

/// Σ(x − mean)² from Σ(x − high) and Σ(x − high)², at least 0. NaN stays NaN.
fn squares_about_mean(about_high: vec2<f32>, low: f32) -> f32 {
    let squares = about_high.y - about_high.x * low;
    // A comparison may become a maximum, which loses NaN.
    return select(squares, 0.0, is_at_most_zero(squares));
}

/// 1/√(variance + eps). NaN where the squares of finite numbers overflowed: 0 would hide it.
fn reciprocal_deviation(variance: f32, eps: f32) -> f32 {
    return select(quiet_nan(), 1.0 / sqrt(variance + eps), is_finite(variance));
}

/// x − mean. The first difference is exact near `high`.
fn centred(x: f32, mean: vec2<f32>) -> f32 {
    return (x - mean.x) - mean.y;
}
