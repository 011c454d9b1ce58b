//! Logarithms of cumulative sums of exponentials along an axis.

use pulp::Scalar;

use super::scan;
use super::softmax::around;
use super::{Kernel, Primitive};
use crate::kernel::launch::{Argument, Caps, Variant};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Attribute, Form, Value};
use crate::{Result, TensorType};

/// The logarithm of cumulative sums of exponentials along an axis: `y[…, k, …] = ln Σ_{l ≤ k} exp(x[…, l, …])`
///
/// Shapes: `y` has that of `x`. Gradient: `dx_l = exp(x_l − y_l)·s_l` with `s_l = Σ_{k ≥ l} dy_k·exp(y_l − y_k)`. No
/// exponent is positive, because `y` never falls along the axis.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LogCumsumExp {
    pub(crate) axis: usize,
}

impl Primitive for LogCumsumExp {
    fn name(&self) -> &'static str {
        "logcumsumexp"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        if let Some(odd) = x.iter().find(|x| !x.dtype.is_float()) {
            return Err(format!("needs floats, the operand holds {}", odd.dtype));
        }
        scan::outputs(x, self.axis)
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], y: &[TensorType], to: &mut Form) -> Option<form::Results> {
        let (axis, len) = (self.axis, y[0].shape[self.axis]);
        let slice = |to: &mut Form, x: Value, start: usize, end: usize| {
            let [start, end, axis] = [start, end, axis].map(|number| to.ints(vec![form::int(number)]));
            to.node("Slice", &[x, start, end, axis], Vec::new())
        };
        // As the gradient: the sums of 1, 2, 4, … terms.
        let (mut sum, mut terms) = (x[0].value, 1);
        while terms < len {
            let first = slice(to, sum, 0, terms);
            let [earlier, later] = [(0, len - terms), (terms, len)].map(|(start, end)| slice(to, sum, start, end));
            let [peak, least] = ["Max", "Min"].map(|op| to.node(op, &[earlier, later], Vec::new()));
            let gap = to.node("Sub", &[least, peak], Vec::new());
            // Equal infinities have a gap of 0.
            let is_equal = to.node("Equal", &[earlier, later], Vec::new());
            let zero = to.float(y[0].dtype, 0.0);
            let gap = to.node("Where", &[is_equal, zero, gap], Vec::new());
            let above = to.node("Softplus", &[gap], Vec::new());
            let longer = to.node("Add", &[peak, above], Vec::new());
            sum = to.node("Concat", &[first, longer], vec![("axis", Attribute::Int(form::int(axis)))]);
            terms *= 2;
        }
        form::only(sum)
    }
}

impl Kernel for LogCumsumExp {
    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let (_, len, inner) = around(x[0].layout().shape(), self.axis);
        let x = x[0].floats();
        native::parallel(y[0].floats(), len * inner, &|first, y| {
            let x = &x[first..][..y.len()];
            for column in 0..inner {
                let (mut peak, mut mass) = (T::NEG_INFINITY, T::ZERO);
                for at in (column..y.len()).step_by(inner) {
                    (peak, mass) = with(peak, mass, x[at]);
                    y[at] = peak + mass.ln();
                }
            }
        });
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        scan::variants((self.name(), 2), x[0].ty, self.axis, false)
    }
}

/// `mass·exp(peak) + exp(x)`, as a new peak and mass.
#[inline(always)]
fn with<T: Real>(peak: T, mass: T, x: T) -> (T, T) {
    if x == peak {
        // Equal infinities have no difference.
        (peak, mass + T::ONE)
    } else if x < peak {
        (peak, mass + (x - peak).exp::<Scalar>())
    } else {
        // A larger term, or NaN, which the mass keeps.
        (x, mass * (peak - x).exp::<Scalar>() + T::ONE)
    }
}
