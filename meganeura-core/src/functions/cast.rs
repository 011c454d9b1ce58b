//! Conversions between floats and integers for indexing.

use super::Vjp;
use crate::ops::cast::{ToFloat, ToIndex};
use crate::{DType, Precision, Result, Var};

impl Var {
    /// Converts these integers to floats. In single precision, those above 2²⁴ are rounded. Has no gradient.
    #[doc(alias = "float")]
    #[must_use]
    #[track_caller]
    pub fn to_float(&self) -> Self {
        let is_double = self.tape().device().precision().dtype() == DType::F64;
        self.record(ToFloat { precision: if is_double { Precision::Double } else { Precision::Full } }, &[self])
    }

    /// Converts these numbers to integers, rounded down, as indices for [`gather`](Self::gather) and similar
    /// operations.
    ///
    /// NaN and values outside `u32` become the largest `u32`, which is past the end of every axis. Has no gradient.
    #[doc(alias = "long")]
    #[must_use]
    #[track_caller]
    pub fn to_index(&self) -> Self {
        self.record(ToIndex, &[self])
    }
}

impl Vjp for ToFloat {
    fn vjp(&self, _x: &[Var], _y: &[Var], _dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        Ok(vec![None])
    }
}

impl Vjp for ToIndex {
    fn vjp(&self, _x: &[Var], _y: &[Var], _dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        Ok(vec![None])
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::functions::case::{Case, Tested};

    impl Tested for ToFloat {
        fn cases() -> Vec<Case> {
            // Multiplied by a float operand, since a case needs a gradient.
            let case = |shape: &[usize], classes, f: fn(&Var) -> Var| {
                Case::recorded("to_float", &[&[1]], move |x| &x[0] * f(&x[1]).to_float()).labels(shape, classes)
            };
            vec![
                case(&[1], 1, Var::clone),
                case(&[5, 67], 1 << 20, Var::clone),
                case(&[4, 6], 9, |x| x.slice(1, 1..4).t()),
            ]
        }
    }

    impl Tested for ToIndex {
        fn cases() -> Vec<Case> {
            let case = |shape: &[usize], f: fn(&Var) -> Var| {
                // Numbers below 0 become the largest integer.
                Case::recorded("to_index", &[shape], move |x| f(&x[0]).to_index().to_float() + &x[0] * 0.0).scale(100.0)
            };
            vec![case(&[1], Var::clone), case(&[5, 67], Var::clone), case(&[4, 4], |x| x.t())]
        }
    }
}
