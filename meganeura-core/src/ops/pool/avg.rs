//! Average pooling.

use super::{Pool2d, PoolShape};
use crate::kernel::launch::{Argument, Caps, Variant, literal};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::ops::terms::Terms;
use crate::ops::{Bf16, Kernel, Primitive, as_f64};
use crate::{Result, Shape, TensorType};

/// Mean of each window: `y[n,c,p,q] = Σ x[n,c,p·s+i−pad,q·s+j−pad] / count`
///
/// Shapes: `x [N,C,H,W]` → `y [N,C,P,Q]`. `count` is that of [`Divisor`].
/// Gradient: `dy/count` to each element of the window.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AvgPool2d {
    pub(crate) pool: Pool2d,
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

/// `dx` of [`AvgPool2d`]. Shapes: `dy [N,C,P,Q]` → `dx [N,C,H,W]`. Gradient: the average pooling itself.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AvgPool2dGrad {
    pub(crate) forward: AvgPool2d,
    pub(crate) input: Shape,
}

impl AvgPool2d {
    /// The divisor of the sum over window `(p, q)`.
    pub(crate) fn count(&self, g: &PoolShape, p: usize, q: usize) -> usize {
        let Pool2d { kernel, stride, padding, .. } = self.pool;
        let padded = |axis: usize, window, extent| kernel[axis].min(extent + 2 * padding[axis] - window * stride[axis]);
        match self.divisor {
            Divisor::Padded => padded(0, p, g.h) * padded(1, q, g.w),
            Divisor::Inside => g.window(p, q).count(),
            Divisor::Fixed(divisor) => divisor,
        }
    }

    fn with_divisor(&self, mut terms: Terms) -> Terms {
        let divisor = match self.divisor {
            Divisor::Padded if self.pool.ceil_mode => {
                "f32(min(KH, H + 2u * PH - p * SH)) * f32(min(KW, W + 2u * PW - q * SW))".into()
            }
            Divisor::Padded => "f32(KH) * f32(KW)".into(),
            Divisor::Inside => "f32(rows_inside(p).y) * f32(columns_inside(q).y)".into(),
            Divisor::Fixed(divisor) => literal(as_f64(divisor)),
        };
        terms.defines.push(("DIVISOR", divisor));
        terms
    }
}

impl Primitive for AvgPool2d {
    fn name(&self) -> &'static str {
        "avg_pool2d"
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
        let area = self.pool.kernel[0] * self.pool.kernel[1];
        let factor = |at: usize| as_f64(area) / as_f64(self.count(&g, at / g.q, at % g.q));
        let factors: Vec<_> = (0..g.p * g.q).map(factor).collect();
        if inside || factors.iter().all(|&factor| factor == 1.0) {
            return form::only(mean);
        }
        let factors = to.floats(ty.with_shape(Shape::from([1, 1, g.p, g.q])), factors);
        form::only(to.node("Mul", &[mean, factors], Vec::new()))
    }
}

impl Kernel for AvgPool2d {
    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let g = PoolShape::of(x[0].layout().shape(), self.pool);
        let x = x[0].floats();
        native::parallel(y[0].floats(), g.p * g.q, &|first, y| {
            let x = &x[first / (g.p * g.q) * g.h * g.w..][..g.h * g.w];
            for (at, y) in y.iter_mut().enumerate() {
                let (p, q) = (at / g.q, at % g.q);
                let sum: T = g.window(p, q).map(|place| x[place]).sum();
                *y = sum / native::real(self.count(&g, p, q));
            }
        });
    }

    fn bf16(&self, x: &[TensorType], _: &[TensorType], caps: &Caps) -> Option<Bf16> {
        super::bf16(self.pool, x[0].shape, caps)
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        let terms = PoolShape::of(x[0].ty.shape, self.pool).forward("avg_pool2d", x[0].format, 1);
        self.with_divisor(terms).variants(x[0].format, "window")
    }
}

impl Primitive for AvgPool2dGrad {
    fn name(&self) -> &'static str {
        "avg_pool2d_grad"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let shape = PoolShape::new(&x[0].with_shape(self.input), self.forward.pool)?.output(self.input);
        if x[0].shape != shape {
            return Err(format!("the cotangent must be {shape}, it is {}", x[0].shape));
        }
        Ok(vec![x[0].with_shape(self.input)])
    }
}

impl Kernel for AvgPool2dGrad {
    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let g = PoolShape::of(self.input, self.forward.pool);
        let dy = x[0].floats();
        native::parallel(y[0].floats(), g.h * g.w, &|first, dx| {
            dx.fill(T::ZERO);
            let dy = &dy[first / (g.h * g.w) * g.p * g.q..][..g.p * g.q];
            for (at, &dy) in dy.iter().enumerate() {
                let (p, q) = (at / g.q, at % g.q);
                let share = dy / native::real(self.forward.count(&g, p, q));
                g.window(p, q).for_each(|place| dx[place] += share);
            }
        });
    }

    fn bf16(&self, _: &[TensorType], _: &[TensorType], caps: &Caps) -> Option<Bf16> {
        super::bf16_backward(self.forward.pool, self.input, &[0], caps)
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        let terms = PoolShape::of(self.input, self.forward.pool).backward("avg_pool2d_grad", x[0].format, 1);
        self.forward.with_divisor(terms).variants(x[0].format, "gather")
    }
}
