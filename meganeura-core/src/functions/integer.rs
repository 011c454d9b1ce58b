//! Methods of signed integers, which have no gradient.

use super::Vjp;
use crate::ops::integer::{Integer, Row};
use crate::{ErrorKind, Result, Tensor, Var};

impl Var {
    #[track_caller]
    fn integer(&self, row: Row, other: &Self) -> Self {
        let floats = self.tape().device().precision().dtype();
        self.record_broadcast(Integer { row, floats }, &[self, other])
    }

    /// This number in the type of this value: part of the program for floats, an input for integers.
    #[track_caller]
    #[doc(hidden)]
    pub fn constant(&self, value: f64) -> Self {
        if self.ty().dtype.is_integer() { self.whole(value) } else { self.tape().constant(value) }
    }

    /// This number in the type of this value. It may change from step to step without a new plan.
    #[track_caller]
    pub(crate) fn scalar(&self, value: f64) -> Self {
        if self.ty().dtype.is_integer() { self.whole(value) } else { self.tape().scalar(value) }
    }

    /// This number as an integer in the type of this value.
    #[track_caller]
    fn whole(&self, value: f64) -> Self {
        let dtype = self.ty().dtype;
        let Some(integer) = dtype.integer(value) else {
            let message = format!("{value:?} is no {dtype}; convert the integers with `to_float`");
            return self.refuse("scalar", ErrorKind::Argument, message);
        };
        match Tensor::whole(&self.tape().device(), dtype, integer) {
            Ok(tensor) => self.tape().input(&tensor),
            Err(error) => self.fail(error),
        }
    }
}

macro_rules! methods {
    ($($(#[$doc:meta])* $method:ident $row:ident;)+) => {
        impl Var {
            $(
                $(#[$doc])*
                ///
                /// For `i32` and `i64`, with NumPy's broadcasting. Has no gradient.
                #[must_use]
                #[track_caller]
                pub fn $method(&self, other: &Self) -> Self {
                    self.integer(Row::$row, other)
                }
            )+
        }
    };
}

methods! {
    /// What the quotient, rounded towards 0, leaves: `self − (self/other)·other`, with the sign of `self`; `self` if
    /// `other` is 0.
    #[doc(alias = "fmod")]
    rem Rem;
    /// The quotient, rounded down; 0 if `other` is 0. The operator `/` rounds towards 0.
    #[doc(alias = "floor_divide")]
    div_floor DivFloor;
    /// What the quotient that was rounded down leaves, with the sign of `other`; `self` if `other` is 0.
    #[doc(alias = "remainder")]
    modulo Modulo;
    /// The bits that both have.
    bitwise_and And;
    /// The bits that one of both has.
    bitwise_or Or;
    /// The bits that only one of both has.
    bitwise_xor Xor;
    /// The bits, `other` places to the left: 0 if there are no so many places, or if `other` is below 0.
    #[doc(alias = "bitwise_left_shift")]
    shift_left ShiftLeft;
    /// The bits, `other` places to the right, with copies of the sign: only these if there are no so many places, or if
    /// `other` is below 0.
    #[doc(alias = "bitwise_right_shift")]
    shift_right ShiftRight;
}

impl Var {
    /// All bits inverted, `−x − 1`. For `i32` and `i64`. Has no gradient.
    #[must_use]
    #[track_caller]
    pub fn bitwise_not(&self) -> Self {
        let floats = self.tape().device().precision().dtype();
        self.record(Integer { row: Row::Not, floats }, &[self])
    }
}

impl Vjp for Integer {
    fn vjp(&self, x: &[Var], _y: &[Var], _dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        Ok(vec![None; x.len()])
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::DType;
    use crate::functions::case::{Case, Special, Tested};

    impl Tested for Integer {
        /// Every row, through floats, since a case needs a gradient. `tests/suite/integers.rs` has the exact results.
        fn cases() -> Vec<Case> {
            let mut cases = Vec::new();
            let rows = |dtype| Row::ALL.iter().map(move |&row| (dtype, row));
            for (dtype, row) in [DType::I32, DType::I64].into_iter().flat_map(rows) {
                let shapes = [&[5, 67][..], &[67], &[5, 1]];
                let case = Case::recorded(&format!("{row:?} of {dtype}"), &shapes[..row.arity()], move |x| {
                    let floats = x[0].tape().device().precision().dtype();
                    let integers: Vec<_> = x.iter().map(|x| x.cast(dtype)).collect();
                    let mut operands: Vec<_> = integers.iter().collect();
                    let condition = x[0].gt(x[0].constant(0.0));
                    if row == Row::WhereCond {
                        operands[0] = &condition;
                    }
                    // Division by 0 is not defined in ONNX.
                    let divisor = integers.get(1).map(|x| x + x.eq(x.constant(0.0)).cast(dtype));
                    if let (Row::Div | Row::Rem | Row::DivFloor | Row::Modulo, Some(divisor)) = (row, &divisor) {
                        operands[1] = divisor;
                    }
                    let result = operands[0].record_broadcast(Self { row, floats }, &operands);
                    let result = if result.ty().dtype.is_float() { result } else { result.to_float() };
                    x.iter().fold(result, |result, x| result + x * 0.0)
                });
                let special: &[_] = if has_form(row) { &[] } else { &[Special::WithoutOnnx] };
                cases.push(Case { special, ..case.scale(if row == Row::Pow { 2.0 } else { 30.0 }) });
            }
            cases
        }
    }

    /// `false` for rows without a form in ONNX: shifts, which it has without signs only, and powers, of which fractions
    /// are left open there.
    fn has_form(row: Row) -> bool {
        !matches!(row, Row::ShiftLeft | Row::ShiftRight | Row::Pow)
    }
}
