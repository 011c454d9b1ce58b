//! Average pooling.

use super::rows::{Spread, Sums};
use super::{AnyPool, Pool, PoolShape};
use crate::kernel::launch::{Argument, Caps, Variant, literal};
use crate::kernel::native::{self, Borrowed, OutView, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::ops::terms::Terms;
use crate::ops::{Bf16, Kernel, Primitive, as_f64};
use crate::{Result, Shape, TensorType};

/// Mean of each window, of images `y[n,c,p,q] = Σ x[n,c,p·s+i−pad,q·s+j−pad] / count`
///
/// Shapes: `x [N,C,H,W]` → `y [N,C,P,Q]`. Sequences have one such axis, volumes three. `count` is that of
/// [`Divisor`].
/// Gradient: `dy/count` to each element of the window.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AvgPool {
    pub(crate) pool: AnyPool,
    pub(crate) divisor: Divisor,
}

/// The number that the sum over a window is divided by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[doc(hidden)]
pub enum Divisor {
    /// The number of the window's elements inside the input or its padding. Past the padding, where a window may reach
    /// if their number was rounded up, none count.
    Padded,
    /// The number of the window's elements inside the input.
    Inside,
    /// The same for each window.
    Fixed(usize),
}

/// `dx` of [`AvgPool`]. Shapes: `dy [N,C,P,Q]` → `dx [N,C,H,W]`. Gradient: the average pooling itself.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AvgPoolGrad {
    pub(crate) forward: AvgPool,
    pub(crate) input: Shape,
}

impl AvgPool {
    /// The divisor of the sum over a window.
    pub(crate) fn count(&self, g: &PoolShape, place: [usize; 3]) -> usize {
        let Pool { kernel, stride, padding, .. } = self.pool.all;
        let padded = |axis: usize| kernel[axis].min(g.inputs[axis] + 2 * padding[axis] - place[axis] * stride[axis]);
        match self.divisor {
            Divisor::Padded => (0..3).map(padded).product(),
            Divisor::Inside => g.window(place).count(),
            Divisor::Fixed(divisor) => divisor,
        }
    }

    /// The divisors of a channel's windows; none if there is no room for them.
    fn counts<'s, T: Real>(&self, g: &PoolShape, scratch: &'s Scratch) -> Option<Borrowed<'s, T>> {
        let mut counts = scratch.borrow::<T>(g.windows())?;
        counts.iter_mut().enumerate().for_each(|(at, count)| *count = native::real(self.count(g, g.place(at))));
        Some(counts)
    }

    fn with_divisor(&self, g: &PoolShape, mut terms: Terms) -> Terms {
        let axes: [&str; 3] = match self.divisor {
            Divisor::Padded if self.pool.all.ceil_mode => [
                "f32(min(KD, IN_D + 2u * PD - z * SD))",
                "f32(min(KH, H + 2u * PH - p * SH))",
                "f32(min(KW, W + 2u * PW - q * SW))",
            ],
            Divisor::Padded => ["f32(KD)", "f32(KH)", "f32(KW)"],
            Divisor::Inside => ["f32(planes_inside(z).y)", "f32(rows_inside(p).y)", "f32(columns_inside(q).y)"],
            Divisor::Fixed(_) => [""; 3],
        };
        let divisor = match self.divisor {
            Divisor::Fixed(divisor) => literal(as_f64(divisor)),
            _ => axes[usize::from(g.is_flat())..].join(" * "),
        };
        terms.defines.push(("DIVISOR", divisor));
        terms
    }
}

