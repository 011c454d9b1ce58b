//! Group normalisation and its gradients.

mod forms;
mod grad;
mod lines;

use std::ops::Range;

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

pub use self::grad::GroupNormGrad;
use super::{Bf16, Kernel, Primitive};
use crate::dtype::check_eps;
use crate::kernel::launch::{Argument, Caps, Format, Variant};
use crate::kernel::native::{self, Finish, OutView, Plain, Real, Scratch, View};
use crate::ops::Exact;
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::{Result, Shape, TensorType};

/// Group normalisation: `y = (x − μ)·r·γ + β`, with `μ` and `r = 1/√(σ² + ε)` of each image and group of channels.
///
/// Shapes: `x [N,C,…]`, `γ [C]`, `β [C]` → `y [N,C,…]`, `μ [N,G,2]`, `r [N,G]`; the statistics are kept for the
/// gradient. `μ` is the sum of two numbers: the rounded mean `h`, and the mean of `x − h`. As a single `f32`, a mean of
/// 1000 would be off by 3e-5, the fourth digit of a spread of 0.1, while `x − h` is exact where the two are within a
/// factor of 2. No single element determines `h`, so an outlier costs the others no precision, wherever it is.
/// Gradient: with `g = dy·γ` and `x̂ = (x − μ)·r`, `dx = r·(g − mean(g) − x̂·mean(g·x̂))`; `dγ = Σ dy·x̂`, `dβ = Σ dy`.
/// For the statistics, over `K` elements each: `dh/dx = 1/K`, and 0 for the remainder of the rounding;
/// `dr/dx = −r³·(x − μ)/K`. Source: [Wu and He, 2018](https://arxiv.org/abs/1803.08494).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct GroupNorm {
    pub(crate) groups: usize,
    pub(crate) eps: Exact,
}

#[derive(Clone, Copy)]
pub(crate) struct GroupNormShape {
    pub(crate) n: usize,
    pub(crate) c: usize,
    /// The pixels of one channel.
    pub(crate) s: usize,
    pub(crate) groups: usize,
}

impl GroupNormShape {
    fn new(x: Shape, groups: usize) -> Result<Self, String> {
        let [n, c, rest @ ..] = x.dims() else { return Err(format!("the input must be [N, C, …], it is {x}")) };
        if groups == 0 || c % groups != 0 {
            return Err(format!("{groups} groups do not divide {c} channels"));
        }
        Ok(Self { n: *n, c: *c, s: rest.iter().product(), groups })
    }

    pub(crate) fn of(x: Shape, groups: usize) -> Self {
        Self::new(x, groups).expect("checked when recorded")
    }

    /// The elements of one group of one image, which are contiguous.
    pub(crate) fn group(&self) -> usize {
        self.c / self.groups * self.s
    }

    pub(crate) fn means(&self) -> Shape {
        Shape::from([self.n, self.groups, 2])
    }

    pub(crate) fn rstds(&self) -> Shape {
        Shape::from([self.n, self.groups])
    }

    /// The channels of group number `at`.
    fn channels(&self, at: usize) -> Range<usize> {
        let per_group = self.c / self.groups;
        let first = at % self.groups * per_group;
        first..first + per_group
    }
}

fn expect(x: &[TensorType], shapes: &[(&str, Shape)]) -> Result<(), String> {
    for (ty, (what, shape)) in x.iter().zip(shapes) {
        if ty.shape != *shape || ty.dtype != x[0].dtype || !ty.dtype.is_float() {
            return Err(format!("the {what} must be {}{shape}, it is {ty}", x[0].dtype));
        }
    }
    Ok(())
}

impl Primitive for GroupNorm {
    fn name(&self) -> &'static str {
        "group_norm"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let geometry = GroupNormShape::new(x[0].shape, self.groups)?;
        check_eps(self.eps.0)?;
        let channels = Shape::from([geometry.c]);
        expect(x, &[("input", x[0].shape), ("weight", channels), ("bias", channels)])?;
        Ok(vec![x[0], x[0].with_shape(geometry.means()), x[0].with_shape(geometry.rstds())])
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], _: &[TensorType], to: &mut Form) -> Option<form::Results> {
        // Normalises each group separately: ONNX's `GroupNormalization` loses precision if the spread is far below the
        // mean.
        let (dtype, shape, GroupNormShape { n, c, .. }) =
            (x[0].ty.dtype, x[0].ty.shape, GroupNormShape::of(x[0].ty.shape, self.groups));
        let groups = to.reshape(x[0].value, Shape::from([n, self.groups, shape.elements() / (n * self.groups)]));
        let eps = vec![("epsilon", form::Attribute::Float(self.eps.0))];
        let (scale, shift) = (x[1].narrow.0, x[2].narrow.0);
        let is_plain = to.number(scale) == Some(1.0) && to.number(shift) == Some(0.0);
        let [one, zero] = [1.0, 0.0]
            .map(|number| to.floats(TensorType::new(dtype, Shape::from([self.groups])), vec![number; self.groups]));
        let y = to.node("InstanceNormalization", &[groups, one, zero], eps);
        let y = to.reshape(y, shape);
        if is_plain {
            return Some(vec![Some(y), None, None]);
        }
        let mut of_channels = vec![1; shape.rank() - 1];
        of_channels[0] = c;
        let [scale, shift] = [1, 2].map(|k: usize| to.reshape(x[k].value, Shape::new(&of_channels)));
        let y = to.node("Mul", &[y, scale], Vec::new());
        let y = to.node("Add", &[y, shift], Vec::new());
        Some(vec![Some(y), None, None])
    }
}

