//! Average pooling.

use super::{Geometry, Pool2d};
use crate::kernel::launch::{Argument, Caps, Variant, literal};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::ops::terms::Terms;
use crate::ops::{Bf16, Kernel, Primitive, as_f64};
use crate::tape::Var;
use crate::{Result, Shape, TensorType};

/// Mean of each window: `y[n,c,p,q] = Σ x[n,c,p·s+i−pad,q·s+j−pad] / count`
///
/// Shapes: `x [N,C,H,W]` → `y [N,C,P,Q]`. `count` is that of [`Divisor`].
/// Gradient: `dy/count` to each element of the window.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AvgPool2d {
    pool: Pool2d,
    divisor: Divisor,
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
    forward: AvgPool2d,
    input: Shape,
}

impl AvgPool2d {
    /// The divisor of the sum over window `(p, q)`.
    fn count(&self, g: &Geometry, p: usize, q: usize) -> usize {
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

    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let Some(dy) = &dy[0] else { return Ok(vec![None]) };
        Ok(vec![Some(dy.record(AvgPool2dGrad { forward: self.clone(), input: x[0].shape() }, &[dy]))])
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], _: &[TensorType], to: &mut Form) -> Option<form::Results> {
        let (ty, mut attributes) = (x[0].ty, self.pool.onnx(&x[0].ty));
        let inside = self.divisor == Divisor::Inside;
        attributes.push(("count_include_pad", form::Attribute::Int(i64::from(!inside))));
        let mean = to.node("AveragePool", &[x[0].value], attributes);
        let g = Geometry::of(ty.shape, self.pool);
        let area = self.pool.kernel[0] * self.pool.kernel[1];
        let factor = |at: usize| as_f64(area) / as_f64(self.count(&g, at / g.q, at % g.q));
        let factors: Vec<_> = (0..g.p * g.q).map(factor).collect();
        if inside || factors.iter().all(|&factor| factor == 1.0) {
            return form::only(mean);
        }
        let factors = to.floats(ty.with_shape(Shape::from([1, 1, g.p, g.q])), factors);
        form::only(to.node("Mul", &[mean, factors], Vec::new()))
    }

    #[cfg(feature = "testing")]
    fn cases() -> Vec<crate::ops::case::Case> {
        use crate::ops::case::Case;
        let all = [Divisor::Padded, Divisor::Inside, Divisor::Fixed(5)].map(|divisor| {
            super::cases().into_iter().map(move |(pool, x)| {
                let op = Self { pool, divisor };
                let reference = op.clone();
                Case::new(op).input(&x).naive(move |a| vec![reference.naive(&a[0])])
            })
        });
        let mut cases: Vec<_> = all.into_iter().flatten().collect();
        cases.push(Case::recorded("avg_pool2d", &[&[2, 24, 9, 7]], |x| {
            let y = (&x[0] * -2.0).avg_pool2d([2, 2], [1, 2], [0, 0], true);
            (y * 4.0).avg_pool2d([3, 2], [2, 1], [1, 1], false).sum_over(&[2, 3])
        }));
        cases
    }
}

#[cfg(feature = "testing")]
impl AvgPool2d {
    fn naive(&self, x: &crate::ops::case::Array) -> crate::ops::case::Array {
        let g = Geometry::of(x.shape, self.pool);
        let mut data = Vec::new();
        for plane in x.data.chunks_exact(g.h * g.w) {
            for at in 0..g.p * g.q {
                let (p, q) = (at / g.q, at % g.q);
                let sum: f64 = g.window(p, q).map(|place| plane[place]).sum();
                data.push(sum / self.count(&g, p, q) as f64);
            }
        }
        crate::ops::case::Array { shape: g.output(x.shape), data }
    }
}

impl Kernel for AvgPool2d {
    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let g = Geometry::of(x[0].layout().shape(), self.pool);
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
        let terms = Geometry::of(x[0].ty.shape, self.pool).forward("avg_pool2d", x[0].format, 1);
        self.with_divisor(terms).variants(x[0].format, "window")
    }
}

impl Primitive for AvgPool2dGrad {
    fn name(&self) -> &'static str {
        "avg_pool2d_grad"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let shape = Geometry::new(&x[0].with_shape(self.input), self.forward.pool)?.output(self.input);
        if x[0].shape != shape {
            return Err(format!("the cotangent must be {shape}, it is {}", x[0].shape));
        }
        Ok(vec![x[0].with_shape(self.input)])
    }

    fn vjp(&self, _x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        Ok(vec![dy[0].as_ref().map(|d| d.record(self.forward.clone(), &[d]))])
    }

    #[cfg(feature = "testing")]
    fn special() -> &'static [crate::ops::case::Special] {
        &[crate::ops::case::Special::WithoutOnnx]
    }

    #[cfg(feature = "testing")]
    fn cases() -> Vec<crate::ops::case::Case> {
        super::cases()
            .into_iter()
            .map(|(pool, x)| {
                let input = Shape::from(x);
                let op = Self { forward: AvgPool2d { pool, divisor: Divisor::Inside }, input };
                crate::ops::case::Case::new(op).input(Geometry::of(input, pool).output(input).dims())
            })
            .collect()
    }
}

impl Kernel for AvgPool2dGrad {
    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let g = Geometry::of(self.input, self.forward.pool);
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
        let terms = Geometry::of(self.input, self.forward.pool).backward("avg_pool2d_grad", x[0].format, 1);
        self.forward.with_divisor(terms).variants(x[0].format, "gather")
    }
}

impl Var {
    /// The mean of each window of `kernel` pixels. Padding counts as zeros with `count_include_pad`, otherwise not at
    /// all.
    ///
    /// Shapes: `x [N, C, H, W]` → `[N, C, P, Q]` with `P = ⌊(H + 2·padding − kernel)/stride⌋ + 1`, and `Q` likewise.
    /// Other shapes, and a window that is larger than the padded input, are an error.
    #[must_use]
    #[track_caller]
    pub fn avg_pool2d(
        &self,
        kernel: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        count_include_pad: bool,
    ) -> Self {
        let pool = Pool2d { kernel, stride, padding, dilation: [1, 1], ceil_mode: false };
        self.avg_pool_of(pool, if count_include_pad { Divisor::Padded } else { Divisor::Inside })
    }

    /// The sum of each window, divided.
    #[track_caller]
    pub(crate) fn avg_pool_of(&self, pool: Pool2d, divisor: Divisor) -> Self {
        self.record(AvgPool2d { pool, divisor }, &[self])
    }
}
