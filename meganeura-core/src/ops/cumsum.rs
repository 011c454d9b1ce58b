//! Cumulative sums along an axis.

use super::scan;
use super::softmax::around;
use super::{Kernel, Primitive};
use crate::kernel::launch::{Argument, Caps, Variant};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::{Result, TensorType};

/// Cumulative sums along an axis: `y[…, k, …] = Σ_{l ≤ k} x[…, l, …]`, or over `l ≥ k` with `reverse`
///
/// Shapes: `y` has that of `x`. Gradient: the cumulative sums of `dy` from the other end.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Cumsum {
    pub(crate) axis: usize,
    pub(crate) reverse: bool,
}

impl Primitive for Cumsum {
    fn name(&self) -> &'static str {
        "cumsum"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        scan::outputs(x, self.axis)
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], _: &[TensorType], to: &mut Form) -> Option<form::Results> {
        let axis = to.int(form::int(self.axis));
        let reverse = vec![("reverse", form::Attribute::Int(i64::from(self.reverse)))];
        form::only(to.node("CumSum", &[x[0].value, axis], reverse))
    }
}

impl Kernel for Cumsum {
    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let (_, len, inner) = around(x[0].layout().shape(), self.axis);
        let x = x[0].floats();
        native::parallel(y[0].floats(), len * inner, &|first, y| {
            y.copy_from_slice(&x[first..][..y.len()]);
            for step in 1..len {
                let (at, before) = if self.reverse { (len - 1 - step, len - step) } else { (step, step - 1) };
                let (low, high) = y.split_at_mut(at.max(before) * inner);
                let (low, high) = (&mut low[at.min(before) * inner..][..inner], &mut high[..inner]);
                let (to, from) = if self.reverse { (low, high) } else { (high, low) };
                to.iter_mut().zip(from).for_each(|(to, from)| *to += *from);
            }
        });
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        scan::variants((self.name(), 1), x[0].ty, self.axis, self.reverse)
    }
}
