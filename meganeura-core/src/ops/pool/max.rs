//! Maximum pooling.

use super::{Geometry, Pool2d};
use crate::kernel::launch::{Argument, Caps, Variant};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::ops::{Bf16, Kernel, Primitive};
use crate::tape::Var;
use crate::{DType, Result, Shape, TensorType};

/// Maximum of each window: `y[n,c,p,q] = max x[n,c,p·s+i·d−pad,q·s+j·d−pad]`
///
/// Shapes: `x [N,C,H,W]` → `y [N,C,P,Q]` and the winner's index `h·W + w` as `u32 [N,C,P,Q]`. The first of several
/// maxima wins; NaN wins over everything.
/// Gradient: `dy` goes only to the winner.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MaxPool2d(pub(crate) Pool2d);

/// `dx` of [`MaxPool2d`]. Shapes: `index u32 [N,C,P,Q]`, `dy [N,C,P,Q]` → `dx [N,C,H,W]`.
/// Gradient: the element at each winner; 0 for a window without one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MaxPool2dGrad {
    pool: Pool2d,
    input: Shape,
}

impl Primitive for MaxPool2d {
    fn name(&self) -> &'static str {
        "max_pool2d"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let shape = Geometry::new(&x[0], self.0)?.output(x[0].shape);
        Ok(vec![x[0].with_shape(shape), TensorType::new(DType::U32, shape)])
    }

    fn vjp(&self, x: &[Var], y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let Some(dy) = &dy[0] else { return Ok(vec![None]) };
        Ok(vec![Some(dy.record(MaxPool2dGrad { pool: self.0, input: x[0].shape() }, &[&y[1], dy]))])
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], _: &[TensorType], to: &mut Form) -> Option<form::Results> {
        // ONNX counts the indices of winners differently.
        Some(vec![Some(to.node("MaxPool", &[x[0].value], self.0.onnx(&x[0].ty))), None])
    }

    #[cfg(feature = "testing")]
    fn cases() -> Vec<crate::ops::case::Case> {
        use crate::ops::case::Case;
        let mut cases = super::cases();
        let dilated = Pool2d { kernel: [2, 3], stride: [1, 2], padding: [1, 1], dilation: [2, 2], ceil_mode: false };
        cases.push((dilated, [2, 2, 7, 9]));
        cases.push((dilated, [2, 16, 7, 9]));
        cases.push((Pool2d { stride: [3, 3], ceil_mode: true, ..dilated }, [2, 2, 7, 9]));
        let mut cases: Vec<_> = cases.into_iter().map(|(pool, x)| Case::new(Self(pool)).input(&x)).collect();
        // Between other operations, which leave a value stored as bf16.
        cases.push(Case::recorded("max_pool2d", &[&[2, 24, 9, 7]], |x| {
            let y = (&x[0] * -2.0).max_pool2d([3, 2], [2, 3], [1, 0], [1, 1]);
            (y * 4.0).max_pool2d([2, 2], [1, 1], [0, 0], [1, 1]).sum_over(&[2, 3])
        }));
        cases
    }
}

impl Kernel for MaxPool2d {
    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let g = Geometry::of(x[0].layout().shape(), self.0);
        let x = x[0].floats();
        let [y, index] = y else { unreachable!("two results") };
        native::parallel_zip(y.floats(), index.indices(), g.p * g.q, &|plane, y, index| {
            let x = &x[plane * g.h * g.w..][..g.h * g.w];
            for (at, (y, index)) in y.iter_mut().zip(index).enumerate() {
                let mut best: Option<(T, usize)> = None;
                for place in g.window(at / g.q, at % g.q) {
                    let x = x[place];
                    if best.is_none_or(|(best, _)| x > best || (x.is_nan() && !best.is_nan())) {
                        best = Some((x, place));
                    }
                }
                // With dilation, a window may lie in the padding alone: it has no winner.
                *y = best.map_or(T::NEG_INFINITY, |(value, _)| value);
                *index = best.map_or(u32::MAX, |(_, place)| u32::try_from(place).unwrap_or(u32::MAX));
            }
        });
    }

    /// The indices of the winners stay in their format.
    fn bf16(&self, x: &[TensorType], _: &[TensorType], caps: &Caps) -> Option<Bf16> {
        super::bf16(self.0, x[0].shape, caps)
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        let terms = Geometry::of(x[0].ty.shape, self.0).forward("max_pool2d", x[0].format, 2);
        terms.variants(x[0].format, "window")
    }
}

