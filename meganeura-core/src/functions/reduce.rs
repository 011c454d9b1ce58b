//! Reductions over any axes: sum, maximum and minimum; and the mean made of them.

use super::Vjp;
use super::axis::{Axis, axes};
use crate::ops::reduce::{Fold, Reduce, as_f64};
use crate::{Result, Shape, Var};

impl Var {
    #[track_caller]
    fn reduce(&self, fold: Fold, axes: &[usize]) -> Self {
        let mut axes = axes.to_vec();
        axes.sort_unstable();
        self.record(Reduce { fold, axes }, &[self])
    }

    #[track_caller]
    pub(crate) fn drop_axes(&self, axes: &[usize]) -> Self {
        let shape = self.shape();
        let dims: Vec<_> = (0..shape.rank()).filter(|axis| !axes.contains(axis)).map(|axis| shape[axis]).collect();
        self.reshape(Shape::new(&dims))
    }

    pub(crate) fn all_axes(&self) -> Vec<usize> {
        (0..self.shape().rank()).collect()
    }

    pub(crate) fn count(&self, axes: &[usize]) -> usize {
        axes.iter().map(|&axis| self.shape().dims().get(axis).copied().unwrap_or(1)).product()
    }
}

macro_rules! reductions {
    ($($what:literal $all:ident $over:ident $keep:ident |$x:ident, $axes:ident| $e:expr;)+) => {
        impl Var {
            $(
                #[doc = concat!("The ", $what, " of all elements: a scalar.")]
                #[must_use]
                #[track_caller]
                pub fn $all(&self) -> Self {
                    self.$over(&self.all_axes())
                }

                #[doc = concat!("The ", $what, " over some axes, which are dropped from the result.")]
                #[must_use]
                #[track_caller]
                pub fn $over(&self, axes: &[impl Axis]) -> Self {
                    let axes = &axes!(self, stringify!($all), axes)[..];
                    self.$keep(axes).drop_axes(axes)
                }

                #[doc = concat!("The ", $what, " over some axes, which keep extent 1.")]
                #[must_use]
                #[track_caller]
                pub fn $keep(&self, $axes: &[impl Axis]) -> Self {
                    let ($x, $axes) = (self, &axes!(self, stringify!($all), $axes)[..]);
                    $e
                }
            )+
        }
    };
}

reductions! {
    "sum" sum sum_over sum_keep |x, axes| x.reduce(Fold::Sum, axes);
    "maximum" max max_over max_keep |x, axes| x.reduce(Fold::Max, axes);
    "minimum" min min_over min_keep |x, axes| x.reduce(Fold::Min, axes);
    "mean" mean mean_over mean_keep |x, axes| x.sum_keep(axes).scale(1.0 / as_f64(x.count(axes)));
}

impl Vjp for Reduce {
    fn vjp(&self, x: &[Var], y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let Some(dy) = &dy[0] else { return Ok(vec![None]) };
        let shape = x[0].shape();
        Ok(vec![Some(match self.fold {
            Fold::Sum => dy.expand(shape),
            Fold::Max | Fold::Min => {
                let attains = x[0].eq(y[0].expand(shape));
                let count = attains.record(Self { fold: Fold::Sum, ..self.clone() }, &[&attains]);
                attains * (dy / count).expand(shape)
            }
        })])
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::functions::case::{Case, Tested};

    impl Tested for Reduce {
        fn cases() -> Vec<Case> {
            let case = |fold, axes: &[usize], shape: &[usize]| {
                // Sums of K terms of size 1 lose about √K units in the last place.
                Case::new(Self { fold, axes: axes.to_vec() }).input(shape).tolerance(1e-5)
            };
            let mut cases = Vec::new();
            for fold in [Fold::Sum, Fold::Max, Fold::Min] {
                cases.push(case(fold, &[0], &[7]));
                cases.push(case(fold, &[1], &[3, 5]));
                cases.push(case(fold, &[0], &[130, 3]));
                cases.push(case(fold, &[0, 2, 3], &[3, 5, 4, 7]));
                cases.push(case(fold, &[1, 3], &[2, 3, 1, 5]));
                cases.push(case(fold, &[0, 1], &[1, 1]));
                cases.push(case(fold, &[1], &[2, 1030]));
            }
            cases.push(case(Fold::Sum, &[], &[2, 3]));
            // Long enough to be split, by rows and by columns, into parts of different lengths. The serial form adds
            // terms one by one to a sum of size √K, each with a rounding error of that size.
            for fold in [Fold::Sum, Fold::Max] {
                cases.push(case(fold, &[0], &[50_001]).tolerance(1e-4));
                cases.push(case(fold, &[0, 2], &[3, 2, 6007]));
                cases.push(case(fold, &[0], &[3001, 5]));
                cases.push(case(fold, &[0], &[301, 70]));
            }
            cases.push(case(Fold::Sum, &[0], &[33_001, 3]));
            cases.push(case(Fold::Min, &[1], &[3, 77, 65]));
            // Channels of images that divide into lines: squared on the way, and stored as lines; in one and several
            // parts.
            for shape in [[2, 24, 6, 5], [2, 40, 33, 31]] {
                cases.push(Case::recorded("sum", &[&shape], |x| x[0].square().sum_over(&[0, 2, 3])));
                cases.push(Case::recorded("sum", &[&shape], |x| {
                    let held = x[0].square();
                    held.sum_over(&[0, 2, 3]) + held.max_over(&[0, 2, 3])
                }));
            }
            cases.push(Case::recorded("sum", &[&[4, 6, 5]], |x| x[0].permute(&[2, 0, 1]).sum_over(&[0, 2])));
            cases.push(Case::recorded("sum", &[&[4, 6]], |x| x[0].slice(1, 1..4).expand([3, 4, 3]).sum_over(&[1])));
            cases
        }
    }
}
