//! Padding with a constant.

use super::{Kernel, Primitive};
use crate::kernel::launch::{Argument, Caps, Launch, Variant, Workgroups, define, literal_of};
use crate::kernel::native::{self, Element, OutView, Real, Scratch, View};
use crate::ops::Exact;
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::{Layout, Result, Shape, TensorType};

/// Surrounds the operand with a constant.
///
/// Shapes: each axis grows by its two widths. Gradient: `dy` without the margins.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Pad {
    /// The elements before and after, for each axis.
    pub(crate) widths: Vec<(usize, usize)>,
    pub(crate) value: Exact,
}

impl Pad {
    fn output(&self, x: Shape) -> Shape {
        self.widths.iter().enumerate().fold(x, |shape, (axis, (lo, hi))| shape.with(axis, shape[axis] + lo + hi))
    }

    /// The layout of the operand's elements in the result.
    fn inside(&self, x: Shape) -> Layout {
        let whole = Layout::contiguous(self.output(x));
        self.widths.iter().enumerate().fold(whole, |layout, (axis, (lo, _))| layout.slice(axis, *lo, x[axis]))
    }
}

impl Primitive for Pad {
    fn name(&self) -> &'static str {
        "pad"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        if self.widths.len() != x[0].shape.rank() {
            return Err(format!("{} pairs of widths for {} axes", self.widths.len(), x[0].shape.rank()));
        }
        let dtype = x[0].dtype;
        if !dtype.is_float() && dtype.integer(self.value.0).is_none() {
            return Err(format!("the value must fit an {dtype}, it is {}", self.value.0));
        }
        if self.value.0.is_finite() && !(self.value.0 as f32).is_finite() {
            return Err(format!("the value must fit an f32, it is {}", self.value.0));
        }
        let mut extents = self.widths.iter().zip(x[0].shape.dims());
        if extents.any(|(&(lo, hi), &extent)| lo.checked_add(hi).is_none_or(|both| both.checked_add(extent).is_none()))
        {
            return Err(format!("the widths {:?} are too large", self.widths));
        }
        Ok(vec![x[0].with_shape(self.output(x[0].shape))])
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], y: &[TensorType], to: &mut Form) -> Option<form::Results> {
        let (before, after) = (self.widths.iter().map(|(lo, _)| *lo), self.widths.iter().map(|(_, hi)| *hi));
        let widths = to.ints(before.chain(after).map(form::int).collect());
        let value = to.number_as(y[0].dtype, self.value.0);
        form::only(to.node("Pad", &[x[0].value, widths, value], Vec::new()))
    }
}

impl Kernel for Pad {
    fn reads_strided(&self, _: usize) -> bool {
        true
    }

    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let inside = self.inside(x[0].layout().shape());
        native::of_one_type!(x[0], y[0], |from, y| {
            y.fill(Element::from_f64(self.value.0));
            native::copy_strided(from, x[0].layout(), y, &inside);
        });
    }

    fn variants(&self, x: &[Argument], y: &[TensorType], _: &Caps) -> Vec<Variant> {
        let (shape, out) = (x[0].ty.shape, y[0].shape);
        let (mut inside, mut at) = (Vec::new(), vec![format!("{}u", x[0].layout.offset())]);
        let mut below = out.elements();
        for (axis, (lo, _)) in self.widths.iter().enumerate() {
            below /= out[axis];
            // Below `lo` the difference wraps around, past every extent.
            let index = format!("((i / {below}u) % {}u - {lo}u)", out[axis]);
            inside.push(format!("{index} < {}u", shape[axis]));
            at.push(format!("{index} * {}u", x[0].layout.strides()[axis]));
        }
        let dtype = x[0].ty.dtype;
        let mut defines = define![N: out.elements(), INSIDE: inside.join(" && "), ELEMENT: dtype];
        defines.extend([("IN_OFFSET", at.join(" + ")), ("VALUE", literal_of(dtype, self.value.0))]);
        vec![Variant::simple(
            "gather",
            Launch::new(self.name(), defines, (1, 1), Workgroups::of_elements(out.elements()))
                .stores_through_epilogue(),
        )]
    }
}
