//! The indices of elements along an axis.

use std::panic::Location;

use super::Vjp;
use crate::ops::iota::Iota;
use crate::{DType, Precision, Result, Shape, Tape, Var};

impl Tape {
    /// The index of each element along an axis of a shape: `y[…, i, …] = i`, as floats. Computed where it is used,
    /// without an upload.
    ///
    /// An axis out of range is an error, and so are more than 2²⁴ elements along it in single precision.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let tape = Tape::new(&Device::cpu());
    /// assert_eq!(tape.iota([2, 3], 1).to_vec()?, [0.0, 1.0, 2.0, 0.0, 1.0, 2.0]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn iota(&self, shape: impl Into<Shape>, axis: usize) -> Var {
        let is_double = self.device().precision().dtype() == DType::F64;
        let precision = if is_double { Precision::Double } else { Precision::Full };
        let iota = Iota { axis, shape: shape.into(), precision };
        self.record(iota.into(), &[], Location::caller()).swap_remove(0)
    }
}

impl Vjp for Iota {
    fn vjp(&self, _x: &[Var], _y: &[Var], _dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        Ok(Vec::new())
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::functions::case::{Case, Tested};

    impl Tested for Iota {
        fn cases() -> Vec<Case> {
            let case = |dims: &'static [usize], axis| {
                Case::recorded("iota", &[dims], move |x| &x[0] * x[0].tape().iota(dims, axis))
            };
            vec![case(&[1], 0), case(&[7, 3], 0), case(&[5, 67, 2], 1), case(&[3, 5], 1)]
        }
    }
}
