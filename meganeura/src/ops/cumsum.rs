//! Cumulative sums along an axis.

use super::scan::{self, Parts};
use super::softmax::around;
use super::{Kernel, Primitive};
use crate::kernel::launch::{Argument, Caps, Variant};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::tape::Var;
use crate::{Result, TensorType};

/// Cumulative sums along an axis: `y[…, k, …] = Σ_{l ≤ k} x[…, l, …]`, or over `l ≥ k` with `reverse`
///
/// Shapes: `y` has that of `x`. Gradient: the cumulative sums of `dy` from the other end.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Cumsum {
    axis: usize,
    reverse: bool,
}

impl Primitive for Cumsum {
    fn name(&self) -> &'static str {
        "cumsum"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        scan::outputs(x, self.axis)
    }

    fn vjp(&self, _x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let back = Self { reverse: !self.reverse, ..self.clone() };
        Ok(vec![dy[0].as_ref().map(|dy| dy.record(back, &[dy]))])
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], _: &[TensorType], to: &mut Form) -> Option<form::Results> {
        let axis = to.int(form::int(self.axis));
        let reverse = vec![("reverse", form::Attribute::Int(i64::from(self.reverse)))];
        form::only(to.node("CumSum", &[x[0].value, axis], reverse))
    }

    #[cfg(feature = "testing")]
    fn cases() -> Vec<super::case::Case> {
        use super::case::Case;
        let case = |shape: &[usize], axis, reverse| {
            // Terms are added one by one to a sum of size √K, each with a rounding error.
            Case::new(Self { axis, reverse }).input(shape).tolerance(2e-5)
        };
        vec![
            case(&[1], 0, false),
            case(&[7], 0, true),
            case(&[3, 5], 1, false),
            case(&[2, 67, 3], 1, true),
            case(&[600, 2], 0, false),
            case(&[2, 515], 1, true),
            // Long enough for parts.
            Case::recorded("cumsum", &[&[2, 5003]], |x| x[0].cumsum(1)),
        ]
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

impl Var {
    /// Cumulative sums along an axis: `y[…, k, …] = Σ_{l ≤ k} x[…, l, …]`. The shape is unchanged.
    #[must_use]
    #[track_caller]
    pub fn cumsum(&self, axis: usize) -> Self {
        let Some(parts) = Parts::of(self, axis) else {
            return self.record(Cumsum { axis, reverse: false }, &[self]);
        };
        let within = parts.split(self).cumsum(axis + 1);
        let rest = parts.rest(&within) + parts.totals(&within).cumsum(axis);
        parts.join(&within, &rest)
    }
}
