//! The table of elementwise operations.

/// One row of the table:
///
/// ```text
/// /// Docs of the row and of the method.
/// Name "name" method(operands) = native; "wgsl"; onnx "Operator"; on range; within tolerance; |y, dy| [gradients];
/// ```
///
/// * `method`: the public method of `Var`, whose first operand is `self`. A row without one is recorded by
///   `functions/pointwise/operators.rs`.
/// * `onnx`: the ONNX operator with the same operands and the same result. A row that takes several nodes has its form
///   in `onnx.rs`. Import reads the operators of rows with one operand by this name.
/// * `on`: the range of the operands in tests, for a function that is not defined or not smooth everywhere. The default
///   is the normal distribution.
/// * `within`: the tolerance in tests, if the default is too strict.
/// * A gradient is an expression in parentheses, or `none`.
macro_rules! each_row {
    ($then:ident) => {
        $then! {
    /// `-x`
    Neg "neg"(x) = -x; "-x"; onnx "Neg"; |y, dy| [(-dy)];
    /// `|x|`; the derivative at 0 is 0.
    Abs "abs" abs(x) = x.abs(); "abs(x)"; onnx "Abs"; |y, dy| [(dy * x.sign())];
    /// −1, 0 or 1; has no gradient.
    Sign "sign" sign(x) = if x > T::ZERO { T::ONE } else if x < T::ZERO { -T::ONE } else { x * T::ZERO };
        "m_sign(x)"; onnx "Sign"; |y, dy| [none];
    /// `eˣ`
    Exp "exp" exp(x) = x.exp::<S>(); "exp(x)"; onnx "Exp"; |y, dy| [(dy * y)];
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
    Tanh "tanh" tanh(x) = x.tanh::<S>(); "m_tanh(x)"; onnx "Tanh"; |y, dy| [(dy - dy * y.square())];
    /// `1/(1 + e⁻ˣ)`
    Sigmoid "sigmoid" sigmoid(x) = native::sigmoid::<T, S>(x); "m_sigmoid(x)"; onnx "Sigmoid"; |y, dy| [(dy * (y - y.square()))];
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
    Gelu "gelu" gelu(x) = x.gelu::<S>(); "m_gelu(x)"; |y, dy| [(dy * x.record(Pointwise::GeluSlope, &[x]))];
    /// The derivative of exact GELU, `Φ(x) + x·φ(x)`.
    GeluSlope "gelu_slope"(x) = x.gelu_slope::<S>(); "m_gelu_slope(x)"; |y, dy| [(dy * gelu_curvature(x))];
    /// GELU approximated by `tanh`: `x/2·(1 + tanh(√(2/π)(x + 0.044715 x³)))`.
    GeluTanh "gelu_tanh" gelu_tanh(x) = native::gelu_tanh::<T, S>(x); "m_gelu_tanh(x)"; |y, dy| [(dy * gelu_tanh_derivative(x))];
    /// `x·σ(x) = x/(1 + e⁻ˣ)`, also called swish.
    Silu "silu" silu(x) = native::silu::<T, S>(x); "m_silu(x)"; |y, dy| [(dy * silu_derivative(x))];
    /// `ln(1 + eˣ)`
    Softplus "softplus" softplus(x) = (if x <= T::ZERO { T::ZERO } else { x }) + (-x.abs()).exp::<S>().ln_1p(); "m_softplus(x)";
        onnx "Softplus"; |y, dy| [(dy * x.sigmoid())];
    /// `1/x`
    #[doc(alias = "reciprocal")]
    Recip "recip" recip(x) = T::ONE / x; "1.0 / x"; onnx "Reciprocal"; on 0.2..3.0; |y, dy| [(-(dy * y.square()))];
    /// `x²`
    Square "square" square(x) = x * x; "x * x"; |y, dy| [(dy.scale(2.0) * x)];
    /// The error function.
    Erf "erf" erf(x) = x.erf::<S>(); "m_erf(x)"; onnx "Erf"; |y, dy| [(dy.scale(std::f64::consts::FRAC_2_SQRT_PI) * (-x.square()).exp())];
    /// The inverse of the error function, on (−1, 1): ±∞ at ±1, NaN outside.
    Erfinv "erfinv" erfinv(x) = x.erfinv(); "m_erfinv(x)"; on -0.95..0.95;
        |y, dy| [(dy.scale(std::f64::consts::FRAC_2_SQRT_PI.recip()) * y.square().exp())];
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
        onnx "Min"; |y, dy| [(extremum_gradient(a, b, dy, |a, b| a.gt(b))), (extremum_gradient(b, a, dy, |a, b| a.gt(b)))];
    /// The maximum of each pair; NaN if either is NaN. Equal operands get half of the gradient each.
    Max "max" maximum(a, b) = if b.is_nan() || b > a { b } else { a }; "m_max(a, b)";
        onnx "Max"; |y, dy| [(extremum_gradient(a, b, dy, |a, b| a.lt(b))), (extremum_gradient(b, a, dy, |a, b| a.lt(b)))];
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
    };
}
pub(crate) use each_row;
