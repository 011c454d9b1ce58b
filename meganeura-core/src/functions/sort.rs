//! Sorting along an axis.

use super::Vjp;
use super::axis::{Axis, axis};
use crate::ops::gather::Gather;
use crate::ops::sort::ArgSort;
use crate::{ErrorKind, Result, Var};

impl Var {
    /// The indices that sort this value along an axis, ascending or descending: `u32`, with the same shape.
    ///
    /// The sort is stable; NaN counts as the largest. Has no gradient.
    #[must_use]
    #[track_caller]
    pub fn argsort(&self, axis: impl Axis, descending: bool) -> Self {
        let axis = axis!(self, "argsort", axis);
        let kept = self.shape().dims().get(axis).copied().unwrap_or(1);
        self.record(ArgSort { axis, descending, kept }, &[self])
    }

    /// The sorted numbers along an axis, and their original indices: see [`argsort`](Self::argsort). The gradient goes
    /// back to these positions.
    #[must_use]
    #[track_caller]
    pub fn sort(&self, axis: impl Axis, descending: bool) -> (Self, Self) {
        let axis = axis!(self, "sort", axis, |refused| (refused.clone(), refused));
        let order = self.argsort(axis, descending);
        (self.record(Gather { axis, permutation: true }, &[self, &order]), order)
    }

    /// The `k` largest numbers along an axis in descending order, and their indices: `x [.., R, ..]` → `[.., k, ..]` of
    /// both.
    ///
    /// The order of equal numbers is kept; NaN counts as the largest. For the smallest numbers, negate. It is an error
    /// if `k` is 0 or exceeds the extent.
    #[must_use]
    #[track_caller]
    pub fn topk(&self, k: usize, axis: impl Axis) -> (Self, Self) {
        let axis = axis!(self, "topk", axis, |refused| (refused.clone(), refused));
        if let Some(&extent) = self.shape().dims().get(axis)
            && !(1..=extent).contains(&k)
        {
            let message = format!("the {k} largest of axis {axis}, which has {extent} elements");
            let refused = self.refuse("topk", ErrorKind::Argument, message);
            return (refused.clone(), refused);
        }
        let order = self.record(ArgSort { axis, descending: true, kept: k }, &[self]);
        (self.record(Gather { axis, permutation: false }, &[self, &order]), order)
    }
}

impl Vjp for ArgSort {
    fn vjp(&self, _x: &[Var], _y: &[Var], _dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        Ok(vec![None])
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::functions::case::{Case, Tested};

    impl Tested for ArgSort {
        fn cases() -> Vec<Case> {
            let case = |shape: &[usize], axis, descending| {
                Case::recorded("argsort", &[shape], move |x| x[0].sort(axis, descending).0)
            };
            let mut cases = vec![
                case(&[1], 0, false),
                case(&[3, 5], 1, true),
                case(&[67, 4], 0, false),
                // Several blocks, the last one short; runs without a partner to merge with.
                case(&[2, 300, 3], 1, false),
                case(&[2, 515], 1, true),
                case(&[1, 1030], 1, false),
            ];
            // The first ones of one block, of several, and with many candidates.
            let firsts: [(&[usize], _, _); 4] =
                [(&[3, 5], 1, 2), (&[67, 4], 0, 1), (&[2, 600, 3], 1, 7), (&[2, 1030], 1, 300)];
            for (shape, axis, kept) in firsts {
                cases.push(Case::recorded("argsort", &[shape], move |x| x[0].topk(kept, axis).0));
            }
            // Equal numbers stay in order: their indices are compared.
            for descending in [false, true] {
                cases.push(Case::recorded("argsort", &[&[2, 700]], move |x| {
                    let order = (&x[0] * 2.0).floor().argsort(1, descending);
                    order.to_float() + &x[0] * 0.0
                }));
            }
            cases
        }
    }
}
