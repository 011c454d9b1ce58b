//! Gradients of group normalisation, all in one operation because they share operands.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::{Geometry, Mean, expect, forms, lines};
use crate::kernel::launch::{Argument, Caps, Format, Variant};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
use crate::ops::{Bf16, Kernel, Primitive};
use crate::tape::Var;
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

    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let ([x, weight, mean, rstd, dy], [of_dx, of_dw, of_db]) = (x, dy) else {
            unreachable!("five operands, three results")
        };
        let g = Geometry::of(x.shape(), self.groups);
        let (per_group, len) = (g.c / g.groups, g.group() as f64);
        let groups = |x: &Var| x.reshape([g.n, g.groups, per_group, g.s]);
        let channels = |x: &Var| x.reshape([1, g.groups, per_group, 1]);
        let mean_of = |x: Var| x.sum_keep(&[2, 3]).scale(1.0 / len);
        let add = |sum: &mut Option<Var>, term: Var| {
            *sum = Some(match sum.take() {
                Some(sum) => sum + term,
                None => term,
            });
        };
        let centred = groups(&g.centred(x, mean));
        let rstd = rstd.reshape([g.n, g.groups, 1, 1]);
        let (normal, slope, weight) = (&centred * &rstd, groups(dy), channels(weight));
        // Cotangents of the normalised input, of `γ`, of `r` alone and of `dy`.
        let (mut of_normal, mut of_weight, mut of_rstd, mut of_dy) = (None, None, None, None);
        if let Some(u) = of_dx {
            let (u, g) = (groups(u), &slope * &weight);
            let (u_mean, u_dot) = (mean_of(u.clone()), mean_of(&u * &normal));
            let (g_mean, g_dot) = (mean_of(g.clone()), mean_of(&g * &normal));
            let of_g = &rstd * (&u - u_mean - &normal * &u_dot);
            add(&mut of_normal, -(&rstd * (&u * &g_dot + &g * u_dot)));
            add(&mut of_rstd, (u * (g - g_mean - &normal * g_dot)).sum_over(&[2, 3]));
            add(&mut of_weight, (&slope * &of_g).sum_over(&[0, 3]));
            add(&mut of_dy, weight * of_g);
        }
        if let Some(v) = of_dw {
            add(&mut of_normal, &slope * channels(v));
            add(&mut of_dy, &normal * channels(v));
        }
        if let Some(w) = of_db {
            add(&mut of_dy, channels(w).expand([g.n, g.groups, per_group, g.s]));
        }
        let (mut of_x, mut of_mean) = (None, None);
        if let Some(of_normal) = of_normal {
            add(&mut of_rstd, (&of_normal * centred).sum_over(&[2, 3]));
            let of_centred = of_normal * rstd;
            // A mean is the sum of two numbers.
            let sum = -of_centred.sum_over(&[2, 3]).reshape([g.n, g.groups, 1]);
            of_mean = Some(sum.expand(mean.shape()));
            of_x = Some(of_centred.reshape(x.shape()));
        }
        let of_weight = of_weight.map(|of_weight| of_weight.reshape([g.c]));
        Ok(vec![of_x, of_weight, of_mean, of_rstd, of_dy.map(|of_dy| of_dy.reshape(x.shape()))])
    }

    #[cfg(feature = "testing")]
    fn special() -> &'static [crate::ops::case::Special] {
        &[crate::ops::case::Special::WithoutOnnx]
    }

    #[cfg(feature = "testing")]
    fn cases() -> Vec<crate::ops::case::Case> {
        use crate::ops::case::Case;
        // Arbitrary statistics: `1/σ` and the mean are operands like others. The gradients of `group_norm`'s cases
        // cover the rest.
        let case = |shape: &[usize], groups: usize| {
            let (means, rstds) = ([shape[0], groups, 2], [shape[0], groups]);
            let case =
                Case::new(Self { groups }).input(shape).input(&[shape[1]]).input(&means).input(&rstds).input(shape);
            case.tolerance(2e-5).range(-0.5, 1.5)
        };
        vec![case(&[2, 6, 3, 5], 3), case(&[3, 4], 1), case(&[2, 3, 1, 7], 3), case(&[1, 8, 4, 2], 2)]
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
            Format::Bf16 => forms::backward_of_lines(&g),
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
