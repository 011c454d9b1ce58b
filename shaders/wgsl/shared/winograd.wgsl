// The transforms of Winograd's minimal filtering F(4×4, 3×3). A tile of 4×4 outputs of a 3×3 convolution is Aᵀ[(G w Gᵀ)
// ⊙ (Bᵀ d B)]A, where d is the tile's 6×6 inputs: 36 multiplications instead of 144. Sums over channels commute with
// the transforms, so the multiplications become 36 matrix products. Each function here transforms one line. Source:
// Lavin and Gray, 2015, https://arxiv.org/abs/1509.09308.
//
// The interpolation points are 0, ±3/4, ±3/2 and infinity rather than 0, ±1, ±2 and infinity: powers of the points stay
// closer to one, and rounding errors are a quarter as large.

const NEAR: f32 = 0.75;
const FAR: f32 = 1.5;
const NEAR2: f32 = NEAR * NEAR;
const FAR2: f32 = FAR * FAR;
/// For each point, 1/∏(point − other point), over the other finite points.
const BY_ZERO: f32 = 1.0 / (NEAR2 * FAR2);
const BY_NEAR: f32 = 0.5 / (NEAR2 * (NEAR2 - FAR2));
const BY_FAR: f32 = 0.5 / (FAR2 * (FAR2 - NEAR2));

/// Bᵀ
fn of_input(a: f32, b: f32, c: f32, d: f32, e: f32, f: f32) -> array<f32, 6> {
    let near_even = e - FAR2 * c;
    let near_odd = NEAR * (d - FAR2 * b);
    let far_even = e - NEAR2 * c;
    let far_odd = FAR * (d - NEAR2 * b);
    return array<f32, 6>(
        NEAR2 * FAR2 * a - (NEAR2 + FAR2) * c + e,
        near_even + near_odd,
        near_even - near_odd,
        far_even + far_odd,
        far_even - far_odd,
        NEAR2 * FAR2 * b - (NEAR2 + FAR2) * d + f,
    );
}

/// G
fn of_weight(a: f32, b: f32, c: f32) -> array<f32, 6> {
    let near_even = BY_NEAR * (a + NEAR2 * c);
    let near_odd = BY_NEAR * NEAR * b;
    let far_even = BY_FAR * (a + FAR2 * c);
    let far_odd = BY_FAR * FAR * b;
    return array<f32, 6>(
        BY_ZERO * a,
        near_even + near_odd,
        near_even - near_odd,
        far_even + far_odd,
        far_even - far_odd,
        c,
    );
}

/// Gᵀ
fn to_weight(a: f32, b: f32, c: f32, d: f32, e: f32, f: f32) -> array<f32, 3> {
    let near = BY_NEAR * (b + c);
    let far = BY_FAR * (d + e);
    return array<f32, 3>(
        BY_ZERO * a + near + far,
        BY_NEAR * NEAR * (b - c) + BY_FAR * FAR * (d - e),
        NEAR2 * near + FAR2 * far + f,
    );
}

/// A
fn of_output(a: f32, b: f32, c: f32, d: f32) -> array<f32, 6> {
    let near_even = a + NEAR2 * c;
    let near_odd = NEAR * (b + NEAR2 * d);
    let far_even = a + FAR2 * c;
    let far_odd = FAR * (b + FAR2 * d);
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
    let near_odd = NEAR * (b - c);
    let far = d + e;
    let far_odd = FAR * (d - e);
    return array<f32, 4>(
        a + near + far,
        near_odd + far_odd,
        NEAR2 * near + FAR2 * far,
        NEAR2 * near_odd + FAR2 * far_odd + f,
    );
}
