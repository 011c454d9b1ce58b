//! The elementwise operations, each a row of one table.
//!
//! A row has the formula, the native expression, the WGSL expression and the gradient rule. All operands of a row have
//! the same shape: broadcasting is a view that the tape records first, and un-broadcasting is that view's gradient
//! rule.

mod identities;
#[cfg(feature = "onnx")]
mod onnx;

use super::Primitive;
#[cfg(feature = "onnx")]
use super::form;
use crate::kernel::native::Real;
use crate::tape::Var;
use crate::{ErrorKind, Result, TensorType};

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

/// `name "text" (operands) native; "wgsl"; |y, dy| [gradients]`. A gradient is an expression, or `none`.
macro_rules! table {
    (@grad none) => { None };
    (@grad $e:expr) => { Some($e) };
    ($($(#[$doc:meta])* $name:ident $text:literal ($($x:ident),+) $cpu:expr; $wgsl:literal; |$y:ident, $dy:ident| [$($grad:tt),+];)+) => {
        /// A row of the elementwise table.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Pointwise {
            $($(#[$doc])* $name,)+
        }

        impl Pointwise {
            /// Every row.
            #[cfg(feature = "testing")]
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
                form::only(self.form(x, y[0], to))
            }

            #[cfg(feature = "testing")]
            fn cases() -> Vec<super::case::Case> {
                super::case::pointwise()
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
    Neg "neg" (x) -x; "-x"; |y, dy| [(-dy)];
    /// `|x|`; the derivative at 0 is 0.
    Abs "abs" (x) x.abs(); "abs(x)"; |y, dy| [(dy * x.sign())];
    /// −1, 0 or 1.
    Sign "sign" (x) if x > T::ZERO { T::ONE } else if x < T::ZERO { -T::ONE } else { x * T::ZERO };
        "m_sign(x)"; |y, dy| [none];
    /// `eˣ`
    Exp "exp" (x) x.exp(); "exp(x)"; |y, dy| [(dy * y)];
    /// `eˣ − 1`, accurate near 0.
    ExpM1 "expm1" (x) x.exp_m1(); "m_expm1(x)"; |y, dy| [(dy * x.exp())];
    /// `ln x`
    Log "log" (x) x.ln(); "log(x)"; |y, dy| [(dy / x)];
    /// The largest integer that is at most `x`; has no gradient.
    Floor "floor" (x) x.floor(); "floor(x)"; |y, dy| [none];
    /// The smallest integer that is at least `x`; has no gradient.
    Ceil "ceil" (x) x.ceil(); "ceil(x)"; |y, dy| [none];
    /// The nearest integer to `x`, on a tie the even one; has no gradient.
    Round "round" (x) x.round(); "round(x)"; |y, dy| [none];
    /// `√x`
    Sqrt "sqrt" (x) x.sqrt(); "sqrt(x)"; |y, dy| [(dy.scale(0.5) / y)];
    /// `1/√x`
    Rsqrt "rsqrt" (x) T::ONE / x.sqrt(); "inverseSqrt(x)"; |y, dy| [(dy.scale(-0.5) * y * y.square())];
    /// `sin x`
    Sin "sin" (x) x.sin(); "sin(x)"; |y, dy| [(dy * x.cos())];
    /// `cos x`
    Cos "cos" (x) x.cos(); "cos(x)"; |y, dy| [(-(dy * x.sin()))];
    /// `tanh x`
    Tanh "tanh" (x) x.tanh(); "m_tanh(x)"; |y, dy| [(dy - dy * y.square())];
    /// `1/(1 + e⁻ˣ)`
    Sigmoid "sigmoid" (x) T::ONE / (T::ONE + (-x).exp()); "m_sigmoid(x)"; |y, dy| [(dy * (y - y.square()))];
    /// `max(x, 0)`; NaN stays NaN, the derivative at 0 is 0.
    Relu "relu" (x) if x <= T::ZERO { T::ZERO } else { x }; "select(x, 0.0, is_at_most_zero(x))";
        |y, dy| [(y.le(&y.constant(0.0)).where_cond(&y.constant(0.0), dy))];
    /// `x` above 0, `a·x` below.
    LeakyRelu "leaky_relu" (x, a) if x <= T::ZERO { a * x } else { x }; "select(x, a * x, is_at_most_zero(x))";
        |y, dy| [(x.le(&x.constant(0.0)).where_cond(&(a * dy), dy)), (x.le(&x.constant(0.0)).where_cond(&(x * dy), &x.constant(0.0)))];
    /// `x` above 0, `a(eˣ − 1)` below.
    Elu "elu" (x, a) if x <= T::ZERO { a * x.exp_m1() } else { x }; "select(x, a * m_expm1(x), is_at_most_zero(x))";
        |y, dy| [
            (x.le(&x.constant(0.0)).where_cond(&(dy * a * x.exp()), dy)),
            (x.le(&x.constant(0.0)).where_cond(&(dy * x.expm1()), &x.constant(0.0)))
        ];
    /// `x·Φ(x)`, with the Gaussian distribution function through `erf`.
    Gelu "gelu" (x) x * T::from_f64(0.5) * (T::ONE + (x * T::from_f64(std::f64::consts::FRAC_1_SQRT_2)).erf());
        "m_gelu(x)"; |y, dy| [(dy * gelu_derivative(x))];
    /// `x/2·(1 + tanh(√(2/π)(x + 0.044715 x³)))`
    GeluTanh "gelu_tanh" (x) {
            let u = T::from_f64(SQRT_2_OVER_PI) * (x + T::from_f64(0.044_715) * x * x * x);
            x * T::from_f64(0.5) * (T::ONE + u.tanh())
        }; "m_gelu_tanh(x)"; |y, dy| [(dy * gelu_tanh_derivative(x))];
    /// `x/(1 + e⁻ˣ)`
    Silu "silu" (x) x / (T::ONE + (-x).exp()); "m_silu(x)"; |y, dy| [(dy * silu_derivative(x))];
    /// `ln(1 + eˣ)`
    Softplus "softplus" (x) (if x <= T::ZERO { T::ZERO } else { x }) + (-x.abs()).exp().ln_1p(); "m_softplus(x)";
        |y, dy| [(dy * x.sigmoid())];
    /// `1/x`
    Recip "recip" (x) T::ONE / x; "1.0 / x"; |y, dy| [(-(dy * y.square()))];
    /// `x²`
    Square "square" (x) x * x; "x * x"; |y, dy| [(dy.scale(2.0) * x)];
    /// The error function.
    Erf "erf" (x) x.erf(); "m_erf(x)"; |y, dy| [(dy.scale(std::f64::consts::FRAC_2_SQRT_PI) * (-x.square()).exp())];
    /// `a + b`
    Add "add" (a, b) a + b; "a + b"; |y, dy| [(dy.clone()), (dy.clone())];
    /// `a − b`
    Sub "sub" (a, b) a - b; "a - b"; |y, dy| [(dy.clone()), (-dy)];
    /// `a·b`
    Mul "mul" (a, b) a * b; "a * b"; |y, dy| [(dy * b), (dy * a)];
    /// `a/b`
    Div "div" (a, b) a / b; "a / b"; |y, dy| [(dy / b), (-(dy * y / b))];
    /// The minimum; NaN if either operand is. Equal operands get half of the gradient each.
    Min "min" (a, b) if b.is_nan() || b < a { b } else { a }; "m_min(a, b)";
        |y, dy| [(extremum_gradient(a, b, dy, Var::gt)), (extremum_gradient(b, a, dy, Var::gt))];
    /// The maximum; NaN if either operand is. Equal operands get half of the gradient each.
    Max "max" (a, b) if b.is_nan() || b > a { b } else { a }; "m_max(a, b)";
        |y, dy| [(extremum_gradient(a, b, dy, Var::lt)), (extremum_gradient(b, a, dy, Var::lt))];
    /// `aᵇ`. The derivative with respect to `a` is 0 where `b` is 0; that with respect to `b` is 0 where `a` is 0 and
    /// `b` is at least 0.
    Pow "pow" (a, b) a.powf(b); "m_pow(a, b)";
        |y, dy| [
            (b.eq(&b.constant(0.0)).where_cond(&b.constant(0.0), &(dy * b * a.pow(&(b - b.constant(1.0)))))),
            ((a.eq(&a.constant(0.0)) * b.ge(&b.constant(0.0))).where_cond(&a.constant(0.0), &(dy * y * a.log())))
        ];
    /// 1 where `a = b`, else 0.
    Eq "eq" (a, b) truth(a == b); "select(0.0, 1.0, a == b && !any_nan(a, b))"; |y, dy| [none, none];
    /// 1 where `a ≠ b`, else 0.
    Ne "ne" (a, b) truth(a != b); "select(0.0, 1.0, a != b || any_nan(a, b))"; |y, dy| [none, none];
    /// 1 where `a < b`, else 0.
    Lt "lt" (a, b) truth(a < b); "select(0.0, 1.0, a < b && !any_nan(a, b))"; |y, dy| [none, none];
    /// 1 where `a ≤ b`, else 0.
    Le "le" (a, b) truth(a <= b); "select(0.0, 1.0, a <= b && !any_nan(a, b))"; |y, dy| [none, none];
    /// 1 where `a > b`, else 0.
    Gt "gt" (a, b) truth(a > b); "select(0.0, 1.0, a > b && !any_nan(a, b))"; |y, dy| [none, none];
    /// 1 where `a ≥ b`, else 0.
    Ge "ge" (a, b) truth(a >= b); "select(0.0, 1.0, a >= b && !any_nan(a, b))"; |y, dy| [none, none];
    /// `a` where `c` is not 0, else `b`.
    WhereCond "where_cond" (c, a, b) if c == T::ZERO { b } else { a }; "select(a, b, is_zero(c))";
        |y, dy| [none, (c.where_cond(dy, &c.constant(0.0))), (c.where_cond(&c.constant(0.0), dy))];
    /// `x` clamped between `lo` and `hi`; NaN stays NaN. The derivative on the bounds is 0: there and outside, the
    /// gradient goes to the bound.
    Clamp "clamp" (x, lo, hi) if x < lo { lo } else if x > hi { hi } else { x };
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

macro_rules! unary_methods {
    ($($(#[$doc:meta])* $method:ident $name:ident;)+) => {
        impl Var {
            $($(#[$doc])*
            #[must_use]
            #[track_caller]
            pub fn $method(&self) -> Self {
                self.record(Pointwise::$name, &[self])
            })+
        }
    };
}

unary_methods! {
    /// `|x|`; the derivative at 0 is 0.
    abs Abs;
    /// −1, 0 or 1; has no gradient.
    sign Sign;
    /// `eˣ`
    exp Exp;
    /// `eˣ − 1`, accurate near 0.
    expm1 ExpM1;
    /// The natural logarithm.
    log Log;
    /// The largest integer that is at most `x`; has no gradient.
    floor Floor;
    /// The smallest integer that is at least `x`; has no gradient.
    ceil Ceil;
    /// The nearest integer to `x`, on a tie the even one, as in NumPy and PyTorch; has no gradient.
    round Round;
    /// `√x`
    sqrt Sqrt;
    /// `1/√x`
    rsqrt Rsqrt;
    /// `sin x`
    sin Sin;
    /// `cos x`
    cos Cos;
    /// The hyperbolic tangent.
    tanh Tanh;
    /// `1/(1 + e⁻ˣ)`
    sigmoid Sigmoid;
    /// `max(x, 0)`; the derivative at 0 is 0.
    relu Relu;
    /// Exact GELU, `x·Φ(x)` through `erf`. [Hendrycks and Gimpel, 2016](https://arxiv.org/abs/1606.08415).
    gelu Gelu;
    /// GELU approximated by `tanh`: `x/2·(1 + tanh(√(2/π)(x + 0.044715 x³)))`.
    gelu_tanh GeluTanh;
    /// `x·σ(x)`, also called swish.
    silu Silu;
    /// `ln(1 + eˣ)`
    softplus Softplus;
    /// `1/x`
    recip Recip;
    /// `x²`
    square Square;
    /// The error function.
    erf Erf;
}

macro_rules! binary_methods {
    ($($(#[$doc:meta])* $method:ident $name:ident;)+) => {
        impl Var {
            $($(#[$doc])*
            #[must_use]
            #[track_caller]
            pub fn $method(&self, other: &Self) -> Self {
                self.record_broadcast(Pointwise::$name, &[self, other])
            })+
        }
    };
}

binary_methods! {
    /// The minimum of each pair, with NumPy's broadcasting.
    minimum Min;
    /// The maximum of each pair, with NumPy's broadcasting.
    maximum Max;
    /// `selfᵒᵗʰᵉʳ`, with NumPy's broadcasting.
    pow Pow;
    /// 1 where equal, else 0. Has no gradient.
    eq Eq;
    /// 1 where different, else 0. Has no gradient.
    ne Ne;
    /// 1 where `self < other`, else 0. Has no gradient.
    lt Lt;
    /// 1 where `self ≤ other`, else 0. Has no gradient.
    le Le;
    /// 1 where `self > other`, else 0. Has no gradient.
    gt Gt;
    /// 1 where `self ≥ other`, else 0. Has no gradient.
    ge Ge;
}

impl Var {
    /// `a` where `self` is not 0, else `b`, with NumPy's broadcasting.
    #[doc(alias("where", "select"))]
    #[must_use]
    #[track_caller]
    pub fn where_cond(&self, a: &Self, b: &Self) -> Self {
        self.record_broadcast(Pointwise::WhereCond, &[self, a, b])
    }

    /// `x` above 0, `slope·x` below.
    #[must_use]
    #[track_caller]
    pub fn leaky_relu(&self, slope: f64) -> Self {
        self.record_broadcast(Pointwise::LeakyRelu, &[self, &self.tape().scalar(slope)])
    }

    /// `x` above 0, `alpha·(eˣ − 1)` below. [Clevert et al., 2015](https://arxiv.org/abs/1511.07289).
    #[must_use]
    #[track_caller]
    pub fn elu(&self, alpha: f64) -> Self {
        self.record_broadcast(Pointwise::Elu, &[self, &self.tape().scalar(alpha)])
    }

    /// Clamps each number between `lo` and `hi`, either of which may be infinite. The derivative on a bound is 0. It is
    /// an error if `lo` is above `hi`, or if one of them is NaN.
    #[must_use]
    #[track_caller]
    pub fn clamp(&self, lo: f64, hi: f64) -> Self {
        if lo.is_nan() || hi.is_nan() || lo > hi {
            return self.refuse("clamp", ErrorKind::Argument, format!("no number is between {lo} and {hi}"));
        }
        let tape = self.tape();
        self.record_broadcast(Pointwise::Clamp, &[self, &tape.scalar(lo), &tape.scalar(hi)])
    }

    /// `x` to the power of a number.
    #[must_use]
    #[track_caller]
    pub fn powf(&self, exponent: f64) -> Self {
        self.pow(&self.tape().scalar(exponent))
    }

    /// `factor·x` for a factor that is part of the program. For a number that changes from step to step, use
    /// `x * factor`.
    #[must_use]
    #[track_caller]
    pub(crate) fn scale(&self, factor: f64) -> Self {
        self * self.constant(factor)
    }
}

macro_rules! operators {
    ($($Trait:ident $method:ident $name:ident;)+) => {
        $(
            impl std::ops::$Trait<&Var> for &Var {
                type Output = Var;
                #[track_caller]
                fn $method(self, other: &Var) -> Var {
                    self.record_broadcast(Pointwise::$name, &[self, other])
                }
            }
            impl std::ops::$Trait<Var> for &Var {
                type Output = Var;
                #[track_caller]
                fn $method(self, other: Var) -> Var {
                    self.record_broadcast(Pointwise::$name, &[self, &other])
                }
            }
            impl std::ops::$Trait<&Var> for Var {
                type Output = Var;
                #[track_caller]
                fn $method(self, other: &Var) -> Var {
                    self.record_broadcast(Pointwise::$name, &[&self, other])
                }
            }
            impl std::ops::$Trait<Var> for Var {
                type Output = Var;
                #[track_caller]
                fn $method(self, other: Var) -> Var {
                    self.record_broadcast(Pointwise::$name, &[&self, &other])
                }
            }
            impl std::ops::$Trait<f64> for &Var {
                type Output = Var;
                #[track_caller]
                fn $method(self, other: f64) -> Var {
                    self.record_broadcast(Pointwise::$name, &[self, &self.tape().scalar(other)])
                }
            }
            impl std::ops::$Trait<f64> for Var {
                type Output = Var;
                #[track_caller]
                fn $method(self, other: f64) -> Var {
                    self.record_broadcast(Pointwise::$name, &[&self, &self.tape().scalar(other)])
                }
            }
            impl std::ops::$Trait<&Var> for f64 {
                type Output = Var;
                #[track_caller]
                fn $method(self, other: &Var) -> Var {
                    other.record_broadcast(Pointwise::$name, &[&other.tape().scalar(self), other])
                }
            }
            impl std::ops::$Trait<Var> for f64 {
                type Output = Var;
                #[track_caller]
                fn $method(self, other: Var) -> Var {
                    other.record_broadcast(Pointwise::$name, &[&other.tape().scalar(self), &other])
                }
            }
        )+
    };
}

operators! {
    Add add Add;
    Sub sub Sub;
    Mul mul Mul;
    Div div Div;
}

impl std::ops::Neg for &Var {
    type Output = Var;
    #[track_caller]
    fn neg(self) -> Var {
        self.record(Pointwise::Neg, &[self])
    }
}

impl std::ops::Neg for Var {
    type Output = Var;
    #[track_caller]
    fn neg(self) -> Var {
        -&self
    }
}
