//! The transforms of F(4×4, 3×3): each is a function of one line, applied to the columns of a square and then to its
//! rows. A square's elements are vectors of sixteen channels, so that a loop over lanes is SIMD.
//!
//! `shaders/wgsl/shared/winograd.wgsl` says what they are, and why the points are 0, ±3/4, ±3/2 and infinity.

/// Channels that are transformed together.
pub(super) const LANES: usize = 16;

/// One number of each of these channels.
pub(super) type Vector = [f32; LANES];

/// A square of vectors.
pub(super) type Square<const N: usize> = [[Vector; N]; N];

/// A square that is not yet written.
pub(super) const fn empty<const N: usize>() -> Square<N> {
    [[[0.0; LANES]; N]; N]
}

const NEAR: f32 = 0.75;
const FAR: f32 = 1.5;
const NEAR2: f32 = NEAR * NEAR;
const FAR2: f32 = FAR * FAR;
// The inverse product of each point's distances from the others.
const BY_ZERO: f32 = 1.0 / (NEAR2 * FAR2);
const BY_NEAR: f32 = 0.5 / (NEAR2 * (NEAR2 - FAR2));
const BY_FAR: f32 = 0.5 / (FAR2 * (FAR2 - NEAR2));

/// Bᵀ
#[inline(always)]
pub(super) fn of_input([a, b, c, d, e, f]: [f32; 6]) -> [f32; 6] {
    let near_even = e - FAR2 * c;
    let near_odd = NEAR * (d - FAR2 * b);
    let far_even = e - NEAR2 * c;
    let far_odd = FAR * (d - NEAR2 * b);
    [
        NEAR2 * FAR2 * a - (NEAR2 + FAR2) * c + e,
        near_even + near_odd,
        near_even - near_odd,
        far_even + far_odd,
        far_even - far_odd,
        NEAR2 * FAR2 * b - (NEAR2 + FAR2) * d + f,
    ]
}

/// G
#[inline(always)]
pub(super) fn of_weight([a, b, c]: [f32; 3]) -> [f32; 6] {
    let near_even = BY_NEAR * (a + NEAR2 * c);
    let near_odd = BY_NEAR * NEAR * b;
    let far_even = BY_FAR * (a + FAR2 * c);
    let far_odd = BY_FAR * FAR * b;
    [BY_ZERO * a, near_even + near_odd, near_even - near_odd, far_even + far_odd, far_even - far_odd, c]
}

/// Gᵀ
#[inline(always)]
pub(super) fn to_weight([a, b, c, d, e, f]: [f32; 6]) -> [f32; 3] {
    let near = BY_NEAR * (b + c);
    let far = BY_FAR * (d + e);
    [BY_ZERO * a + near + far, BY_NEAR * NEAR * (b - c) + BY_FAR * FAR * (d - e), NEAR2 * near + FAR2 * far + f]
}

/// A
#[inline(always)]
pub(super) fn of_output([a, b, c, d]: [f32; 4]) -> [f32; 6] {
    let near_even = a + NEAR2 * c;
    let near_odd = NEAR * (b + NEAR2 * d);
    let far_even = a + FAR2 * c;
    let far_odd = FAR * (b + FAR2 * d);
    [a, near_even + near_odd, near_even - near_odd, far_even + far_odd, far_even - far_odd, d]
}

/// Aᵀ
#[inline(always)]
pub(super) fn to_output([a, b, c, d, e, f]: [f32; 6]) -> [f32; 4] {
    let near = b + c;
    let near_odd = NEAR * (b - c);
    let far = d + e;
    let far_odd = FAR * (d - e);
    [a + near + far, near_odd + far_odd, NEAR2 * near + FAR2 * far, NEAR2 * near_odd + FAR2 * far_odd + f]
}

/// Applies a transform of lines to the columns of a square, then to the rows of the result.
#[inline(always)]
pub(super) fn square<const A: usize, const B: usize>(
    line: impl Fn([f32; A]) -> [f32; B],
    from: &Square<A>,
    to: &mut Square<B>,
) {
    for lane in 0..LANES {
        let mut half = [[0.0; A]; B];
        for column in 0..A {
            let mut values = [0.0; A];
            for row in 0..A {
                values[row] = from[row][column][lane];
            }
            let values = line(values);
            for row in 0..B {
                half[row][column] = values[row];
            }
        }
        for row in 0..B {
            let values = line(half[row]);
            for column in 0..B {
                to[row][column][lane] = values[column];
            }
        }
    }
}
