//! The methods and gradient rules of elementwise operations, from the rows of their table, `ops/pointwise/table.rs`.

#[cfg(feature = "testing")]
mod cases;
mod operators;

pub use operators::Operand;

use super::Vjp;
use crate::ops::Pointwise;
use crate::ops::pointwise::{SQRT_2_OVER_PI, each_row};
use crate::{Result, Var};

/// What a caller sees of each row, and what tests do with it.
macro_rules! functions {
    (@grad none) => { None };
    (@grad $e:expr) => { Some($e) };
    (@maybe) => { None };
    (@maybe $e:expr) => { Some($e) };
    (@method $name:ident () $operands:tt $(#[$doc:meta])*) => {};
    (@method $name:ident ($method:ident) ($x:ident) $(#[$doc:meta])*) => {
        $(#[$doc])*
        #[must_use]
        #[track_caller]
        pub fn $method(&self) -> Self {
            self.record(Pointwise::$name, &[self])
        }
    };
    (@method $name:ident ($method:ident) ($x:ident, $other:ident) $(#[$doc:meta])*) => {
        $(#[$doc])*
        #[doc = concat!("\n`", stringify!($x), "` is `self`, `", stringify!($other), "` is `other`: a value, or a number. With NumPy's broadcasting.")]
        #[must_use]
        #[track_caller]
        pub fn $method(&self, other: impl Operand) -> Self {
            self.record_broadcast(Pointwise::$name, &[self, &other.beside(self)])
        }
    };
    (@method $name:ident ($method:ident) ($x:ident, $($other:ident),+) $(#[$doc:meta])*) => {
        $(#[$doc])*
        #[doc = concat!("\n`", stringify!($x), "` is `self`, with NumPy's broadcasting.")]
        #[must_use]
        #[track_caller]
        pub fn $method(&self, $($other: &Self),+) -> Self {
            self.record_broadcast(Pointwise::$name, &[self, $($other),+])
        }
    };
    ($(
        $(#[$doc:meta])*
        $name:ident $text:literal $($method:ident)? ($($x:ident),+) = $cpu:expr; $wgsl:literal;
        $(onnx $onnx:literal;)? $(on $lo:literal .. $hi:literal;)? $(within $tolerance:literal;)?
        |$y:ident, $dy:ident| [$($grad:tt),+];
    )+) => {
        impl Var {
            $(functions! { @method $name ($($method)?) ($($x),+) $(#[$doc])* })+
        }

        impl Vjp for Pointwise {
            #[expect(unused_variables, reason = "not every rule needs every operand")]
            fn vjp(&self, x: &[Var], y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
                let Some(cotangent) = &dy[0] else {
                    return Ok(vec![None; x.len()]);
                };
                Ok(match self {
                    $(Self::$name => {
                        let [$($x),+] = x else { unreachable!("the tape checked the arity") };
                        let ($y, $dy) = (&y[0], cotangent);
                        vec![$(functions!(@grad $grad)),+]
                    })+
                })
            }
        }

        #[cfg(feature = "testing")]
        impl Pointwise {
            /// The range of the operands in tests.
            fn range(self) -> Option<(f64, f64)> {
                match self { $(Self::$name => functions!(@maybe $(($lo, $hi))?),)+ }
            }

            /// The tolerance in tests, if it is not that of most rows.
            fn tolerance(self) -> Option<f64> {
                match self { $(Self::$name => functions!(@maybe $($tolerance)?),)+ }
            }
        }
    };
}

each_row!(functions);

/// `(2 − x²)·φ(x)`
fn gelu_curvature(x: &Var) -> Var {
    let square = x.square();
    (x.constant(2.0) - &square) * square.scale(-0.5).exp().scale(0.5 * SQRT_2_OVER_PI)
}

fn gelu_tanh_derivative(x: &Var) -> Var {
    let one = x.constant(1.0);
    let square = x.square();
    let t = (x * (square.scale(0.044_715) + &one)).scale(SQRT_2_OVER_PI).tanh();
    let slope = (square.scale(3.0 * 0.044_715) + &one).scale(SQRT_2_OVER_PI);
    (&t + &one).scale(0.5) + x.scale(0.5) * (one - t.square()) * slope
}

/// `σ(x)·(1 + x·(1 − σ(x)))`
fn silu_derivative(x: &Var) -> Var {
    let one = x.constant(1.0);
    let s = x.sigmoid();
    &s * (x * (&one - &s) + &one)
}

/// The gradient of `min` or `max` with respect to `a`: 0 where `b` won, half where they are equal. NaN never loses, so
/// its gradient goes to both.
fn extremum_gradient(a: &Var, b: &Var, dy: &Var, loses: fn(&Var, &Var) -> Var) -> Var {
    let tied = a.eq(b).where_cond(&dy.scale(0.5), dy);
    loses(a, b).where_cond(&a.constant(0.0), &tied)
}
