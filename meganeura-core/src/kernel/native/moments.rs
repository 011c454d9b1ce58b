//! Sums of differences from a number, and of their squares, as means and variances need them.

use pulp::Simd;

use super::{Real, sums_by};

/// Vectors of a block, and blocks that are added before they go into the whole sums: chains of additions are short, as
/// in [`sums_by`].
const BLOCK: usize = 16;
const BLOCKS: usize = 16;

/// `[Σ (x − centre), Σ (x − centre)²]`, in the widest vectors.
#[inline(always)]
pub(crate) fn moments<T: Real, S: Simd>(simd: S, x: &[T], centre: T) -> [T; 2] {
    match (T::singles(x), T::singles(&[centre])) {
        (Some(x), Some(&[centre])) => {
            let [sum, squares] = of_singles(simd, x, centre);
            [T::from_f64(f64::from(sum)), T::from_f64(f64::from(squares))]
        }
        _ => sums_by(x, |x| [x - centre, (x - centre) * (x - centre)]),
    }
}

/// Two vectors of partial sums, and two of partial sums of squares.
#[derive(Clone, Copy)]
struct Sums<S: Simd>([S::f32s; 4]);

impl<S: Simd> Sums<S> {
    #[inline(always)]
    fn none(simd: S) -> Self {
        Self([simd.splat_f32s(0.0); 4])
    }

    /// Adds the terms of a vector to the first or the second of each.
    #[inline(always)]
    fn add<const AT: usize>(&mut self, simd: S, x: S::f32s, centre: S::f32s) {
        let difference = simd.sub_f32s(x, centre);
        self.0[AT] = simd.add_f32s(self.0[AT], difference);
        self.0[AT + 2] = simd.mul_add_e_f32s(difference, difference, self.0[AT + 2]);
    }

    #[inline(always)]
    fn add_all(&mut self, simd: S, other: &Self) {
        for (sum, &other) in self.0.iter_mut().zip(&other.0) {
            *sum = simd.add_f32s(*sum, other);
        }
    }
}

/// Explicit vectors: compilers do not always find them in loops over several sums.
#[inline(always)]
fn of_singles<S: Simd>(simd: S, x: &[f32], centre: f32) -> [f32; 2] {
    let (vectors, rest) = S::as_simd_f32s(x);
    let centres = simd.splat_f32s(centre);
    let mut sums = Sums::none(simd);
    if !rest.is_empty() {
        // What fills the vector has no difference.
        let mut last = [centre; MOST];
        last[..rest.len()].copy_from_slice(rest);
        sums.add::<1>(simd, S::as_simd_f32s(&last).0[0], centres);
    }
    for blocks in vectors.chunks(BLOCK * BLOCKS) {
        let mut of_blocks = Sums::none(simd);
        for block in blocks.chunks(BLOCK) {
            let mut of_block = Sums::none(simd);
            let (pairs, odd) = block.as_chunks::<2>();
            for &[a, b] in pairs {
                of_block.add::<0>(simd, a, centres);
                of_block.add::<1>(simd, b, centres);
            }
            if let &[a] = odd {
                of_block.add::<0>(simd, a, centres);
            }
            of_blocks.add_all(simd, &of_block);
        }
        sums.add_all(simd, &of_blocks);
    }
    let Sums([a, b, c, d]) = sums;
    [simd.reduce_sum_f32s(simd.add_f32s(a, b)), simd.reduce_sum_f32s(simd.add_f32s(c, d))]
}

/// The most numbers of a vector.
const MOST: usize = 16;

#[cfg(test)]
mod tests {
    use pulp::{Arch, WithSimd};

    use super::*;

    struct Moments<'a>(&'a [f32], f32);

    impl WithSimd for Moments<'_> {
        type Output = [f32; 2];

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> [f32; 2] {
            moments(simd, self.0, self.1)
        }
    }

    #[test]
    #[expect(clippy::cast_precision_loss, reason = "small integers")]
    fn are_those_of_every_element() {
        // Whole numbers, all sums of which are exact.
        for len in [1, 3, 15, 16, 17, 31, 33, 192, 255, 256, 257, 4095, 4500, 9000] {
            let x: Vec<f32> = (0..len).map(|at| (at * 7 % 11) as f32).collect();
            let terms = || x.iter().map(|x| x - 4.0);
            let expected = [terms().sum::<f32>(), terms().map(|x| x * x).sum()];
            assert_eq!(Arch::new().dispatch(Moments(&x, 4.0)), expected, "{len}");
        }
    }
}