impl Primitive for MaxPool2dGrad {
    fn name(&self) -> &'static str {
        "max_pool2d_grad"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let [index, dy] = x else { return Err(format!("takes two operands, not {}", x.len())) };
        let shape = Geometry::new(&dy.with_shape(self.input), self.pool)?.output(self.input);
        if index.shape != shape || dy.shape != shape || index.dtype != DType::U32 {
            return Err(format!("index and cotangent must be {shape}, they are {index} and {dy}"));
        }
        Ok(vec![dy.with_shape(self.input)])
    }

    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let ([index, _], Some(d)) = (x, &dy[0]) else { return Ok(vec![None, None]) };
        let planes = |x: &Var| {
            let [n, c, h, w] = *x.shape().dims() else { unreachable!("images, by the type rule") };
            x.reshape([n * c, h * w])
        };
        Ok(vec![None, Some(planes(d).gather_or_zero(1, &planes(index)).reshape(index.shape()))])
    }

    #[cfg(feature = "testing")]
    fn cases() -> Vec<crate::ops::case::Case> {
        // Tested on every device through the gradients of `max_pool2d`'s cases, where a winner is in its window.
        Vec::new()
    }
}

impl Kernel for MaxPool2dGrad {
    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let g = Geometry::of(self.input, self.pool);
        let (index, dy) = (x[0].indices(), x[1].floats());
        native::parallel(y[0].floats(), g.h * g.w, &|first, dx| {
            dx.fill(T::ZERO);
            let from = first / (g.h * g.w) * g.p * g.q;
            for (&place, &dy) in index[from..][..g.p * g.q].iter().zip(&dy[from..]) {
                // A window entirely in the padding has no winner.
                if let Some(dx) = dx.get_mut(place as usize) {
                    *dx += dy;
                }
            }
        });
    }

    fn bf16(&self, _: &[TensorType], _: &[TensorType], caps: &Caps) -> Option<Bf16> {
        super::bf16_backward(self.pool, self.input, &[1], caps)
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        let terms = Geometry::of(self.input, self.pool).backward("max_pool2d_grad", x[1].format, 2);
        terms.variants(x[1].format, "gather")
    }
}

impl Var {
    /// The maximum of each window of `kernel` pixels. Padding counts as −∞; it is at most half of the kernel.
    ///
    /// Shapes: `x [N, C, H, W]` → `[N, C, P, Q]` with `P = ⌊(H + 2·padding − dilation·(kernel − 1) − 1)/stride⌋ + 1`,
    /// and `Q` likewise. Other shapes, and a window that is larger than the padded input, are an error.
    #[must_use]
    #[track_caller]
    pub fn max_pool2d(
        &self,
        kernel: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        dilation: [usize; 2],
    ) -> Self {
        let [y, _] = self.max_pool_of(Pool2d { kernel, stride, padding, dilation, ceil_mode: false });
        y
    }

    /// The maximum of each window, and its index in the image.
    #[track_caller]
    pub(crate) fn max_pool_of(&self, pool: Pool2d) -> [Self; 2] {
        self.record_many(MaxPool2d(pool), &[self])
    }
}

#[cfg(test)]
mod tests {
    use crate::{Device, Result, Tape, Tensor};

    #[test]
    fn windows_in_the_padding_alone_have_no_winner() -> Result<()> {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let x = tape.input(&Tensor::from_slice(&device, [1, 1, 1, 3], &[1.0, 2.0, 3.0])?);
        let y = x.max_pool2d([2, 2], [1, 1], [1, 1], [2, 2]);
        assert_eq!(y.to_vec()?, [f32::NEG_INFINITY; 3]);
        let grads = tape.backward(&y.sum())?;
        assert_eq!(grads.of(&x).expect("the sum depends on x").to_vec()?, [0.0; 3]);
        Ok(())
    }
}
