//! Arithmetic of signed integers, each a row of one table. It wraps around.
//!
//! The methods of [`Var`](crate::Var) that are rows of the elementwise table record the row here instead if their
//! operands are integers. Each is a kernel of its own: integers count and address, so there are few of them, and fusion
//! would not pay.

use super::{Kernel, Pointwise, Primitive};
use crate::kernel::launch::{Argument, Caps, Launch, Variant, Workgroups, define};
use crate::kernel::native::{self, Integer as Number, OfType, OutView, Real, Scratch, View};
use crate::kernel::offset::offset;
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::{DType, Layout, Result, TensorType};

/// A row of the table, for operands of one type of signed integers.
///
/// Shapes: all the same; broadcasting is a view that is recorded first. Has no gradient.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Integer {
    pub(crate) row: Row,
    /// The type of the device's floats, in which comparisons give 1 or 0, and conditions are given.
    pub(crate) floats: DType,
}

/// The operands and the result of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Integers.
    Arithmetic,
    /// Two integers, and a condition as the result.
    Comparison,
    /// A condition and two integers.
    Choice,
}

/// One row of the table:
///
/// ```text
/// /// Docs.
/// Name "name" Pointwise arity "function of integer.wgsl" |a, b, c| native, onnx "Operator";
/// ```
///
/// * `Pointwise`: the row of the elementwise table that is recorded for floats; `_` if there is none.
/// * `onnx`: the operator with the same operands and the same result.
macro_rules! rows {
    ($(
        $(#[$doc:meta])*
        $name:ident $text:literal $of:tt $arity:literal $wgsl:literal |$a:pat_param, $b:pat_param, $c:pat_param| $e:expr $(, onnx $onnx:literal)?;
    )+) => {
        /// A row of the table.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub(crate) enum Row {
            $($(#[$doc])* $name,)+
        }

        impl Row {
            /// Every row.
            #[cfg(feature = "testing")]
            pub(crate) const ALL: &[Self] = &[$(Self::$name),+];

            /// The row that is this elementwise operation, if integers have it.
            fn of(row: Pointwise) -> Option<Self> {
                $(rows!(@of row $of $name);)+
                None
            }

            /// The number of operands.
            pub(crate) fn arity(self) -> usize {
                match self { $(Self::$name => $arity,)+ }
            }

            fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// The function of `integer.wgsl`.
            fn wgsl(self) -> &'static str {
                match self { $(Self::$name => $wgsl,)+ }
            }

            /// The function of up to three numbers; comparisons and choices are [`Row::holds`] and the kernel's.
            fn function<I: Number>(self) -> fn(I, I, I) -> I {
                match self { $(Self::$name => |$a, $b, $c| $e,)+ }
            }

            /// The ONNX operator that is the same as the row.
            #[cfg(feature = "onnx")]
            fn operator(self) -> Option<&'static str> {
                match self { $(Self::$name => rows!(@maybe $($onnx)?),)+ }
            }
        }
    };
    (@of $row:ident _ $name:ident) => {};
    (@of $row:ident $of:ident $name:ident) => {
        if $row == Pointwise::$of {
            return Some(Self::$name);
        }
    };
    (@maybe) => { None };
    (@maybe $e:expr) => { Some($e) };
}

