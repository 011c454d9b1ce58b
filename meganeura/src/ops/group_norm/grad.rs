//! Gradients of group normalisation, all in one operation: they share what they read.

use super::{Geometry, expect, forms};
use crate::kernel::launch::{Argument, Caps, Variant};
use crate::kernel::native::{self, OutView, Real, View};
use crate::ops::{Kernel, Primitive};
use crate::tape::Var;
use crate::{Error, Result, Shape, TensorType};

/// `dx`, `dγ` and `dβ` of [`GroupNorm`](super::GroupNorm).
///
/// Shapes: `x [N,C,…]`, `γ [C]`, `μ [N,G]`, `r [N,G]`, `dy [N,C,…]` → `dx [N,C,…]`, `dγ [C]`, `dβ [C]`. Has no gradient of its
/// own.
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
        let (c, s) = (Shape::from([geometry.c]), geometry.statistics());
        expect(x, &[("input", x[0].shape), ("weight", c), ("mean", s), ("1/σ", s), ("cotangent", x[0].shape)])?;
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

    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>]) {
        let g = Geometry::of(x[0].layout().shape(), self.groups);
        let [x, weight, mean, rstd, dy] = [0, 1, 2, 3, 4].map(|k| x[k].floats());
        let [dx, dw, db] = y else { unreachable!("three results") };
        let per_group = g.c / g.groups;
        let (mut dots, mut sums) = (vec![T::ZERO; g.n * g.c], vec![T::ZERO; g.n * g.c]);
        native::parallel_zip(&mut dots, &mut sums, per_group, |at, dots, sums| {
            for (k, (dot, sum)) in dots.iter_mut().zip(sums).enumerate() {
                let place = at * g.group() + k * g.s;
                let (x, dy) = (&x[place..][..g.s], &dy[place..][..g.s]);
                *sum = native::sum(dy);
                *dot = native::dot_by(x, dy, |x, dy| dy * (x - mean[at]) * rstd[at]);
            }
        });
        let (dots, sums) = (&dots[..], &sums[..]);
        add_samples(dots, dw.floats());
        add_samples(sums, db.floats());
        let count = native::real::<T>(g.group());
        native::parallel(dx.floats(), g.group(), |first, dx| {
            let at = first / g.group();
            let (mean, rstd) = (mean[at], rstd[at]);
            let weight = &weight[at % g.groups * per_group..][..per_group];
            let weighted = |parts: &[T]| {
                let parts = &parts[at * per_group..][..per_group];
                weight.iter().zip(parts).map(|(&weight, &part)| weight * part).sum::<T>() / count
            };
            let (sum, dot) = (weighted(sums), weighted(dots));
            for (k, dx) in dx.chunks_exact_mut(g.s).enumerate() {
                let place = first + k * g.s;
                for ((dx, &x), &dy) in dx.iter_mut().zip(&x[place..]).zip(&dy[place..]) {
                    *dx = rstd * (dy * weight[k] - sum - (x - mean) * rstd * dot);
                }
            }
        });
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        forms::backward(&Geometry::of(x[0].ty.shape, self.groups))
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
