//! Softmax and its logarithm along an axis.

use super::Vjp;
use super::axis::{Axis, axis};
use crate::ops::softmax::Softmax;
use crate::{Result, Var};

impl Var {
    /// The softmax along an axis: `eˣ / Σ eˣ`. The shape is unchanged; an axis out of range is an error. A row of −∞
    /// alone gives NaN, as in PyTorch; [`attention`](Self::attention) gives 0 there.
    #[must_use]
    #[track_caller]
    pub fn softmax(&self, axis: impl Axis) -> Self {
        let axis = axis!(self, "softmax", axis);
        self.record(Softmax { axis, log: false, masked: false }, &[self])
    }

    /// The softmax of scores along the last axis, with 0 in rows of −∞.
    #[track_caller]
    pub(super) fn weights(&self) -> Self {
        self.record(Softmax { axis: self.shape().rank() - 1, log: false, masked: true }, &[self])
    }

    /// The logarithm of the softmax along an axis: `x − ln Σ eˣ`. The shape is unchanged; an axis out of range is an
    /// error.
    #[must_use]
    #[track_caller]
    pub fn log_softmax(&self, axis: impl Axis) -> Self {
        let axis = axis!(self, "log_softmax", axis);
        self.record(Softmax { axis, log: true, masked: false }, &[self])
    }
}

impl Vjp for Softmax {
    fn vjp(&self, _x: &[Var], y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let (y, Some(dy)) = (&y[0], &dy[0]) else { return Ok(vec![None]) };
        Ok(vec![Some(match self.log {
            true => dy - y.exp() * dy.sum_keep(&[self.axis]),
            false => y * (dy - (dy * y).sum_keep(&[self.axis])),
        })])
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::Shape;
    use crate::functions::case::{Array, Case, Tested};
    use crate::ops::softmax::around;

    impl Tested for Softmax {
        fn cases() -> Vec<Case> {
            let naive = |x: &Array, axis, log: bool| {
                let (_, len, inner) = around(x.shape, axis);
                let mut y = x.clone();
                for (at, y) in y.data.iter_mut().enumerate() {
                    let first = at / (len * inner) * len * inner + at % inner;
                    let total: f64 = (0..len).map(|l| x.data[first + l * inner].exp()).sum();
                    *y = if log { *y - total.ln() } else { y.exp() / total };
                }
                vec![y]
            };
            let case = |x: &[usize], axis, log| {
                let case = Case::new(Self { axis, log, masked: false }).input(x).tolerance(1e-5).scale(3.0);
                // Quadratic in the length of a row, so not for long ones.
                if around(Shape::new(x), axis).1 > 1000 { case } else { case.naive(move |a| naive(&a[0], axis, log)) }
            };
            let shapes: [(&[usize], usize); 12] = [
                (&[1, 1], 1),
                (&[3, 5], 1),
                (&[4, 7, 3], 1),
                (&[6, 2], 0),
                (&[2, 515], 1),
                (&[131, 10], 1),
                // more than 32 elements, some distance apart
                (&[2, 45, 3, 5], 1),
                (&[70, 81], 0),
                // in lines of eight
                (&[5, 24], 1),
                (&[3, 2, 520], 2),
                // long enough to be split
                (&[2, 17_001], 1),
                (&[1, 1100, 5], 1),
            ];
            let mut cases: Vec<_> =
                shapes.iter().flat_map(|&(x, axis)| [case(x, axis, false), case(x, axis, true)]).collect();
            // Row 1 is hidden. In the others, so are some elements.
            let masked: [&[usize]; 4] = [&[3, 1], &[3, 70], &[2, 3, 24], &[2, 17_001]];
            cases.extend(masked.map(|shape| {
                Case::recorded("softmax", &[shape], move |x| {
                    let (tape, last) = (x[0].tape(), shape.len() - 1);
                    let place = |axis: usize| tape.iota([shape[axis]], 0);
                    let some = place(last).gt(tape.scalar(0.0)) * place(last).lt(tape.scalar(20.0));
                    let hidden = place(last - 1).eq(tape.scalar(1.0)).unsqueeze(1) + some;
                    hidden.where_cond(&tape.scalar(f64::NEG_INFINITY), &x[0]).weights()
                })
            }));
            cases
        }
    }
}
