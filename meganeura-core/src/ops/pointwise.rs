//! The elementwise operations, each a row of one table.
//!
//! A row has the formula, the native expression, the WGSL expression, the ONNX operator and the gradient rule, and
//! makes the method of [`Var`]. All operands of a row have the same shape: broadcasting is a view that the tape records
//! first, and un-broadcasting is that view's gradient rule.

#[cfg(feature = "testing")]
mod cases;
mod identities;
#[cfg(feature = "onnx")]
mod onnx;
mod operators;

use super::Primitive;
#[cfg(feature = "onnx")]
use super::form;
use crate::kernel::native::Real;
use crate::tape::Var;
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

/// One row of the table:
///
/// ```text
/// /// Docs of the row and of the method.
/// Name "name" method(operands) = native; "wgsl"; onnx "Operator"; on range; within tolerance; |y, dy| [gradients];
/// ```
///
/// * `method`: the public method of [`Var`], whose first operand is `self`. A row without one is recorded by
///   `operators.rs`.
/// * `onnx`: the ONNX operator with the same operands and the same result. A row that takes several nodes has its form
///   in `onnx.rs`. Import reads the operators of rows with one operand by this name.
/// * `on`: the range of the operands in tests, for a function that is not defined or not smooth everywhere. The default
///   is the normal distribution.
/// * `within`: the tolerance in tests, if the default is too strict.
/// * A gradient is an expression in parentheses, or `none`.
macro_rules! table {
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
        #[doc = concat!("\n`", stringify!($x), "` is `self`, `", stringify!($other), "` is `other`, with NumPy's broadcasting.")]
        #[must_use]
        #[track_caller]
        pub fn $method(&self, other: &Self) -> Self {
            self.record_broadcast(Pointwise::$name, &[self, other])
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
        /// A row of the elementwise table.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Pointwise {
            $($(#[$doc])* $name,)+
        }

        impl Var {
            $(table! { @method $name ($($method)?) ($($x),+) $(#[$doc])* })+
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

            /// Computes the row for each element, with the instructions of the function that this is inlined into.
            #[inline(always)]
            pub(crate) fn eval<T: Real>(self, x: &[&[T]], out: &mut [T]) {
                match self { $(Self::$name => each!(x, out, ($($x),+) $cpu),)+ }
            }

            /// The ONNX operator that is the same as the row.
            #[cfg(feature = "onnx")]
            pub fn operator(self) -> Option<&'static str> {
                match self { $(Self::$name => table!(@maybe $($onnx)?),)+ }
            }

            /// The range of the operands in tests.
            #[cfg(feature = "testing")]
            fn range(self) -> Option<(f64, f64)> {
                match self { $(Self::$name => table!(@maybe $(($lo, $hi))?),)+ }
            }

            /// The tolerance in tests, if it is not that of most rows.
            #[cfg(feature = "testing")]
            fn tolerance(self) -> Option<f64> {
                match self { $(Self::$name => table!(@maybe $($tolerance)?),)+ }
            }
        }

        impl Primitive for Pointwise {
            fn name(&self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
                self.output(x).map(|ty| vec![ty])
            }

            #[expect(unused_variables, reason = "not every rule needs every operand")]
            fn vjp(&self, x: &[Var], y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
                let Some(cotangent) = &dy[0] else {
                    return Ok(vec![None; x.len()]);
                };
                Ok(match self {
                    $(Self::$name => {
                        let [$($x),+] = x else { unreachable!("the tape checked the arity") };
                        let ($y, $dy) = (&y[0], cotangent);
                        vec![$(table!(@grad $grad)),+]
                    })+
                })
            }

            #[cfg(feature = "onnx")]
            fn onnx(&self, x: &[form::Operand], y: &[TensorType], to: &mut form::Form) -> Option<form::Results> {
                form::only(self.form(x, y[0], to)?)
            }

            #[cfg(feature = "testing")]
            fn cases() -> Vec<super::case::Case> {
                cases::all()
            }
        }
    };
}

impl Pointwise {
    /// The type of the result.
    pub(super) fn output(self, x: &[TensorType]) -> Result<TensorType, String> {
        debug_assert_eq!(x.len(), self.arity());
        if let Some(odd) = x.iter().find(|ty| !ty.dtype.is_float()) {
            return Err(format!("needs floats, one operand holds {}", odd.dtype));
        }
        if x.iter().any(|ty| *ty != x[0]) {
            return Err("the shapes do not broadcast: aligned at the last axis, extents must be equal or 1".into());
        }
        Ok(x[0])
    }
}

table! {
    /// `-x`
    Neg "neg"(x) = -x; "-x"; onnx "Neg"; |y, dy| [(-dy)];
    /// `|x|`; the derivative at 0 is 0.
    Abs "abs" abs(x) = x.abs(); "abs(x)"; onnx "Abs"; |y, dy| [(dy * x.sign())];
    /// −1, 0 or 1; has no gradient.
    Sign "sign" sign(x) = if x > T::ZERO { T::ONE } else if x < T::ZERO { -T::ONE } else { x * T::ZERO };
        "m_sign(x)"; onnx "Sign"; |y, dy| [none];
    /// `eˣ`
    Exp "exp" exp(x) = x.exp(); "exp(x)"; onnx "Exp"; |y, dy| [(dy * y)];
    /// `eˣ − 1`, accurate near 0.
    ExpM1 "expm1" expm1(x) = x.exp_m1(); "m_expm1(x)"; |y, dy| [(dy * x.exp())];
    /// `ln x`, the natural logarithm.
    Log "log" log(x) = x.ln(); "log(x)"; onnx "Log"; on 0.2..3.0; |y, dy| [(dy / x)];
    /// The largest integer that is at most `x`; has no gradient.
    Floor "floor" floor(x) = x.floor(); "floor(x)"; onnx "Floor"; |y, dy| [none];
    /// The smallest integer that is at least `x`; has no gradient.
    Ceil "ceil" ceil(x) = x.ceil(); "ceil(x)"; onnx "Ceil"; |y, dy| [none];
    /// The nearest integer to `x`, on a tie the even one, as in NumPy and PyTorch; has no gradient.
    Round "round" round(x) = x.round(); "round(x)"; onnx "Round"; |y, dy| [none];
    /// `√x`
    Sqrt "sqrt" sqrt(x) = x.sqrt(); "sqrt(x)"; onnx "Sqrt"; on 0.2..3.0; |y, dy| [(dy.scale(0.5) / y)];
    /// `1/√x`
    Rsqrt "rsqrt" rsqrt(x) = T::ONE / x.sqrt(); "inverseSqrt(x)"; on 0.2..3.0; |y, dy| [(dy.scale(-0.5) * y * y.square())];
    /// `sin x`
    Sin "sin" sin(x) = x.sin(); "m_sin(x)"; onnx "Sin"; |y, dy| [(dy * x.cos())];
    /// `cos x`
    Cos "cos" cos(x) = x.cos(); "m_cos(x)"; onnx "Cos"; |y, dy| [(-(dy * x.sin()))];
    /// `tan x`
    Tan "tan" tan(x) = x.tan(); "m_tan(x)"; onnx "Tan"; on -1.2..1.2; |y, dy| [(dy + dy * y.square())];
    /// `tanh x`, the hyperbolic tangent.
    Tanh "tanh" tanh(x) = x.tanh(); "m_tanh(x)"; onnx "Tanh"; |y, dy| [(dy - dy * y.square())];
    /// `1/(1 + e⁻ˣ)`
    Sigmoid "sigmoid" sigmoid(x) = T::ONE / (T::ONE + (-x).exp()); "m_sigmoid(x)"; onnx "Sigmoid"; |y, dy| [(dy * (y - y.square()))];
    /// `max(x, 0)`; NaN stays NaN, the derivative at 0 is 0.
    Relu "relu" relu(x) = if x <= T::ZERO { T::ZERO } else { x }; "select(x, 0.0, is_at_most_zero(x))";
        onnx "Relu"; |y, dy| [(y.le(&y.constant(0.0)).where_cond(&y.constant(0.0), dy))];
    /// `x` above 0, `a·x` below.
    LeakyRelu "leaky_relu"(x, a) = if x <= T::ZERO { a * x } else { x }; "select(x, a * x, is_at_most_zero(x))";
        |y, dy| [(x.le(&x.constant(0.0)).where_cond(&(a * dy), dy)), (x.le(&x.constant(0.0)).where_cond(&(x * dy), &x.constant(0.0)))];
    /// `x` above 0, `a(eˣ − 1)` below.
    Elu "elu"(x, a) = if x <= T::ZERO { a * x.exp_m1() } else { x }; "select(x, a * m_expm1(x), is_at_most_zero(x))";
        |y, dy| [
            (x.le(&x.constant(0.0)).where_cond(&(dy * a * x.exp()), dy)),
            (x.le(&x.constant(0.0)).where_cond(&(dy * x.expm1()), &x.constant(0.0)))
        ];
    /// Exact GELU, `x·Φ(x)` through `erf`. [Hendrycks and Gimpel, 2016](https://arxiv.org/abs/1606.08415).
    Gelu "gelu" gelu(x) = x * T::from_f64(0.5) * (T::ONE + (x * T::from_f64(std::f64::consts::FRAC_1_SQRT_2)).erf());
        "m_gelu(x)"; |y, dy| [(dy * gelu_derivative(x))];
    /// GELU approximated by `tanh`: `x/2·(1 + tanh(√(2/π)(x + 0.044715 x³)))`.
    GeluTanh "gelu_tanh" gelu_tanh(x) = {
            let u = T::from_f64(SQRT_2_OVER_PI) * (x + T::from_f64(0.044_715) * x * x * x);
            x * T::from_f64(0.5) * (T::ONE + u.tanh())
        }; "m_gelu_tanh(x)"; |y, dy| [(dy * gelu_tanh_derivative(x))];
    /// `x·σ(x) = x/(1 + e⁻ˣ)`, also called swish.
    Silu "silu" silu(x) = x / (T::ONE + (-x).exp()); "m_silu(x)"; |y, dy| [(dy * silu_derivative(x))];
    /// `ln(1 + eˣ)`
    Softplus "softplus" softplus(x) = (if x <= T::ZERO { T::ZERO } else { x }) + (-x.abs()).exp().ln_1p(); "m_softplus(x)";
        onnx "Softplus"; |y, dy| [(dy * x.sigmoid())];
    /// `1/x`
    Recip "recip" recip(x) = T::ONE / x; "1.0 / x"; onnx "Reciprocal"; on 0.2..3.0; |y, dy| [(-(dy * y.square()))];
    /// `x²`
    Square "square" square(x) = x * x; "x * x"; |y, dy| [(dy.scale(2.0) * x)];
    /// The error function.
    Erf "erf" erf(x) = x.erf(); "m_erf(x)"; onnx "Erf"; |y, dy| [(dy.scale(std::f64::consts::FRAC_2_SQRT_PI) * (-x.square()).exp())];
    /// `a + b`
    Add "add"(a, b) = a + b; "a + b"; onnx "Add"; |y, dy| [(dy.clone()), (dy.clone())];
    /// `a − b`
    Sub "sub"(a, b) = a - b; "a - b"; onnx "Sub"; |y, dy| [(dy.clone()), (-dy)];
    /// `a·b`
    Mul "mul"(a, b) = a * b; "a * b"; onnx "Mul"; |y, dy| [(dy * b), (dy * a)];
    /// `a/b`
    Div "div"(a, b) = a / b; "a / b"; onnx "Div"; on 0.5..2.0; |y, dy| [(dy / b), (-(dy * y / b))];
    /// The minimum of each pair; NaN if either is NaN. Equal operands get half of the gradient each.
    Min "min" minimum(a, b) = if b.is_nan() || b < a { b } else { a }; "m_min(a, b)";
        onnx "Min"; |y, dy| [(extremum_gradient(a, b, dy, Var::gt)), (extremum_gradient(b, a, dy, Var::gt))];
    /// The maximum of each pair; NaN if either is NaN. Equal operands get half of the gradient each.
    Max "max" maximum(a, b) = if b.is_nan() || b > a { b } else { a }; "m_max(a, b)";
        onnx "Max"; |y, dy| [(extremum_gradient(a, b, dy, Var::lt)), (extremum_gradient(b, a, dy, Var::lt))];
    /// `aᵇ`. The derivative with respect to `a` is 0 where `b` is 0; that with respect to `b` is 0 where `a` is 0 and
    /// `b` is at least 0.
    Pow "pow" pow(a, b) = a.powf(b); "m_pow(a, b)";
        onnx "Pow"; on 0.2..3.0; within 1e-5; |y, dy| [
            (b.eq(&b.constant(0.0)).where_cond(&b.constant(0.0), &(dy * b * a.pow(&(b - b.constant(1.0)))))),
            ((a.eq(&a.constant(0.0)) * b.ge(&b.constant(0.0))).where_cond(&a.constant(0.0), &(dy * y * a.log())))
        ];
    /// 1 where `a = b`, else 0. Has no gradient.
    Eq "eq" eq(a, b) = truth(a == b); "select(0.0, 1.0, a == b && !any_nan(a, b))"; |y, dy| [none, none];
    /// 1 where `a ≠ b`, else 0. Has no gradient.
    Ne "ne" ne(a, b) = truth(a != b); "select(0.0, 1.0, a != b || any_nan(a, b))"; |y, dy| [none, none];
    /// 1 where `a < b`, else 0. Has no gradient.
    Lt "lt" lt(a, b) = truth(a < b); "select(0.0, 1.0, a < b && !any_nan(a, b))"; |y, dy| [none, none];
    /// 1 where `a ≤ b`, else 0. Has no gradient.
    Le "le" le(a, b) = truth(a <= b); "select(0.0, 1.0, a <= b && !any_nan(a, b))"; |y, dy| [none, none];
    /// 1 where `a > b`, else 0. Has no gradient.
    Gt "gt" gt(a, b) = truth(a > b); "select(0.0, 1.0, a > b && !any_nan(a, b))"; |y, dy| [none, none];
    /// 1 where `a ≥ b`, else 0. Has no gradient.
    Ge "ge" ge(a, b) = truth(a >= b); "select(0.0, 1.0, a >= b && !any_nan(a, b))"; |y, dy| [none, none];
    /// `a` where `c` is not 0, else `b`.
    #[doc(alias("where", "select"))]
    WhereCond "where_cond" where_cond(c, a, b) = if c == T::ZERO { b } else { a }; "select(a, b, is_zero(c))";
        |y, dy| [none, (c.where_cond(dy, &c.constant(0.0))), (c.where_cond(&c.constant(0.0), dy))];
    /// `x` clamped between `lo` and `hi`; NaN stays NaN. The derivative on the bounds is 0: there and outside, the
    /// gradient goes to the bound.
    Clamp "clamp"(x, lo, hi) = if x < lo { lo } else if x > hi { hi } else { x };
        "select(select(select(x, hi, x > hi), lo, x < lo), x, is_nan(x))";
        |y, dy| [
            ((x.le(lo) + x.ge(hi)).where_cond(&x.constant(0.0), dy)),
            (x.le(lo).where_cond(dy, &x.constant(0.0))),
            ((x.ge(hi) * x.gt(lo)).where_cond(dy, &x.constant(0.0)))
        ];
}

const SQRT_2_OVER_PI: f64 = 0.797_884_560_802_865_4;

#[inline]
fn truth<T: Real>(condition: bool) -> T {
    if condition { T::ONE } else { T::ZERO }
}

/// `Φ(x) + x·φ(x)`
fn gelu_derivative(x: &Var) -> Var {
    let cdf = (x.scale(std::f64::consts::FRAC_1_SQRT_2).erf() + x.constant(1.0)).scale(0.5);
    let pdf = x.square().scale(-0.5).exp().scale(0.5 * SQRT_2_OVER_PI);
    cdf + x * pdf
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
