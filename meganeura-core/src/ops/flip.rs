//! Reversal of axes.

use super::{Kernel, Primitive};
use crate::kernel::launch::{Argument, Caps, Launch, Variant, Workgroups, define};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::{Layout, Result, TensorType};

/// Reverses the elements along some axes. Shapes: `y` has that of `x`. Gradient: `dy` reversed.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Flip {
    /// In ascending order, without duplicates.
    pub(crate) axes: Vec<usize>,
}

impl Primitive for Flip {
    fn name(&self) -> &'static str {
        "flip"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let [x] = x else { return Err(format!("takes one operand, not {}", x.len())) };
        if let Some(axis) = self.axes.iter().find(|&&axis| axis >= x.shape.rank()) {
            return Err(format!("axis {axis} is out of range: the shape has {} axes", x.shape.rank()));
        }
        match self.axes.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("axis {} is named twice", pair[0])),
            None => Ok(vec![*x]),
        }
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], _: &[TensorType], to: &mut Form) -> Option<form::Results> {
        if self.axes.is_empty() {
            return form::only(x[0].value);
        }
        let mut each = |number: i64| to.ints(vec![number; self.axes.len()]);
        // From the last element backwards, past the first.
        let [start, end, step] = [-1, i64::MIN + 1, -1].map(&mut each);
        let axes = to.ints(form::ints(&self.axes));
        form::only(to.node("Slice", &[x[0].value, start, end, axes, step], Vec::new()))
    }
}

impl Kernel for Flip {
    fn reads_strided(&self, _: usize) -> bool {
        true
    }

    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let (from, dense) = (x[0].layout(), Layout::contiguous(x[0].layout().shape()));
        native::of_one_type!(x[0], y[0], |x, y| native::parallel(y, native::grain(8), &|first, y| {
            y.iter_mut().zip(first..).for_each(|(y, at)| *y = x[from.at(self.source(&dense, at))]);
        }));
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        let (layout, shape) = (x[0].layout, x[0].ty.shape);
        let mut place = vec![format!("{}u", layout.offset())];
        let mut below = shape.elements();
        for (axis, (&extent, &stride)) in shape.dims().iter().zip(layout.strides()).enumerate() {
            below /= extent;
            let number = format!("i / {below}u % {extent}u");
            let turned = if self.axes.contains(&axis) { format!("({extent}u - 1u - {number})") } else { number };
            place.push(format!("{turned} * {stride}u"));
        }
        let mut defines = define![N: shape.elements(), INSIDE: "true", VALUE: "Element()", ELEMENT: x[0].ty.dtype];
        defines.push(("IN_OFFSET", place.join(" + ")));
        let launch = Launch::new("pad", defines, (1, 1), Workgroups::of_elements(shape.elements()));
        vec![Variant::simple("element", launch.stores_through_epilogue())]
    }
}

impl Flip {
    /// The index of the operand's element that becomes element `at` of the result.
    fn source(&self, dense: &Layout, at: usize) -> usize {
        let turned = |&axis: &usize| {
            let (extent, stride): (usize, usize) = (dense.shape()[axis], dense.strides()[axis]);
            let number = at / stride % extent;
            // The change of the element's index, wrapping around below 0.
            ((extent - 1 - number) * stride).wrapping_sub(number * stride)
        };
        self.axes.iter().map(turned).fold(at, usize::wrapping_add)
    }
}
