//! The index of the largest or smallest element along an axis, which has no gradient.

use super::Vjp;
use super::axis::{Axis, axis};
use crate::ops::arg_reduce::ArgReduce;
use crate::{Result, Var};

impl Var {
    /// The index of the largest element along an axis, which is removed: `u32`. Of several largest elements, the first;
    /// NaN counts as the largest. Has no gradient.
    #[must_use]
    #[track_caller]
    pub fn argmax(&self, axis: impl Axis) -> Self {
        let axis = axis!(self, "argmax", axis);
        self.record(ArgReduce { axis, largest: true }, &[self])
    }

    /// The index of the smallest element along an axis, like [`argmax`](Self::argmax); NaN counts as the smallest.
    #[must_use]
    #[track_caller]
    pub fn argmin(&self, axis: impl Axis) -> Self {
        let axis = axis!(self, "argmin", axis);
        self.record(ArgReduce { axis, largest: false }, &[self])
    }
}

impl Vjp for ArgReduce {
    fn vjp(&self, _x: &[Var], _y: &[Var], _dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        Ok(vec![None])
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::functions::case::{Case, Tested};

    impl Tested for ArgReduce {
        fn cases() -> Vec<Case> {
            let case = |shape: &[usize], axis, largest, f: fn(&Var) -> Var| {
                // A case needs a gradient.
                Case::recorded(if largest { "argmax" } else { "argmin" }, &[shape], move |x| {
                    let numbers = f(&x[0]);
                    let index = if largest { numbers.argmax(axis) } else { numbers.argmin(axis) };
                    index.to_float() + x[0].sum() * 0.0
                })
            };
            let mut cases = Vec::new();
            for largest in [true, false] {
                cases.push(case(&[1], 0, largest, Var::clone));
                cases.push(case(&[7], 0, largest, Var::clone));
                cases.push(case(&[3, 5], 1, largest, Var::clone));
                cases.push(case(&[130, 3], 0, largest, Var::clone));
                cases.push(case(&[3, 77, 65], 1, largest, Var::clone));
                cases.push(case(&[2, 1030], 1, largest, Var::clone));
                // Long enough to be split, by rows and by columns, into parts of different lengths.
                cases.push(case(&[50_001], 0, largest, Var::clone));
                cases.push(case(&[33_001, 3], 0, largest, Var::clone));
                // Ties, within a part and across parts.
                cases.push(case(&[2, 20_011], 1, largest, |x| x.floor()));
                cases.push(case(&[5003, 5], 0, largest, |x| x.floor()));
                // Strided operands.
                cases.push(case(&[4, 6, 5], 2, largest, |x| x.permute(&[2, 0, 1])));
                cases.push(case(&[4, 6], 1, largest, |x| x.slice(1, 1..4).expand([3, 4, 3])));
            }
            cases
        }
    }
}
