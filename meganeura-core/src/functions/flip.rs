//! Reversal of axes.

use super::Vjp;
use super::axis::{Axis, axes};
use crate::ops::flip::Flip;
use crate::{Result, Var};

impl Var {
    /// Reverses the elements along some axes. An axis out of range, or named twice, is an error.
    #[must_use]
    #[track_caller]
    pub fn flip(&self, axes: &[impl Axis]) -> Self {
        let axes = &axes!(self, "flip", axes)[..];
        let mut axes = axes.to_vec();
        axes.sort_unstable();
        self.record(Flip { axes }, &[self])
    }
}

impl Vjp for Flip {
    fn vjp(&self, _x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        Ok(vec![dy[0].as_ref().map(|dy| dy.record(self.clone(), &[dy]))])
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::functions::case::{Case, Tested};

    impl Tested for Flip {
        fn cases() -> Vec<Case> {
            let case = |shape: &[usize], axes: &[usize]| Case::new(Self { axes: axes.to_vec() }).input(shape);
            vec![
                case(&[1], &[0]),
                case(&[5, 67], &[1]),
                case(&[2, 3, 4], &[0, 2]),
                case(&[3, 4], &[]),
                Case::recorded("flip", &[&[4, 6]], |x| x[0].t().slice(0, 1..5).flip(&[1, 0]).square()),
                Case::recorded("flip", &[&[4, 6]], |x| x[0].flip(&[0, 0])).expect_error(),
            ]
        }
    }
}
