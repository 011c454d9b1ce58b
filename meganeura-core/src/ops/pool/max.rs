//! Maximum pooling.

use super::rows::{Maxima, Places};
use super::{AnyPool, PoolShape};
use crate::kernel::launch::{Argument, Caps, Variant};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::ops::{Bf16, Kernel, Primitive};
use crate::{DType, Result, Shape, TensorType};

/// Maximum of each window, of images `y[n,c,p,q] = max x[n,c,p·s+i·d−pad,q·s+j·d−pad]`
///
/// Shapes: `x [N,C,H,W]` → `y [N,C,P,Q]` and the winner's index `h·W + w` as `u32 [N,C,P,Q]`; sequences have one such
/// axis, volumes three. The first of several maxima wins; NaN wins over everything.
/// Gradient: `dy` goes only to the winner.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MaxPool(pub(crate) AnyPool);

/// `dx` of [`MaxPool`]. Shapes: `index u32 [N,C,P,Q]`, `dy [N,C,P,Q]` → `dx [N,C,H,W]`.
/// Gradient: the element at each winner; 0 for a window without one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MaxPoolGrad {
    pub(crate) pool: AnyPool,
    pub(crate) input: Shape,
}

impl Primitive for MaxPool {
    fn name(&self) -> &'static str {
        self.0.named(["max_pool1d", "max_pool2d", "max_pool3d"])
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let shape = PoolShape::new(&x[0], self.0)?.output(x[0].shape);
        Ok(vec![x[0].with_shape(shape), TensorType::new(DType::U32, shape)])
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], _: &[TensorType], to: &mut Form) -> Option<form::Results> {
        // ONNX counts the indices of winners differently.
        Some(vec![Some(to.node("MaxPool", &[x[0].value], self.0.onnx(&x[0].ty))), None])
    }
}

impl Kernel for MaxPool {
    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        let g = PoolShape::of(x[0].layout().shape(), self.0);
        let x = x[0].floats();
        let [y, index] = y else { unreachable!("two results") };
        let (arch, windows, channels, across) = (pulp::Arch::new(), g.windows(), g.channels_of_task(), g.across());
        let x = |task: usize| x[task * channels * g.pixels()..].chunks(g.pixels());
        let width = g.inputs[2];
        if !scratch.is_read(1) {
            native::parallel_scratch(y.floats(), channels * windows, (scratch, g.line()), &|task, y, best| {
                for (y, x) in y.chunks_mut(windows).zip(x(task)) {
                    arch.dispatch(Maxima { g: &g, across: &across, x, y, best });
                }
            });
            return;
        }
        native::parallel_zip(y.floats(), index.indices(), channels * windows, &|task, y, index| {
            let (Some(mut best), mut places) = (scratch.borrow(g.line()), vec![0; width]) else { return };
            for ((y, index), x) in y.chunks_mut(windows).zip(index.chunks_mut(windows)).zip(x(task)) {
                let maxima = Maxima { g: &g, across: &across, x, y, best: &mut best };
                arch.dispatch(Places { maxima, index, places: &mut places });
            }
        });
    }

    /// The indices of the winners stay in their format.
    fn bf16(&self, x: &[TensorType], _: &[TensorType], caps: &Caps) -> Option<Bf16> {
        super::bf16(self.0, x[0].shape, caps)
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        let mut terms = PoolShape::of(x[0].ty.shape, self.0).forward("max_pool2d", x[0].format, 2);
        terms.defines.extend(PoolShape::of_channels(x[0].format));
        terms.variants(x[0].format, "window")
    }
}

impl Primitive for MaxPoolGrad {
    fn name(&self) -> &'static str {
        self.pool.named(["max_pool1d_grad", "max_pool2d_grad", "max_pool3d_grad"])
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let [index, dy] = x else { return Err(format!("takes two operands, not {}", x.len())) };
        let shape = PoolShape::new(&dy.with_shape(self.input), self.pool)?.output(self.input);
        if index.shape != shape || dy.shape != shape || index.dtype != DType::U32 {
            return Err(format!("index and cotangent must be {shape}, they are {index} and {dy}"));
        }
        Ok(vec![dy.with_shape(self.input)])
    }
}

impl Kernel for MaxPoolGrad {
    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let g = PoolShape::of(self.input, self.pool);
        let (index, dy) = (x[0].indices(), x[1].floats());
        let (pixels, windows) = (g.pixels(), g.windows());
        native::parallel(y[0].floats(), g.channels_of_task() * pixels, &|first, dx| {
            dx.fill(T::ZERO);
            let from = first / pixels * windows;
            let of_channels = index[from..].chunks(windows).zip(dy[from..].chunks(windows));
            for (dx, (index, dy)) in dx.chunks_mut(pixels).zip(of_channels) {
                for (&place, &dy) in index.iter().zip(dy) {
                    // A window entirely in the padding has no winner.
                    if let Some(dx) = dx.get_mut(place as usize) {
                        *dx += dy;
                    }
                }
            }
        });
    }

    fn bf16(&self, _: &[TensorType], _: &[TensorType], caps: &Caps) -> Option<Bf16> {
        super::bf16_backward(self.pool, self.input, &[1], caps)
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        let mut terms = PoolShape::of(self.input, self.pool).backward("max_pool2d_grad", x[1].format, 2);
        terms.defines.extend(PoolShape::of_channels(x[1].format));
        terms.variants(x[1].format, "gather")
    }
}
