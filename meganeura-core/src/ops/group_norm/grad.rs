//! Gradients of group normalisation, all in one operation because they share operands.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::{GroupNormShape, Mean, expect, forms, lines};
use crate::kernel::launch::{Argument, Caps, Format, Variant};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
use crate::ops::{Bf16, Kernel, Primitive};
use crate::{Result, Shape, TensorType};

/// `dx`, `dγ` and `dβ` of [`GroupNorm`](super::GroupNorm).
///
/// Shapes: `x [N,C,…]`, `γ [C]`, `μ [N,G,2]`, `r [N,G]`, `dy [N,C,…]` → `dx [N,C,…]`, `dγ [C]`, `dβ [C]`.
/// Gradient: by elementwise operations and sums over groups. With `x̂ = (x − μ)·r`, `g = dy·γ` and cotangents `u`, `v`,
/// `w` of `dx`, `dγ`, `dβ`: the cotangent of `g` is `h = r·(u − mean(u) − x̂·mean(u·x̂))`, since `dx` is linear in `g`
/// with a symmetric matrix; that of `x̂` is `k = dy·v − r·(u·mean(g·x̂) + g·mean(u·x̂))`. So `dy` gets
/// `γ·h + v·x̂ + w`, `γ` gets `Σ dy·h`, `x` gets `k·r`, `μ` gets `−Σ k·r`, and `r` gets `Σ k·(x − μ) + Σ u·dx/r`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct GroupNormGrad {
    pub(crate) groups: usize,
}

impl GroupNormGrad {
    pub(crate) fn new(groups: usize) -> Self {
        Self { groups }
    }
}

impl Primitive for GroupNormGrad {
    fn name(&self) -> &'static str {
        "group_norm_grad"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let geometry = GroupNormShape::new(x[0].shape, self.groups)?;
        let (c, means, rstds) = (Shape::from([geometry.c]), geometry.means(), geometry.rstds());
        expect(x, &[("input", x[0].shape), ("weight", c), ("mean", means), ("1/σ", rstds), ("cotangent", x[0].shape)])?;
        Ok(vec![x[0], x[0].with_shape(c), x[0].with_shape(c)])
    }
}

impl Kernel for GroupNormGrad {
    fn loads(&self) -> Option<usize> {
        Some(4)
    }

    fn bf16(&self, x: &[TensorType], _: &[TensorType], caps: &Caps) -> Option<Bf16> {
        lines::bf16(x[0], self.groups, &[0, 4], caps)
    }

    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        let g = GroupNormShape::of(x[0].layout().shape(), self.groups);
        let [x, weight, mean, rstd, dy] = [0, 1, 2, 3, 4].map(|k| x[k].floats());
        let [dx, dw, db] = y else { unreachable!("three results") };
        let (arch, len, per_group) = (pulp::Arch::new(), g.group(), g.c / g.groups);
        let [dots, sums] = [(); 2].map(|()| scratch.borrow::<T>(g.n * g.c));
        let (Some(mut dots), Some(mut sums)) = (dots, sums) else { return };
        let channels = dots.par_chunks_mut(per_group).zip(sums.par_chunks_mut(per_group));
        let groups = dx.floats().par_chunks_mut(len).zip(channels).enumerate();
        groups.with_min_len(native::grain(len)).for_each(|(at, (dx, (dots, sums)))| {
            let (x, dy) = (&x[at * len..][..len], &dy[at * len..][..len]);
            let mean = Mean { high: mean[2 * at], low: mean[2 * at + 1] };
            let (rstd, weight) = (rstd[at], &weight[g.channels(at)]);
            arch.dispatch(Group { x, dy, weight, mean, rstd, dx, dots, sums });
        });
        add_samples(&dots, dw.floats());
        add_samples(&sums, db.floats());
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        let g = GroupNormShape::of(x[0].ty.shape, self.groups);
        match x[0].format {
            Format::Full => forms::backward(&g),
            Format::Bf16 | Format::PaddedRows(_) => forms::backward_of_lines(&g),
            Format::ChannelsLast(_) => lines::backward(&g),
        }
    }
}

/// One group of one image: `dx`, and the contributions of its channels to `dγ` and `dβ`.
struct Group<'a, T> {
    x: &'a [T],
    dy: &'a [T],
    weight: &'a [T],
    mean: Mean<T>,
    rstd: T,
    dx: &'a mut [T],
    dots: &'a mut [T],
    sums: &'a mut [T],
}

impl<T: Real> WithSimd for Group<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { x, dy, weight, mean, rstd, dx, dots, sums } = self;
        let (count, pixels) = (native::real::<T>(x.len()), x.len() / weight.len());
        let (mut sum, mut dot) = (T::ZERO, T::ZERO);
        let planes = x.chunks_exact(pixels).zip(dy.chunks_exact(pixels));
        for ((x, dy), ((of_dot, of_sum), &weight)) in planes.zip(dots.iter_mut().zip(sums).zip(weight)) {
            *of_sum = native::sum(dy);
            *of_dot = native::dot_by(x, dy, |x, dy| dy * mean.centred(x) * rstd);
            sum += weight * *of_sum;
            dot += weight * *of_dot;
        }
        let (sum, dot) = (sum / count, dot / count);
        let planes = dx.chunks_exact_mut(pixels).zip(x.chunks_exact(pixels).zip(dy.chunks_exact(pixels)));
        for ((dx, (x, dy)), &weight) in planes.zip(weight) {
            for (dx, (&x, &dy)) in dx.iter_mut().zip(x.iter().zip(dy)) {
                *dx = rstd * (dy * weight - sum - mean.centred(x) * rstd * dot);
            }
        }
    }
}

/// `y[c] = Σ x[n,c]`, added in blocks of 64 samples, so that rounding errors grow with the size and number of blocks
/// instead of the number of samples.
fn add_samples<T: Real>(x: &[T], y: &mut [T]) {
    let channels = y.len();
    native::parallel(y, 256, &|first, y| {
        y.fill(T::ZERO);
        let mut sum = vec![T::ZERO; y.len()];
        for block in x.chunks(64 * channels) {
            sum.fill(T::ZERO);
            for sample in block.chunks_exact(channels) {
                sum.iter_mut().zip(&sample[first..]).for_each(|(sum, &x)| *sum += x);
            }
            y.iter_mut().zip(&sum).for_each(|(y, &sum)| *y += sum);
        }
    });
}
