//! Concatenation along an axis.

use std::borrow::Borrow;
use std::panic::Location;

use super::Vjp;
use super::axis::{Axis, axis};
use crate::ops::concat::Concat;
use crate::{Result, Var};

impl Var {
    /// Concatenates values along an axis: `&[&x, &y]`, or a `Vec` of values.
    ///
    /// # Panics
    ///
    /// Panics if `values` is empty, as there is no tape to record on then.
    #[doc(alias = "cat")]
    #[must_use]
    #[track_caller]
    pub fn concat(values: &[impl Borrow<Self>], axis: impl Axis) -> Self {
        let values: Vec<&Self> = values.iter().map(Borrow::borrow).collect();
        let first = values.first().expect("`Var::concat` needs at least one value");
        let axis = axis!(first, "concat", axis);
        first.tape().record(Concat { axis }.into(), &values, Location::caller()).swap_remove(0)
    }
}

impl Vjp for Concat {
    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let Some(dy) = &dy[0] else { return Ok(vec![None; x.len()]) };
        let mut start = 0;
        let part = |x: &Var| {
            let range = start..start + x.shape()[self.axis];
            start = range.end;
            Some(dy.slice(self.axis, range))
        };
        Ok(x.iter().map(part).collect())
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::functions::case::{Case, Special, Tested};
    use crate::ops::Conv2dOptions;

    impl Tested for Concat {
        fn special() -> &'static [Special] {
            &[Special::AtBaseline]
        }

        fn cases() -> Vec<Case> {
            vec![
                Case::new(Self { axis: 0 }).input(&[3]).input(&[1]).input(&[4]),
                Case::new(Self { axis: 1 }).input(&[2, 3, 4]).input(&[2, 5, 4]),
                Case::new(Self { axis: 2 }).input(&[2, 1, 4]).input(&[2, 1, 1]).input(&[2, 1, 7]),
                Case::recorded("concat", &[&[3, 4], &[2, 3]], |x| {
                    Var::concat(&[&x[0].t(), &x[1].t()], 1).slice(0, 0..3)
                })
                .expect_error(),
                Case::recorded("concat", &[&[3, 4], &[2, 4]], |x| Var::concat(&[&x[0].t(), &x[1].t()], 1)),
                // Operands that are stored in place by kernels, with and without elementwise work, and by elementwise
                // work alone. Leaves, and values with other readers, are copied.
                Case::recorded("concat", &[&[3, 4], &[4, 5]], |x| {
                    let (product, t) = (x[0].matmul(&x[1]), x[0].tanh());
                    let square = t.square();
                    let other = (&x[0] * 2.0).matmul(&x[1]).sigmoid();
                    Var::concat(&[&product, &x[0], &t, &square, &square.exp(), &other], 1).tanh()
                }),
                Case::recorded("concat", &[&[2, 8, 5, 6], &[16, 8, 3, 3]], |x| {
                    let padded = Conv2dOptions { padding: [1, 1], ..Conv2dOptions::default() };
                    let [y, z] = [&x[1], &(&x[1] * 0.5)].map(|w| x[0].conv2d(w, padded));
                    Var::concat(&[&y, &x[0].tanh(), &x[0], &(z + 1.0).relu()], 1).square()
                }),
                Case::recorded("concat", &[&[2, 8, 3, 5]], |x| Var::concat(&[&x[0].tanh(), &x[0].exp()], 0).square()),
                // Kernels that store lines, with and without elementwise work.
                Case::recorded("concat", &[&[2, 8, 4, 6]], |x| {
                    let pooled = |x: &Var| x.avg_pool2d([2, 2], [2, 2], [0, 0], true);
                    Var::concat(&[&pooled(&x[0].tanh()), &pooled(&x[0]).exp()], 1).square()
                }),
                // An operand in bf16 whose lines are those of the image that it was reshaped from.
                Case::recorded("concat", &[&[2, 16, 4, 6], &[4, 8, 4, 6]], |x| {
                    let [a, b] = [&x[0], &x[1]].map(|x| x.avg_pool2d([2, 2], [2, 2], [0, 0], true));
                    Var::concat(&[&a.reshape([4, 8, 2, 3]).exp(), &b], 1).square()
                }),
                // Channels that divide into lines, and then a part of them.
                Case::new(Self { axis: 1 }).input(&[2, 8, 3, 5]).input(&[2, 24, 3, 5]).input(&[2, 16, 3, 5]),
                Case::recorded("concat", &[&[2, 8, 3, 5], &[2, 24, 3, 5]], |x| {
                    let y = Var::concat(&[&x[0], &x[1].slice(1, 8..24), &x[0].tanh()], 1);
                    Var::concat(&[&y, &y.slice(1, 8..16).square()], 1).sum_over(&[2])
                }),
            ]
        }
    }
}
