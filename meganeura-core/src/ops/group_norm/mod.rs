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
use crate::graph::Exact;
use crate::kernel::launch::{Argument, Caps, Format, Variant};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::tape::Var;
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
    groups: usize,
    eps: Exact,
}

#[derive(Clone, Copy)]
struct Geometry {
    n: usize,
    c: usize,
    /// The pixels of one channel.
    s: usize,
    groups: usize,
}

impl Geometry {
    fn new(x: Shape, groups: usize) -> Result<Self, String> {
        let [n, c, rest @ ..] = x.dims() else { return Err(format!("the input must be [N, C, …], it is {x}")) };
        if groups == 0 || c % groups != 0 {
            return Err(format!("{groups} groups do not divide {c} channels"));
        }
        Ok(Self { n: *n, c: *c, s: rest.iter().product(), groups })
    }

    fn of(x: Shape, groups: usize) -> Self {
        Self::new(x, groups).expect("checked when recorded")
    }

    /// The elements of one group of one image, which are contiguous.
    fn group(&self) -> usize {
        self.c / self.groups * self.s
    }

    /// Each group minus its mean, `[N, G, K]`.
    fn centred(&self, x: &Var, mean: &Var) -> Var {
        let groups = x.reshape([self.n, self.groups, self.group()]);
        groups - mean.slice(2, 0..1) - mean.slice(2, 1..2)
    }

    fn means(&self) -> Shape {
        Shape::from([self.n, self.groups, 2])
    }

    fn rstds(&self) -> Shape {
        Shape::from([self.n, self.groups])
    }

    /// The channels of group number `at`.
    fn channels(&self, at: usize) -> Range<usize> {
        let per_group = self.c / self.groups;
        let first = at % self.groups * per_group;
        first..first + per_group
    }

    /// The channel of element `i` of group number `at`.
    #[cfg(feature = "testing")]
    fn channel(&self, at: usize, i: usize) -> usize {
        at % self.groups * (self.c / self.groups) + i / self.s
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
        let geometry = Geometry::new(x[0].shape, self.groups)?;
        check_eps(self.eps.0)?;
        let channels = Shape::from([geometry.c]);
        expect(x, &[("input", x[0].shape), ("weight", channels), ("bias", channels)])?;
        Ok(vec![x[0], x[0].with_shape(geometry.means()), x[0].with_shape(geometry.rstds())])
    }

    fn vjp(&self, x: &[Var], y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let ([x, weight, _], [_, mean, rstd], [dy, d_mean, d_rstd]) = (x, y, dy) else {
            unreachable!("three operands, three results")
        };
        let (mut dx, mut dw, mut db) = (None, None, None);
        if let Some(dy) = dy {
            (dx, dw, db) =
                dy.record_many(GroupNormGrad::new(self.groups), &[x, weight, mean, rstd, dy]).map(Some).into();
        }
        let g = Geometry::of(x.shape(), self.groups);
        let (one, len) = ([g.n, g.groups, 1], g.group());
        let mut add = |more: Var| {
            let more = more.reshape(x.shape());
            dx = Some(dx.take().map_or(more.clone(), |dx| dx + more));
        };
        if let Some(d_mean) = d_mean {
            add(d_mean.slice(2, 0..1).scale(1.0 / len as f64).expand([g.n, g.groups, len]));
        }
        if let Some(d_rstd) = d_rstd {
            let slope = -(d_rstd * rstd * rstd.square()).scale(1.0 / len as f64);
            add(g.centred(x, mean) * slope.reshape(one));
        }
        Ok(vec![dx, dw, db])
    }

    /// From `x` and the statistics, by broadcasting over groups: `[N, G, C/G, …]`.
    fn again(&self, x: &[Var], y: &[Var]) -> Option<Var> {
        let ([x, weight, bias], [_, mean, rstd]) = (x, y) else { return None };
        let g = Geometry::of(x.shape(), self.groups);
        let per_channel = |parameter: &Var| parameter.reshape([1, g.groups, g.c / g.groups, 1]);
        let centred = g.centred(x, mean).reshape([g.n, g.groups, g.c / g.groups, g.s]);
        let y = centred * rstd.reshape([g.n, g.groups, 1, 1]) * per_channel(weight) + per_channel(bias);
        Some(y.reshape(x.shape()))
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], _: &[TensorType], to: &mut Form) -> Option<form::Results> {
        // Normalises each group separately: ONNX's `GroupNormalization` loses precision if the spread is far below the
        // mean.
        let (dtype, shape, Geometry { n, c, .. }) =
            (x[0].ty.dtype, x[0].ty.shape, Geometry::of(x[0].ty.shape, self.groups));
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

    #[cfg(feature = "testing")]
    fn cases() -> Vec<super::case::Case> {
        use super::case::Case;
        let case = |shape: &[usize], groups| {
            let c = [shape[1]];
            Case::new(Self { groups, eps: Exact(1e-5) })
                .input(shape)
                .input(&c)
                .input(&c)
                .tolerance(2e-5)
                .naive(move |a| naive(a, groups))
        };
        vec![
            case(&[1, 1, 2, 2], 1),
            case(&[2, 6, 3, 5], 3),
            case(&[3, 4, 5], 4),
            case(&[2, 4, 7, 9], 1),
            case(&[2, 8, 1, 1], 2),
            case(&[1, 32, 5, 5], 32),
            case(&[3, 10], 5),
            case(&[1, 2, 33, 31], 1),
            // Channels whose elements align with the invocations, groups that share a workgroup, and one channel each.
            case(&[2, 8, 8, 16], 2),
            case(&[5, 4, 16, 16], 4),
            // Many channels with few elements: in blocks, in rows of one element, and in longer rows.
            case(&[2, 300, 3], 1),
            case(&[3, 90, 2], 2),
            case(&[3, 700], 2),
            case(&[2, 4500], 1),
            // Rows, as in normalisation over the last axes, in lines of eight.
            case(&[37, 1, 520], 1),
            case(&[3, 1, 3, 8], 1),
            case(&[2050, 1, 24], 1),
            // Samples that are summed in two steps, and several by one workgroup.
            case(&[3000, 2], 1),
            case(&[2050, 40], 1),
            case(&[2049, 16, 3], 8),
            // Longer than a workgroup holds, and channels longer than a block.
            case(&[1, 2, 129, 130], 1),
            // A mean far above the spread, where E[x²] − E[x]² would lose every digit. The remaining error is the
            // rounding of the input to f32, by 3e-5 of 0.1.
            Case::recorded("group_norm", &[&[2, 4, 4, 4], &[4], &[4]], |x| {
                (x[0].scale(0.1) + x[0].constant(1000.0)).group_norm(2, 1e-5, &x[1], &x[2])
            })
            .tolerance(1e-3),
        ]
    }
}

