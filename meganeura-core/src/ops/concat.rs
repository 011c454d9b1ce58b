//! Concatenation along an axis.

use std::panic::Location;

use super::{Bf16, Innermost, Kernel, Primitive, Stores};
use crate::kernel::launch::{Argument, Caps, Channels, Format, Variant};
use crate::kernel::native::{OutView, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::tape::Var;
use crate::{Layout, Result, Shape, TensorType};

/// Concatenates the operands along an axis.
///
/// Shapes: equal except along the axis, whose extents add up. Gradient: each operand's part of `dy`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Concat {
    axis: usize,
}

impl Concat {
    /// `true` if it joins its operands along this axis.
    pub(super) fn is_along(&self, axis: usize) -> bool {
        self.axis == axis
    }
}

impl Primitive for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let axis = self.axis;
        let Some(first) = x.first() else { return Err("needs at least one operand".into()) };
        if axis >= first.shape.rank() {
            return Err(format!("axis {axis} of shapes of {} axes", first.shape.rank()));
        }
        let mut extent = 0;
        for ty in x {
            if !ty.dtype.is_float() || ty.dtype != first.dtype {
                return Err(format!("needs floats of one type, not {} and {}", first.dtype, ty.dtype));
            }
            if ty.shape.rank() != first.shape.rank() || ty.shape.with(axis, 1) != first.shape.with(axis, 1) {
                return Err(format!("{} and {} differ outside axis {axis}", first.shape, ty.shape));
            }
            extent += ty.shape[axis];
        }
        Ok(vec![first.with_shape(first.shape.with(axis, extent))])
    }

    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let Some(dy) = &dy[0] else { return Ok(vec![None; x.len()]) };
        let mut start = 0;
        let part = |x: &Var| {
            let range = start..start + x.shape()[self.axis];
            start = range.end;
            Some(dy.slice(self.axis, range))
        };
        Ok(x.iter().map(part).collect())
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], _: &[TensorType], to: &mut Form) -> Option<form::Results> {
        let values: Vec<_> = x.iter().map(|x| x.value).collect();
        form::only(to.node("Concat", &values, vec![("axis", form::Attribute::Int(form::int(self.axis)))]))
    }

    #[cfg(feature = "testing")]
    fn special() -> &'static [super::case::Special] {
        &[super::case::Special::AtBaseline]
    }

    #[cfg(feature = "testing")]
    fn cases() -> Vec<super::case::Case> {
        use super::case::Case;
        vec![
            Case::new(Self { axis: 0 }).input(&[3]).input(&[1]).input(&[4]),
            Case::new(Self { axis: 1 }).input(&[2, 3, 4]).input(&[2, 5, 4]),
            Case::new(Self { axis: 2 }).input(&[2, 1, 4]).input(&[2, 1, 1]).input(&[2, 1, 7]),
            Case::recorded("concat", &[&[3, 4], &[2, 3]], |x| Var::concat(&[&x[0].t(), &x[1].t()], 1).slice(0, 0..3))
                .expect_error(),
            Case::recorded("concat", &[&[3, 4], &[2, 4]], |x| Var::concat(&[&x[0].t(), &x[1].t()], 1)),
            // Operands that are stored in place by kernels, with and without elementwise work, and by elementwise work
            // alone. Leaves, and values with other readers, are copied.
            Case::recorded("concat", &[&[3, 4], &[4, 5]], |x| {
                let (product, t) = (x[0].matmul(&x[1]), x[0].tanh());
                let square = t.square();
                let other = (&x[0] * 2.0).matmul(&x[1]).sigmoid();
                Var::concat(&[&product, &x[0], &t, &square, &square.exp(), &other], 1).tanh()
            }),
            Case::recorded("concat", &[&[2, 8, 5, 6], &[16, 8, 3, 3]], |x| {
                let padded = super::Conv2dOptions { padding: [1, 1], ..super::Conv2dOptions::default() };
                let [y, z] = [&x[1], &(&x[1] * 0.5)].map(|w| x[0].conv2d(w, padded));
                Var::concat(&[&y, &x[0].tanh(), &x[0], &(z + 1.0).relu()], 1).square()
            }),
            Case::recorded("concat", &[&[2, 8, 3, 5]], |x| Var::concat(&[&x[0].tanh(), &x[0].exp()], 0).square()),
            // Kernels that store lines, with and without elementwise work.
            Case::recorded("concat", &[&[2, 8, 4, 6]], |x| {
                let pooled = |x: &Var| x.avg_pool2d([2, 2], [2, 2], [0, 0], true);
                Var::concat(&[&pooled(&x[0].tanh()), &pooled(&x[0]).exp()], 1).square()
            }),
            // An operand in bf16 whose lines are those of the image that it was reshaped from.
            Case::recorded("concat", &[&[2, 16, 4, 6], &[4, 8, 4, 6]], |x| {
                let [a, b] = [&x[0], &x[1]].map(|x| x.avg_pool2d([2, 2], [2, 2], [0, 0], true));
                Var::concat(&[&a.reshape([4, 8, 2, 3]).exp(), &b], 1).square()
            }),
            // Channels that divide into lines, and then a part of them.
            Case::new(Self { axis: 1 }).input(&[2, 8, 3, 5]).input(&[2, 24, 3, 5]).input(&[2, 16, 3, 5]),
            Case::recorded("concat", &[&[2, 8, 3, 5], &[2, 24, 3, 5]], |x| {
                let y = Var::concat(&[&x[0], &x[1].slice(1, 8..24), &x[0].tanh()], 1);
                Var::concat(&[&y, &y.slice(1, 8..16).square()], 1).sum_over(&[2])
            }),
        ]
    }
}

