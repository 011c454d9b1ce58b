// The transforms of Winograd's F(2×2, 3×3) for matrix units, as shared/winograd has those of F(4×4, 3×3): 16 products instead of 36. Its
// coefficients are ±1 and 1/2, so that operands may be rounded to f16 between the transforms: errors are less than twice those
// of the direct product.

/// Bᵀ
fn of_input(a: f32, b: f32, c: f32, d: f32) -> vec4<f32> {
    return vec4(a - c, b + c, c - b, b - d);
}

/// G
fn of_weight(a: f32, b: f32, c: f32) -> vec4<f32> {
    let even = 0.5 * (a + c);
    return vec4(a, even + 0.5 * b, even - 0.5 * b, c);
}

/// Gᵀ
fn to_weight(a: f32, b: f32, c: f32, d: f32) -> vec3<f32> {
    let even = 0.5 * (b + c);
    return vec3(a + even, 0.5 * (b - c), even + d);
}

/// A
fn of_output(a: f32, b: f32) -> vec4<f32> {
    return vec4(a, a + b, a - b, -b);
}

/// Aᵀ
fn to_output(a: f32, b: f32, c: f32, d: f32) -> vec2<f32> {
    return vec2(a + b + c, b - c - d);
}
