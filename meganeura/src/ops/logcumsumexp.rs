//! Logarithms of cumulative sums of exponentials along an axis.

use super::scan::{self, Parts};
use super::softmax::around;
use super::{Kernel, Primitive};
use crate::kernel::launch::{Argument, Caps, Variant};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Attribute, Form, Value};
use crate::tape::Var;
use crate::{Result, TensorType};

/// The logarithm of cumulative sums of exponentials along an axis: `y[…, k, …] = ln Σ_{l ≤ k} exp(x[…, l, …])`
///
/// Shapes: `y` has that of `x`. Gradient: `dx_l = exp(x_l − y_l)·s_l` with `s_l = Σ_{k ≥ l} dy_k·exp(y_l − y_k)`. No
/// exponent is positive, because `y` never falls along the axis.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LogCumsumExp {
    axis: usize,
}

impl Primitive for LogCumsumExp {
    fn name(&self) -> &'static str {
        "logcumsumexp"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        scan::outputs(x, self.axis)
    }

    fn vjp(&self, x: &[Var], y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let Some(dy) = &dy[0] else { return Ok(vec![None]) };
        let (x, y, axis, len) = (&x[0], &y[0], self.axis, x[0].shape()[self.axis]);
        // The sums of 1, 2, 4, … terms, each from the two halves of its terms.
        let (mut sum, mut terms) = (dy.clone(), 1);
        while terms < len {
            let later = ratio(&y.slice(axis, 0..len - terms), &y.slice(axis, terms..len)) * sum.slice(axis, terms..len);
            let longer = sum.slice(axis, 0..len - terms) + later;
            sum = Var::concat(&[&longer, &sum.slice(axis, len - terms..len)], axis);
            terms *= 2;
        }
        Ok(vec![Some(ratio(x, y) * sum)])
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

    #[cfg(feature = "testing")]
    fn cases() -> Vec<super::case::Case> {
        use super::case::{Array, Case};
        let case = |shape: &[usize], axis| {
            let naive = move |x: &[Array]| {
                let (_, len, inner) = around(x[0].shape, axis);
                let mut y = x[0].clone();
                for (at, y) in y.data.iter_mut().enumerate() {
                    let k = at / inner % len;
                    *y = (0..=k).map(|l| x[0].data[at - (k - l) * inner].exp()).sum::<f64>().ln();
                }
                vec![y]
            };
            // One term after the other rounds to a sum of size √K; shaders' exp may be several units off.
            Case::new(Self { axis }).input(shape).scale(3.0).naive(naive).tolerance(2e-5)
        };
        vec![
            case(&[1], 0),
            case(&[7], 0),
            case(&[3, 5], 1),
            case(&[2, 67, 3], 1),
            case(&[600, 2], 0),
            case(&[2, 515], 1),
            // Terms of which one alone would overflow, and sums that would underflow.
            Case::recorded("logcumsumexp", &[&[3, 40]], |x| (&x[0] * 100.0).logcumsumexp(1) * 0.01),
            // In parts.
            Case::recorded("logcumsumexp", &[&[2, 5003]], |x| x[0].logcumsumexp(1)),
        ]
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
        (peak, mass + (x - peak).exp())
    } else {
        // A larger term, or NaN, which the mass keeps.
        (x, mass * (peak - x).exp() + T::ONE)
    }
}

/// `exp(a − b)`, 1 where the two are equal: infinities, too.
fn ratio(a: &Var, b: &Var) -> Var {
    a.eq(b).where_cond(&a.constant(0.0), &(a - b)).exp()
}

impl Var {
    /// Logarithms of cumulative sums of exponentials along an axis, like `torch.logcumsumexp`:
    /// `y[…, k, …] = ln Σ_{l ≤ k} exp(x[…, l, …])`. Nothing overflows. NaN makes all later results NaN; −∞ adds
    /// nothing.
    ///
    /// Shapes: `y` has that of `x`. An axis out of range, or an operand of indices, is an error.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let x = Tape::new(&device).input(&Tensor::from_slice(&device, [3], &[1000.0, f32::NEG_INFINITY, 1000.0])?);
    /// let y = x.logcumsumexp(0).to_vec()?;
    /// assert_eq!(y, [1000.0, 1000.0, 1000.0 + 2f32.ln()]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn logcumsumexp(&self, axis: usize) -> Self {
        let Some(parts) = Parts::of(self, axis) else { return self.record(LogCumsumExp { axis }, &[self]) };
        let within = parts.split(self).logcumsumexp(axis + 1);
        let before = parts.totals(&within).logcumsumexp(axis);
        let rest = parts.rest(&within);
        // ln(eᵃ + eᵇ) = max(a, b) + ln(1 + e^−|a − b|)
        let gap = rest.eq(&before).where_cond(&rest.constant(0.0), &-(&rest - &before).abs());
        parts.join(&within, &(rest.maximum(&before) + gap.softplus()))
    }
}
