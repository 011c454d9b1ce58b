//! The indices of elements along an axis.

use super::softmax::around;
use super::{Kernel, Primitive};
use crate::kernel::launch::{Argument, Caps, Launch, Variant, Workgroups, define};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::{Precision, Result, Shape, TensorType};

/// The index of each element along an axis: `y[…, i, …] = i`
///
/// Shapes: no operand → the given shape. Has no gradient.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Iota {
    pub(crate) axis: usize,
    pub(crate) shape: Shape,
    pub(crate) precision: Precision,
}

impl Primitive for Iota {
    fn name(&self) -> &'static str {
        "iota"
    }

    fn outputs(&self, _: &[TensorType]) -> Result<Vec<TensorType>, String> {
        match self.shape.dims().get(self.axis) {
            None => Err(format!("axis {} is out of range: the shape has {} axes", self.axis, self.shape.rank())),
            Some(_) if self.shape.elements() == 0 => Err(format!("{} has no elements", self.shape)),
            Some(extent) if *extent > 1 << 24 && self.precision != Precision::Double => {
                Err(format!("an f32 cannot count the {extent} elements of axis {}", self.axis))
            }
            Some(_) => Ok(vec![TensorType::new(self.precision.dtype(), self.shape)]),
        }
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, _: &[form::Operand], y: &[TensorType], to: &mut Form) -> Option<form::Results> {
        let extent = self.shape[self.axis];
        let mut line = vec![1; self.shape.rank()];
        line[self.axis] = extent;
        let numbers = (0..extent).map(|i| i as f64).collect();
        let line = to.floats(y[0].with_shape(&line[..]), numbers);
        let shape = to.ints(form::ints(self.shape.dims()));
        form::only(to.node("Expand", &[line, shape], Vec::new()))
    }
}

impl Kernel for Iota {
    fn reads_strided(&self, _: usize) -> bool {
        true
    }

    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, _: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let (_, extent, inner) = around(self.shape, self.axis);
        native::parallel(y[0].floats(), native::grain(1), &|first, y| {
            y.iter_mut().zip(first..).for_each(|(y, at)| *y = native::real(at / inner % extent));
        });
    }

    fn variants(&self, _: &[Argument], y: &[TensorType], _: &Caps) -> Vec<Variant> {
        let ((_, extent, inner), elements) = (around(self.shape, self.axis), y[0].shape.elements());
        let defines = define![N: elements, EXTENT: extent, INNER: inner];
        let launch = Launch::new(self.name(), defines, (0, 1), Workgroups::of_elements(elements));
        vec![Variant::simple("element", launch.stores_through_epilogue())]
    }
}