rows! {
    /// `-a`
    Neg "neg" Neg 1 "w_negated" |a, _, _| I::ZERO.minus(a), onnx "Neg";
    /// `|a|`; the smallest integer stays itself.
    Abs "abs" Abs 1 "w_magnitude" |a, _, _| if a < I::ZERO { I::ZERO.minus(a) } else { a }, onnx "Abs";
    /// −1, 0 or 1.
    Sign "sign" Sign 1 "w_sign"
        |a, _, _| if a > I::ZERO { I::ONE } else if a < I::ZERO { I::ONES } else { a }, onnx "Sign";
    /// `max(a, 0)`
    Relu "relu" Relu 1 "w_positive_part" |a, _, _| a.max(I::ZERO);
    /// `a²`
    Square "square" Square 1 "w_square" |a, _, _| a.times(a);
    /// All bits inverted.
    Not "bitwise_not" _ 1 "w_not" |a, _, _| a.xor(I::ONES), onnx "BitwiseNot";
    /// `a + b`
    Add "add" Add 2 "w_sum" |a, b, _| a.plus(b), onnx "Add";
    /// `a − b`
    Sub "sub" Sub 2 "w_difference" |a, b, _| a.minus(b), onnx "Sub";
    /// `a·b`
    Mul "mul" Mul 2 "w_product" |a, b, _| a.times(b), onnx "Mul";
    /// `a/b`, rounded towards 0; 0 if `b` is 0.
    Div "div" Div 2 "w_quotient" |a, b, _| a.quotient(b), onnx "Div";
    /// What the quotient leaves, with the sign of `a`; `a` if `b` is 0.
    Rem "rem" _ 2 "w_remainder" |a, b, _| a.remainder(b);
    /// `a/b`, rounded down; 0 if `b` is 0.
    DivFloor "div_floor" _ 2 "w_floor_quotient" |a, b, _| a.floor_quotient(b);
    /// What the quotient that was rounded down leaves, with the sign of `b`; `a` if `b` is 0.
    Modulo "modulo" _ 2 "w_modulo" |a, b, _| a.modulo(b), onnx "Mod";
    /// The minimum of each pair.
    Min "min" Min 2 "w_smaller" |a, b, _| a.min(b), onnx "Min";
    /// The maximum of each pair.
    Max "max" Max 2 "w_larger" |a, b, _| a.max(b), onnx "Max";
    /// `aᵇ`; for an exponent below 0, the number rounded towards 0.
    Pow "pow" Pow 2 "w_power" |a, b, _| a.power(b);
    /// The bits that both have.
    And "bitwise_and" _ 2 "w_and" |a, b, _| a.and(b), onnx "BitwiseAnd";
    /// The bits that one of both has.
    Or "bitwise_or" _ 2 "w_or" |a, b, _| a.or(b), onnx "BitwiseOr";
    /// The bits that only one of both has.
    Xor "bitwise_xor" _ 2 "w_xor" |a, b, _| a.xor(b), onnx "BitwiseXor";
    /// Bits moved to the left.
    ShiftLeft "shift_left" _ 2 "w_shifted_left" |a, b, _| a.shifted_left(b);
    /// Bits moved to the right, with copies of the sign.
    ShiftRight "shift_right" _ 2 "w_shifted_right" |a, b, _| a.shifted_right(b);
    /// 1 where `a = b`, else 0.
    Eq "eq" Eq 2 "w_is_equal" |a, b, _| truth(a == b), onnx "Equal";
    /// 1 where `a ≠ b`, else 0.
    Ne "ne" Ne 2 "w_is_unequal" |a, b, _| truth(a != b);
    /// 1 where `a < b`, else 0.
    Lt "lt" Lt 2 "w_is_less" |a, b, _| truth(a < b), onnx "Less";
    /// 1 where `a ≤ b`, else 0.
    Le "le" Le 2 "w_is_at_most" |a, b, _| truth(a <= b), onnx "LessOrEqual";
    /// 1 where `a > b`, else 0.
    Gt "gt" Gt 2 "w_is_greater" |a, b, _| truth(a > b), onnx "Greater";
    /// 1 where `a ≥ b`, else 0.
    Ge "ge" Ge 2 "w_is_at_least" |a, b, _| truth(a >= b), onnx "GreaterOrEqual";
    /// `a` where the condition is not 0, else `b`.
    WhereCond "where_cond" WhereCond 3 "w_where" |_, a, _| a, onnx "Where";
    /// `x` clamped between `low` and `high`.
    Clamp "clamp" Clamp 3 "w_clamped" |x, low, high| if x < low { low } else if x > high { high } else { x };
}

fn truth<I: Number>(condition: bool) -> I {
    if condition { I::ONE } else { I::ZERO }
}

impl Row {
    fn kind(self) -> Kind {
        match self {
            Self::Eq | Self::Ne | Self::Lt | Self::Le | Self::Gt | Self::Ge => Kind::Comparison,
            Self::WhereCond => Kind::Choice,
            _ => Kind::Arithmetic,
        }
    }
}

/// The iterations of the kernel's loops over the bits of a number: a power's, or those of a division.
const LOOPS: usize = 65;

impl Integer {
    /// This elementwise operation for integers, if one of the operands has them; `None` for floats.
    pub(super) fn of(row: Pointwise, x: &[TensorType], floats: DType) -> Option<Self> {
        x.iter().any(|x| x.dtype.is_integer()).then_some(())?;
        Row::of(row).map(|row| Self { row, floats })
    }

    fn kind(&self) -> Kind {
        self.row.kind()
    }
}