impl Kernel for Concat {
    fn reads_strided(&self, _: usize) -> bool {
        true
    }

    fn parts(&self, x: &[Shape], format: Format) -> Option<Vec<Layout>> {
        if !format.is_bf16() {
            return Some(parts(x, self.axis));
        }
        // For each pixel, the channels of one operand after those of the other.
        let pixels: Vec<_> = x.iter().map(|x| Shape::from([x.elements() / x[1], x[1]])).collect();
        Some(parts(&pixels, 1))
    }

    /// Concatenates channels, line by line.
    fn bf16(&self, x: &[TensorType], _: &[TensorType], caps: &Caps) -> Option<Bf16> {
        const OPERANDS: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
        let operands = OPERANDS.get(..x.len())?;
        let lines = x.iter().all(|ty| Channels::of(ty.shape).is_some());
        (caps.bf16 && self.axis == 1 && lines).then_some(Bf16 {
            innermost: Innermost::Channels,
            operands,
            stores: Stores::Words,
            wanted: false,
        })
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let shapes: Vec<_> = x.iter().map(|x| x.layout().shape()).collect();
        let y = y[0].floats();
        for (x, part) in x.iter().zip(parts(&shapes, self.axis)) {
            crate::kernel::native::copy_strided(x, y, &part);
        }
    }

    /// None: on GPUs, the program that computes an operand stores it in its part of the result, or the operand is
    /// copied there.
    fn variants(&self, _: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        Vec::new()
    }
}

/// The layout of each of these shapes in their concatenation along an axis.
fn parts(x: &[Shape], axis: usize) -> Vec<Layout> {
    let extent = x.iter().map(|shape| shape[axis]).sum();
    let whole = Layout::contiguous(x[0].with(axis, extent));
    let part = |start: &mut usize, shape: &Shape| {
        let part = whole.slice(axis, *start, shape[axis]);
        *start += shape[axis];
        Some(part)
    };
    x.iter().scan(0, part).collect()
}

impl Var {
    /// Concatenates values along an axis.
    ///
    /// # Panics
    ///
    /// Panics if `values` is empty, as there is no tape to record on then.
    #[doc(alias = "cat")]
    #[must_use]
    #[track_caller]
    pub fn concat(values: &[&Self], axis: usize) -> Self {
        let first = values.first().expect("`Var::concat` needs at least one value");
        first.tape().record(Concat { axis }.into(), values, Location::caller()).swap_remove(0)
    }
}
