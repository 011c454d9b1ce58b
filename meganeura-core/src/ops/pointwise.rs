//! The elementwise operations, each a row of one table, in `table.rs`.
//!
//! All operands of a row have the same shape: broadcasting is a view that is recorded first. Methods and gradient rules
//! are made of the same rows in `functions/pointwise.rs`.

mod identities;
#[cfg(feature = "onnx")]
mod onnx;
mod table;

pub(crate) use table::each_row;

use pulp::Simd;

use super::Primitive;
#[cfg(feature = "onnx")]
use super::form;
pub(crate) use crate::kernel::native::SQRT_2_OVER_PI;
use crate::kernel::native::{self, Real};
use crate::{Result, TensorType};

/// Evaluates one row's expression over slices of equal length.
macro_rules! each {
    ($x:ident, $out:ident, ($a:ident) $e:expr) => {
        for (y, &$a) in $out.iter_mut().zip($x[0]) {
            *y = $e;
        }
    };
    ($x:ident, $out:ident, ($a:ident, $b:ident) $e:expr) => {
        for ((y, &$a), &$b) in $out.iter_mut().zip($x[0]).zip($x[1]) {
            *y = $e;
        }
    };
    ($x:ident, $out:ident, ($a:ident, $b:ident, $c:ident) $e:expr) => {
        for (((y, &$a), &$b), &$c) in $out.iter_mut().zip($x[0]).zip($x[1]).zip($x[2]) {
            *y = $e;
        }
    };
}

/// What a plan needs of each row.
macro_rules! operations {
    (@maybe) => { None };
    (@maybe $e:expr) => { Some($e) };
    ($(
        $(#[$doc:meta])*
        $name:ident $text:literal $($method:ident)? ($($x:ident),+) = $cpu:expr; $wgsl:literal;
        $(onnx $onnx:literal;)? $(on $lo:literal .. $hi:literal;)? $(within $tolerance:literal;)?
        |$y:ident, $dy:ident| [$($grad:tt),+];
    )+) => {
        /// A row of the elementwise table.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Pointwise {
            $($(#[$doc])* $name,)+
        }

        impl Pointwise {
            /// Every row.
            #[cfg(any(feature = "testing", feature = "onnx"))]
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// The number of operands.
            #[must_use]
            pub fn arity(self) -> usize {
                match self { $(Self::$name => [$(stringify!($x)),+].len(),)+ }
            }

            /// The row as a WGSL function, named with a prefix and the row's name.
            #[must_use]
            pub fn wgsl_function(self, prefix: &str) -> String {
                match self {
                    $(Self::$name => {
                        let parameters = [$(concat!(stringify!($x), ": f32")),+].join(", ");
                        format!(concat!("fn {}", $text, "({}) -> f32 {{ return {}; }}"), prefix, parameters, $wgsl)
                    })+
                }
            }

            /// Computes the row for each element, with the instructions of the function that this is inlined into:
            /// those of `S`.
            #[inline(always)]
            pub(crate) fn eval<T: Real, S: Simd>(self, x: &[&[T]], out: &mut [T]) {
                match self { $(Self::$name => each!(x, out, ($($x),+) $cpu),)+ }
            }

            /// The ONNX operator that is the same as the row.
            #[cfg(feature = "onnx")]
            pub fn operator(self) -> Option<&'static str> {
                match self { $(Self::$name => operations!(@maybe $($onnx)?),)+ }
            }
        }

        impl Primitive for Pointwise {
            fn name(&self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
                self.output(x).map(|ty| vec![ty])
            }

            #[cfg(feature = "onnx")]
            fn onnx(&self, x: &[form::Operand], y: &[TensorType], to: &mut form::Form) -> Option<form::Results> {
                form::only(self.form(x, y[0], to)?)
            }
        }
    };
}

impl Pointwise {
    /// `true` for functions of dozens of instructions.
    pub(crate) fn is_costly(self) -> bool {
        matches!(self, Self::Gelu | Self::GeluSlope | Self::Erf | Self::Erfinv)
    }

    /// `true` for functions of one or two instructions, which are parts of a single pass over results.
    pub(crate) fn is_arithmetic(self) -> bool {
        matches!(self, Self::Add | Self::Sub | Self::Mul | Self::Relu | Self::Clamp)
    }

    /// The type of the result.
    pub(super) fn output(self, x: &[TensorType]) -> Result<TensorType, String> {
        debug_assert_eq!(x.len(), self.arity());
        if let Some(odd) = x.iter().find(|ty| !ty.dtype.is_float()) {
            return Err(format!("needs floats, one operand holds {}; `to_float` converts it", odd.dtype));
        }
        if x.iter().any(|ty| *ty != x[0]) {
            return Err("the shapes do not broadcast: aligned at the last axis, extents must be equal or 1".into());
        }
        Ok(x[0])
    }
}

each_row!(operations);

#[inline]
fn truth<T: Real>(condition: bool) -> T {
    if condition { T::ONE } else { T::ZERO }
}
