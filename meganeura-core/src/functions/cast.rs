//! Conversions between element types.

use super::Vjp;
use crate::ops::cast::{Cast, ToIndex};
use crate::{DType, ErrorKind, Result, Var};

impl Var {
    /// Converts elements to another type; a value that has it already stays as it is. Has no gradient.
    ///
    /// An integer becomes the nearest float, and keeps its lower bits in a narrower type of integers. A float is
    /// rounded towards 0; one that is no integer of the type becomes the nearest one, NaN becomes 0. Floats have the
    /// precision of the device, so floats of another precision are an error.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let tape = Tape::new(&device);
    /// let x = tape.input(&Tensor::from_slice(&device, [3], &[-1.9, 0.5, 1e20])?);
    /// assert_eq!(x.cast(DType::I64).to_tensor()?.to_i64_vec()?, [-1, 0, i64::MAX]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[doc(alias("long", "int", "to", "astype"))]
    #[must_use]
    #[track_caller]
    pub fn cast(&self, to: DType) -> Self {
        if self.ty().dtype == to { self.clone() } else { self.record(Cast { to }, &[self]) }
    }

    /// Converts integers to floats. In single precision, those beyond 2²⁴ are rounded. Has no gradient.
    #[doc(alias = "float")]
    #[must_use]
    #[track_caller]
    pub fn to_float(&self) -> Self {
        if self.ty().dtype.is_float() {
            let message = format!("takes integers, the operand holds {}", self.ty().dtype);
            return self.refuse("to_float", ErrorKind::Shape, message);
        }
        self.record(Cast { to: self.tape().device().precision().dtype() }, &[self])
    }

    /// Converts numbers to indices, floats rounded down, for [`gather`](Self::gather) and similar operations.
    ///
    /// NaN and values outside `u32` become the largest `u32`, which is past the end of every axis. Has no gradient.
    #[must_use]
    #[track_caller]
    pub fn to_index(&self) -> Self {
        self.record(ToIndex, &[self])
    }

    /// Integers of any type as indices. Other values stay as they are, for the operation to refuse.
    #[track_caller]
    #[doc(hidden)]
    pub fn as_index(&self) -> Self {
        if matches!(self.ty().dtype, DType::I32 | DType::I64) { self.to_index() } else { self.clone() }
    }
}

/// An index that is out of range, in a message.
pub(crate) fn named(what: &str, index: u32) -> String {
    match index {
        u32::MAX => format!("{what} {index}, or a number that is no `u32`,"),
        _ => format!("{what} {index}"),
    }
}

impl Vjp for Cast {
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

    impl Tested for Cast {
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