#[cfg(feature = "testing")]
fn naive(a: &[super::case::Array], groups: usize) -> Vec<super::case::Array> {
    use super::case::Array;
    let g = Geometry::of(a[0].shape, groups);
    let (mut y, mut means, mut rstds) = (Vec::new(), Vec::new(), Vec::new());
    for (at, x) in a[0].data.chunks_exact(g.group()).enumerate() {
        let n = x.len() as f64;
        let mean = x.iter().sum::<f64>() / n;
        let rstd = 1.0 / (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n + 1e-5).sqrt();
        y.extend(x.iter().enumerate().map(|(i, x)| {
            let c = g.channel(at, i);
            (x - mean) * rstd * a[1].data[c] + a[2].data[c]
        }));
        means.extend([mean, 0.0]);
        rstds.push(rstd);
    }
    let array = |shape, data| Array { shape, data };
    vec![array(a[0].shape, y), array(g.means(), means), array(g.rstds(), rstds)]
}

impl Kernel for GroupNorm {
    fn bf16(&self, x: &[TensorType], _: &[TensorType], caps: &Caps) -> Option<Bf16> {
        lines::bf16(x[0], self.groups, &[0], caps)
    }

    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let g = Geometry::of(x[0].layout().shape(), self.groups);
        let (x, weight, bias) = (x[0].floats(), x[1].floats(), x[2].floats());
        let [y, mean, rstd] = y else { unreachable!("three results") };
        let (mean, rstd) = (mean.floats(), rstd.floats());
        let (arch, len) = (pulp::Arch::new(), g.group());
        let statistics = mean.par_chunks_mut(2).zip(rstd);
        let groups = y.floats().par_chunks_mut(len).zip(statistics).enumerate();
        groups.with_min_len(native::grain(len)).for_each(|(at, (y, (mean, rstd)))| {
            let (x, eps) = (&x[at * len..][..len], T::from_f64(self.eps.0));
            let channels = g.channels(at);
            let (weight, bias) = (&weight[channels.clone()], &bias[channels]);
            arch.dispatch(Group { x, weight, bias, eps, y, mean, rstd });
        });
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        let g = Geometry::of(x[0].ty.shape, self.groups);
        match x[0].format {
            Format::Full => forms::forward(&g, self.eps),
            Format::Bf16 => forms::forward_of_lines(&g, self.eps),
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

/// One group of one image, which stays in the first-level cache between passes.
struct Group<'a, T> {
    x: &'a [T],
    weight: &'a [T],
    bias: &'a [T],
    eps: T,
    y: &'a mut [T],
    mean: &'a mut [T],
    rstd: &'a mut T,
}

impl<T: Real> WithSimd for Group<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { x, weight, bias, eps, y, .. } = self;
        let count = native::real::<T>(x.len());
        // Differences from the first element give `high`; differences from `high` give `low` and the squares.
        // `group_norm.wgsl` explains why.
        let first = x[0];
        let high = first + native::sum_by(x, |x| x - first) / count;
        let [sum, squares] = native::sums_by(x, |x| [x - high, (x - high) * (x - high)]);
        let low = sum / count;
        let squares = squares - sum * low;
        // NaN stays NaN.
        let squares = if squares < T::ZERO { T::ZERO } else { squares };
        let variance = squares / count;
        // Where the squares of finite numbers overflowed, 0 would hide it.
        let rstd = if variance < -T::NEG_INFINITY { T::ONE / (variance + eps).sqrt() } else { T::NAN };
        let mean = Mean { high, low };
        self.mean.copy_from_slice(&[high, low]);
        *self.rstd = rstd;
        let pixels = x.len() / weight.len();
        let planes = y.chunks_exact_mut(pixels).zip(x.chunks_exact(pixels));
        for ((y, x), (&weight, &bias)) in planes.zip(weight.iter().zip(bias)) {
            let scale = rstd * weight;
            y.iter_mut().zip(x).for_each(|(y, &x)| *y = mean.centred(x) * scale + bias);
        }
    }
}

impl Var {
    /// Group normalisation: `(x − mean)/√(variance + eps)·weight + bias`, where mean and variance are those of a group
    /// of channels of an example.
    ///
    /// Shapes: `x [N, C, …]`, `weight [C]`, `bias [C]` → `[N, C, …]`. Other shapes, and a number of groups that does
    /// not divide `C`, are an error.
    #[must_use]
    #[track_caller]
    pub fn group_norm(&self, groups: usize, eps: f64, weight: &Self, bias: &Self) -> Self {
        let [y, _, _] = self.record_many(GroupNorm { groups, eps: Exact(eps) }, &[self, weight, bias]);
        y
    }
}
