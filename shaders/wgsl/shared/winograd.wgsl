// The transforms of Winograd's minimal filtering F(4×4, 3×3): a tile of 4×4 outputs of a 3×3 convolution is
// Aᵀ[(G w Gᵀ) ⊙ (Bᵀ d B)]A, with d the 6×6 inputs that it depends on: 36 products instead of 144, and sums over channels
// commute with all of it, so that they become 36 matrix products. Each function here transforms one line.
// Source: Lavin and Gray, 2015, https://arxiv.org/abs/1509.09308.

/// Bᵀ
fn of_input(a: f32, b: f32, c: f32, d: f32, e: f32, f: f32) -> array<f32, 6> {
    let even = e - 4.0 * c;
    let odd = d - 4.0 * b;
    let half_even = e - c;
    let half_odd = 2.0 * (d - b);
    return array<f32, 6>(
        4.0 * a - 5.0 * c + e,
        even + odd,
        even - odd,
        half_even + half_odd,
        half_even - half_odd,
        4.0 * b - 5.0 * d + f,
    );
}

/// G
fn of_weight(a: f32, b: f32, c: f32) -> array<f32, 6> {
    let outer = (a + c) / 6.0;
    let far = a / 24.0 + c / 6.0;
    return array<f32, 6>(a / 4.0, -outer - b / 6.0, -outer + b / 6.0, far + b / 12.0, far - b / 12.0, c);
}

/// Gᵀ
fn to_weight(a: f32, b: f32, c: f32, d: f32, e: f32, f: f32) -> array<f32, 3> {
    let near = b + c;
    let far = d + e;
    return array<f32, 3>(
        a / 4.0 - near / 6.0 + far / 24.0,
        (c - b) / 6.0 + (d - e) / 12.0,
        (far - near) / 6.0 + f,
    );
}

/// A
fn of_output(a: f32, b: f32, c: f32, d: f32) -> array<f32, 6> {
    let near_even = a + c;
    let near_odd = b + d;
    let far_even = a + 4.0 * c;
    let far_odd = 2.0 * b + 8.0 * d;
    return array<f32, 6>(
        a,
        near_even + near_odd,
        near_even - near_odd,
        far_even + far_odd,
        far_even - far_odd,
        d,
    );
}

/// Aᵀ
fn to_output(a: f32, b: f32, c: f32, d: f32, e: f32, f: f32) -> array<f32, 4> {
    let near = b + c;
    let near_odd = b - c;
    let far = d + e;
    let far_odd = d - e;
    return array<f32, 4>(
        a + near + far,
        near_odd + 2.0 * far_odd,
        near + 4.0 * far,
        near_odd + 8.0 * far_odd + f,
    );
}