impl Kernel for GroupNorm {
    fn bf16(&self, x: &[TensorType], _: &[TensorType], caps: &Caps) -> Option<Bf16> {
        lines::bf16(x[0], self.groups, &[0], caps)
    }

    fn stores(&self) -> bool {
        true
    }

    fn finishes(&self) -> bool {
        true
    }

    fn finishes_arithmetic(&self) -> bool {
        true
    }

    /// Gradients need the result itself.
    fn finishes_in_training(&self) -> bool {
        false
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        self.cpu_finishing(x, y, &Plain, scratch);
    }

    fn cpu_finishing<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], finish: &dyn Finish<T>, _: &Scratch) {
        let g = GroupNormShape::of(x[0].layout().shape(), self.groups);
        let (x, weight, bias) = (x[0].floats(), x[1].floats(), x[2].floats());
        let [y, mean, rstd] = y else { unreachable!("three results") };
        let (y, mean, rstd) = (y.floats(), mean.floats(), rstd.floats());
        let (arch, len, eps) = (pulp::Arch::new(), g.group(), T::from_f64(self.eps.0));
        // Short groups are finished several at a time, long ones by all threads together.
        let (several, is_long) = ((AT_ONCE / len).max(1), len > LONG);
        let statistics = mean.par_chunks_mut(2 * several).zip(rstd.par_chunks_mut(several));
        let parts = y.par_chunks_mut(several * len).zip(statistics).enumerate();
        parts.with_min_len(native::grain(several * len)).for_each(|(part, (y, (mean, rstd)))| {
            let first = part * several;
            let x = &x[first * len..][..y.len()];
            arch.dispatch(Groups { g, first, x, weight, bias, eps, y, mean, rstd });
            if !is_long {
                finish.finish(first * len, y);
            }
        });
        if is_long {
            native::finish_all(y, finish);
        }
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        let g = GroupNormShape::of(x[0].ty.shape, self.groups);
        match x[0].format {
            Format::Full => forms::forward(&g, self.eps),
            Format::Bf16 | Format::PaddedRows(_) => forms::forward_of_lines(&g, self.eps),
            Format::ChannelsLast(_) => lines::forward(&g, self.eps),
        }
    }
}

/// A group's mean, `high + low`.
#[derive(Clone, Copy)]
struct Mean<T> {
    high: T,
    low: T,
}

impl<T: Real> Mean<T> {
    /// `x − mean`. The first difference is exact near `high`.
    #[inline(always)]
    fn centred(self, x: T) -> T {
        x - self.high - self.low
    }
}

/// Elements that are worth a pass of other work.
const AT_ONCE: usize = 1024;

/// Elements of a group that is long enough to be shared by threads.
const LONG: usize = 1 << 14;

/// Neighbouring groups of images, from number `first` on. Each stays in the first-level cache between passes.
struct Groups<'a, T> {
    g: GroupNormShape,
    first: usize,
    x: &'a [T],
    weight: &'a [T],
    bias: &'a [T],
    eps: T,
    y: &'a mut [T],
    mean: &'a mut [T],
    rstd: &'a mut [T],
}

impl<T: Real> WithSimd for Groups<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { g, first, x, weight, bias, eps, y, mean, rstd } = self;
        let groups = x.chunks_exact(g.group()).zip(y.chunks_exact_mut(g.group()));
        let statistics = mean.chunks_exact_mut(2).zip(rstd);
        for (at, ((x, y), (to_mean, to_rstd))) in (first..).zip(groups.zip(statistics)) {
            let (mean, rstd) = statistics_of(simd, x, eps);
            to_mean.copy_from_slice(&[mean.high, mean.low]);
            *to_rstd = rstd;
            let channels = g.channels(at);
            let numbers = weight[channels.clone()].iter().zip(&bias[channels]);
            for ((y, x), (&weight, &bias)) in y.chunks_exact_mut(g.s).zip(x.chunks_exact(g.s)).zip(numbers) {
                let scale = rstd * weight;
                y.iter_mut().zip(x).for_each(|(y, &x)| *y = mean.centred(x) * scale + bias);
            }
        }
    }
}

/// The mean of a group, and the inverse of its deviation.
#[inline(always)]
fn statistics_of<T: Real, S: Simd>(simd: S, x: &[T], eps: T) -> (Mean<T>, T) {
    let count = native::real::<T>(x.len());
    // Differences from the first element give `high`; differences from `high` give `low` and the squares.
    // `group_norm.wgsl` explains why.
    let first = x[0];
    let [sum, _] = native::moments(simd, x, first);
    let high = first + sum / count;
    let [sum, squares] = native::moments(simd, x, high);
    let low = sum / count;
    let squares = squares - sum * low;
    // NaN stays NaN.
    let squares = if squares < T::ZERO { T::ZERO } else { squares };
    let variance = squares / count;
    // Where the squares of finite numbers overflowed, 0 would hide it.
    let rstd = if variance < -T::NEG_INFINITY { T::ONE / (variance + eps).sqrt() } else { T::NAN };
    (Mean { high, low }, rstd)
}
