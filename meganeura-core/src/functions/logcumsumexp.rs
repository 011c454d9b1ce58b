//! Logarithms of cumulative sums of exponentials along an axis.

use super::Vjp;
use super::axis::{Axis, axis};
use super::scan::Parts;
use crate::ops::logcumsumexp::LogCumsumExp;
use crate::{Result, Var};

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
    pub fn logcumsumexp(&self, axis: impl Axis) -> Self {
        let axis = axis!(self, "logcumsumexp", axis);
        let Some(parts) = Parts::of(self, axis) else { return self.record(LogCumsumExp { axis }, &[self]) };
        let within = parts.split(self).logcumsumexp(axis + 1);
        let before = parts.totals(&within).logcumsumexp(axis);
        let rest = parts.rest(&within);
        // ln(eᵃ + eᵇ) = max(a, b) + ln(1 + e^−|a − b|)
        let gap = rest.eq(&before).where_cond(&rest.constant(0.0), &-(&rest - &before).abs());
        parts.join(&within, &(rest.maximum(&before) + gap.softplus()))
    }
}

impl Vjp for LogCumsumExp {
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
}

/// `exp(a − b)`, 1 where the two are equal: infinities, too.
fn ratio(a: &Var, b: &Var) -> Var {
    a.eq(b).where_cond(&a.constant(0.0), &(a - b)).exp()
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::functions::case::{Array, Case, Tested};
    use crate::ops::softmax::around;

    impl Tested for LogCumsumExp {
        fn cases() -> Vec<Case> {
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
}