impl Primitive for Integer {
    fn name(&self) -> &'static str {
        self.row.name()
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        if x.len() != self.row.arity() {
            return Err(format!("takes {} operands, not {}", self.row.arity(), x.len()));
        }
        let integers = if self.kind() == Kind::Choice { &x[1..] } else { x };
        if self.kind() == Kind::Choice && !x[0].dtype.is_float() {
            return Err(format!("needs a condition of floats, such as `x.gt(y)` gives, not of {}", x[0].dtype));
        }
        if let Some(odd) = integers.iter().find(|ty| ty.dtype != integers[0].dtype) {
            return Err(format!(
                "needs operands of one type, not {} and {}; convert one of them with `cast`",
                integers[0].dtype, odd.dtype
            ));
        }
        if !integers[0].dtype.is_integer() {
            return Err(format!("needs i32 or i64, the operands hold {}; convert them with `cast`", integers[0].dtype));
        }
        if x.iter().any(|ty| ty.shape != x[0].shape) {
            return Err("the shapes do not broadcast: aligned at the last axis, extents must be equal or 1".into());
        }
        let floats = TensorType::new(self.floats, x[0].shape);
        Ok(vec![if self.kind() == Kind::Comparison { floats } else { integers[0] }])
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], y: &[TensorType], to: &mut Form) -> Option<form::Results> {
        let operands = form::Operand::broadcast(x, y[0].shape);
        let binary = |to: &mut Form, op, a, b| to.node(op, &[a, b], Vec::new());
        form::only(match (self.row, &operands[..]) {
            (Row::WhereCond, &[condition, a, b]) => {
                let condition = to.condition(condition);
                to.node("Where", &[condition, a, b], Vec::new())
            }
            (Row::Ne, &[a, b]) => {
                let equal = binary(to, "Equal", a, b);
                let unequal = to.node("Not", &[equal], Vec::new());
                to.cast(unequal, self.floats)
            }
            (Row::Relu, &[a]) => {
                let zero = to.number_as(y[0].dtype, 0.0);
                binary(to, "Max", a, zero)
            }
            (Row::Square, &[a]) => binary(to, "Mul", a, a),
            (Row::Clamp, &[a, low, high]) => {
                // `low` wins only where the number is below it.
                let (most, is_below) = (binary(to, "Min", a, high), binary(to, "Less", a, low));
                to.node("Where", &[is_below, low, most], Vec::new())
            }
            (Row::Rem, &[a, b]) => to.node("Mod", &[a, b], vec![("fmod", form::Attribute::Int(1))]),
            (Row::DivFloor, &[a, b]) => {
                let rest = binary(to, "Mod", a, b);
                let whole = binary(to, "Sub", a, rest);
                binary(to, "Div", whole, b)
            }
            (row, operands) => {
                let result = to.node(row.operator()?, operands, Vec::new());
                if row.kind() == Kind::Comparison { to.cast(result, self.floats) } else { result }
            }
        })
    }
}

impl Kernel for Integer {
    fn reads_strided(&self, _: usize) -> bool {
        true
    }

    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        // The last operand always holds integers.
        match x[x.len() - 1].slice() {
            native::Slice::Int(_) => self.compute::<T, i32>(x, y),
            native::Slice::Long(_) => self.compute::<T, i64>(x, y),
            _ => unreachable!("the type rule promised integers"),
        }
    }

    fn variants(&self, x: &[Argument], y: &[TensorType], _: &Caps) -> Vec<Variant> {
        const PLACES: [&str; 3] = ["AT_0", "AT_1", "AT_2"];
        let elements = y[0].shape.elements();
        let integers = x[x.len() - 1].ty.dtype;
        let result = if self.kind() == Kind::Comparison { DType::F32 } else { integers };
        let mut defines = define![N: elements, ELEMENT: integers, RESULT: result, OP: self.row.wgsl(), INPUTS: x.len()];
        defines.extend(PLACES.into_iter().zip(x).map(|(place, x)| (place, offset(&x.layout, "i"))));
        if self.kind() == Kind::Choice {
            defines.push(("WHERE", "1".into()));
        }
        let workgroups = Workgroups::of_elements(elements).looping(LOOPS);
        let launch = Launch::new("integer", defines, (x.len(), 1), workgroups);
        vec![Variant::simple("element", launch.stores_through_epilogue())]
    }
}

impl Integer {
    fn compute<T: Real, I: OfType>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>]) {
        let function = self.row.function::<I>();
        let layouts: Vec<&Layout> = x.iter().map(View::layout).collect();
        if self.kind() == Kind::Choice {
            let (condition, a, b) = (x[0].floats(), x[1].integers::<I>(), x[2].integers::<I>());
            return native::parallel(y[0].integers::<I>(), native::grain(4), &|first, y| {
                for (y, i) in y.iter_mut().zip(first..) {
                    let is_other = condition[layouts[0].at(i)] == T::ZERO;
                    *y = if is_other { b[layouts[2].at(i)] } else { a[layouts[1].at(i)] };
                }
            });
        }
        let data: Vec<(&[I], &Layout)> = x.iter().map(View::integers).zip(layouts).collect();
        if self.kind() == Kind::Comparison {
            let condition = |a, b, c| if function(a, b, c) == I::ONE { T::ONE } else { T::ZERO };
            return native::map_three(&data, y[0].floats(), condition);
        }
        native::map_three(&data, y[0].integers::<I>(), function);
    }
}
