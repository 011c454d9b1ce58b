//! Padding with a constant.

use super::Vjp;
use crate::graph::Exact;
use crate::ops::pad::Pad;
use crate::{Result, Var};

impl Var {
    /// Surrounds the value with a constant. `widths` are the numbers of elements before and after, for each axis.
    #[must_use]
    #[track_caller]
    pub fn pad(&self, widths: &[(usize, usize)], value: f64) -> Self {
        self.record(Pad { widths: widths.to_vec(), value: Exact(value) }, &[self])
    }
}

impl Vjp for Pad {
    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let Some(dy) = &dy[0] else { return Ok(vec![None]) };
        let shape = x[0].shape();
        let cut = |dy: Var, (axis, (lo, _)): (usize, &(usize, usize))| dy.slice(axis, *lo..lo + shape[axis]);
        Ok(vec![Some(self.widths.iter().enumerate().fold(dy.clone(), cut))])
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::functions::case::{Case, Tested};

    impl Tested for Pad {
        fn cases() -> Vec<Case> {
            let case = |x: &[usize], widths: &[(usize, usize)], value| {
                Case::new(Self { widths: widths.to_vec(), value: Exact(value) }).input(x)
            };
            let mut cases = vec![
                case(&[3], &[(2, 1)], 0.5),
                case(&[2, 3], &[(0, 0), (1, 2)], 0.0),
                case(&[2, 1, 3], &[(1, 0), (3, 1), (0, 2)], -1.5),
            ];
            cases.extend(crate::functions::padding::cases::recorded());
            cases
        }
    }
}
