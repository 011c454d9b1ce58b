//! Cumulative sums along an axis.

use super::Vjp;
use super::axis::{Axis, axis};
use super::scan::Parts;
use crate::ops::cumsum::Cumsum;
use crate::{Result, Var};

impl Var {
    /// Cumulative sums along an axis: `y[…, k, …] = Σ_{l ≤ k} x[…, l, …]`. The shape is unchanged.
    #[must_use]
    #[track_caller]
    pub fn cumsum(&self, axis: impl Axis) -> Self {
        let axis = axis!(self, "cumsum", axis);
        let Some(parts) = Parts::of(self, axis) else {
            return self.record(Cumsum { axis, reverse: false }, &[self]);
        };
        let within = parts.split(self).cumsum(axis + 1);
        let rest = parts.rest(&within) + parts.totals(&within).cumsum(axis);
        parts.join(&within, &rest)
    }
}

impl Vjp for Cumsum {
    fn vjp(&self, _x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let back = Self { reverse: !self.reverse, ..self.clone() };
        Ok(vec![dy[0].as_ref().map(|dy| dy.record(back, &[dy]))])
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::functions::case::{Case, Tested};

    impl Tested for Cumsum {
        fn cases() -> Vec<Case> {
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
}
