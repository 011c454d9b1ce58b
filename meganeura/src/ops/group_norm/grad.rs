//! Gradients of group normalisation, all in one operation: they share what they read.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::{Geometry, Mean, expect, forms, lines};
use crate::kernel::launch::{Argument, Caps, Channels, Format, Variant};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
use crate::ops::{Halves, Kernel, Primitive};
use crate::tape::Var;
use crate::{Error, Result, Shape, TensorType};

/// `dx`, `dγ` and `dβ` of [`GroupNorm`](super::GroupNorm).
///
/// Shapes: `x [N,C,…]`, `γ [C]`, `μ [N,G,2]`, `r [N,G]`, `dy [N,C,…]` → `dx [N,C,…]`, `dγ [C]`, `dβ [C]`. Has no gradient
/// of its own.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct GroupNormGrad {
    groups: usize,
}

impl GroupNormGrad {
    pub(super) fn new(groups: usize) -> Self {
        Self { groups }
    }
}

impl Primitive for GroupNormGrad {
    fn name(&self) -> &'static str {
        "group_norm_grad"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let geometry = Geometry::new(x[0].shape, self.groups)?;
        let (c, means, rstds) = (Shape::from([geometry.c]), geometry.means(), geometry.rstds());
        expect(x, &[("input", x[0].shape), ("weight", c), ("mean", means), ("1/σ", rstds), ("cotangent", x[0].shape)])?;
        Ok(vec![x[0], x[0].with_shape(c), x[0].with_shape(c)])
    }

    fn vjp(&self, _x: &[Var], _y: &[Var], _dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        Err(Error::no_second_derivative("group_norm_grad"))
    }

    #[cfg(feature = "testing")]
    fn cases() -> Vec<crate::ops::case::Case> {
        // Reached, on every device, through the gradients of `group_norm`'s cases.
        Vec::new()
    }
}

impl Kernel for GroupNormGrad {
    fn reads_strided(&self, _: usize) -> bool {
        false
    }

    fn loads(&self) -> Option<usize> {
        Some(4)
    }

    fn halves(&self, x: &[TensorType], _: &[TensorType], caps: &Caps) -> Option<Halves> {
        lines::halves(x[0], self.groups, &[0, 4], caps)
    }

    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        let g = Geometry::of(x[0].layout().shape(), self.groups);
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
        let g = Geometry::of(x[0].ty.shape, self.groups);
        match x[0].format {
            Format::Full => forms::backward(&g),
            Format::Half(Channels::ROWS) => forms::backward_of_lines(&g),
            Format::Half(_) => lines::backward(&g),
        }
    }
}

/// One group of one image: `dx`, and what each of its channels adds to `dγ` and `dβ`.
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

/// `y[c] = Σ x[n,c]`: 64 samples at a time, so that rounding errors grow with their number and that of the blocks, not of all.
fn add_samples<T: Real>(x: &[T], y: &mut [T]) {
    let channels = y.len();
    native::parallel(y, 256, |first, y| {
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