impl Primitive for AvgPool {
    fn name(&self) -> &'static str {
        self.pool.named(["avg_pool1d", "avg_pool2d", "avg_pool3d"])
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        if self.divisor == Divisor::Fixed(0) {
            return Err("the divisor must be at least 1".into());
        }
        Ok(vec![x[0].with_shape(self.pool.output(&x[0])?)])
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], _: &[TensorType], to: &mut Form) -> Option<form::Results> {
        let (ty, mut attributes) = (x[0].ty, self.pool.onnx(&x[0].ty));
        let inside = self.divisor == Divisor::Inside;
        attributes.push(("count_include_pad", form::Attribute::Int(i64::from(!inside))));
        let mean = to.node("AveragePool", &[x[0].value], attributes);
        let g = PoolShape::of(ty.shape, self.pool);
        let area = self.pool.all.kernel.iter().product();
        let factor = |at: usize| as_f64(area) / as_f64(self.count(&g, g.place(at)));
        let factors: Vec<_> = (0..g.windows()).map(factor).collect();
        if inside || factors.iter().all(|&factor| factor == 1.0) {
            return form::only(mean);
        }
        let factors = to.floats(ty.with_shape(g.output(ty.shape).with(0, 1).with(1, 1)), factors);
        form::only(to.node("Mul", &[mean, factors], Vec::new()))
    }
}

impl Kernel for AvgPool {
    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        let g = PoolShape::of(x[0].layout().shape(), self.pool);
        let x = x[0].floats();
        let Some(counts) = self.counts::<T>(&g, scratch) else { return };
        let (arch, windows, counts, across) = (pulp::Arch::new(), g.windows(), &*counts, &g.across());
        native::parallel(y[0].floats(), g.channels_of_task() * windows, &|first, y| {
            let x = x[first / windows * g.pixels()..].chunks(g.pixels());
            for (y, x) in y.chunks_mut(windows).zip(x) {
                arch.dispatch(Sums { g: &g, across, x, y });
                y.iter_mut().zip(counts).for_each(|(y, &count)| *y = *y / count);
            }
        });
    }

    fn bf16(&self, x: &[TensorType], _: &[TensorType], caps: &Caps) -> Option<Bf16> {
        super::bf16(self.pool, x[0].shape, caps)
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        let g = PoolShape::of(x[0].ty.shape, self.pool);
        self.with_divisor(&g, g.forward("avg_pool2d", x[0].format, 1)).variants(x[0].format, "window")
    }
}

impl Primitive for AvgPoolGrad {
    fn name(&self) -> &'static str {
        self.forward.pool.named(["avg_pool1d_grad", "avg_pool2d_grad", "avg_pool3d_grad"])
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let shape = PoolShape::new(&x[0].with_shape(self.input), self.forward.pool)?.output(self.input);
        if x[0].shape != shape {
            return Err(format!("the cotangent must be {shape}, it is {}", x[0].shape));
        }
        Ok(vec![x[0].with_shape(self.input)])
    }
}

impl Kernel for AvgPoolGrad {
    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        let g = PoolShape::of(self.input, self.forward.pool);
        let dy = x[0].floats();
        let Some(counts) = self.forward.counts::<T>(&g, scratch) else { return };
        let (arch, pixels, windows, counts) = (pulp::Arch::new(), g.pixels(), g.windows(), &*counts);
        let across = &g.across();
        let chunk = g.channels_of_task() * pixels;
        native::parallel_scratch(y[0].floats(), chunk, (scratch, windows), &|task, dx, shares| {
            let dy = dy[task * chunk / pixels * windows..].chunks(windows);
            for (dx, dy) in dx.chunks_mut(pixels).zip(dy) {
                let of_windows = shares.iter_mut().zip(dy.iter().zip(counts));
                of_windows.for_each(|(share, (&dy, &count))| *share = dy / count);
                arch.dispatch(Spread { g: &g, across, dy: shares, dx });
            }
        });
    }

    fn bf16(&self, _: &[TensorType], _: &[TensorType], caps: &Caps) -> Option<Bf16> {
        super::bf16_backward(self.forward.pool, self.input, &[0], caps)
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        let g = PoolShape::of(self.input, self.forward.pool);
        self.forward.with_divisor(&g, g.backward("avg_pool2d_grad", x[0].format, 1)).variants(x[0].format, "gather")
    }
}
