//! Elementwise operators, which broadcast. Rows of the elementwise table are not listed here.

use super::call::{Call, Operators, float, of};
use super::value::{Kind, Value};
use crate::error::bail;
use crate::onnx::proto::element;
use crate::ops::Pointwise;
use crate::{DType, Result, Var};

/// An operator with one operand and a float result.
fn unary(call: &Call<'_>, f: impl FnOnce(&Var) -> Var) -> Result<Vec<Value>> {
    float(f(&call.float(0)?))
}

/// A row of the elementwise table that is an operator of ONNX.
pub(super) fn row(call: &Call<'_>) -> Result<Vec<Value>> {
    let Some(row) = Pointwise::of_operator(call.op()) else { unreachable!("no row is {}", call.op()) };
    unary(call, |x| x.record(row, &[x]))
}

/// An operator whose result has the kind of its operands.
fn same(call: &Call<'_>, f: impl Fn(&Var, &Var) -> Var) -> Result<Vec<Value>> {
    let mut result = call.float(0)?;
    for k in 1..call.inputs.len() {
        result = f(&result, &call.float(k)?);
    }
    of(call.value(0)?.kind(), result)
}

/// An operator with two operands and a condition as its result.
fn condition(call: &Call<'_>, f: fn(&Var, &Var) -> Var) -> Result<Vec<Value>> {
    of(Kind::Bool, f(&call.float(0)?, &call.float(1)?))
}

/// Rounds towards 0.
fn truncated(x: &Var) -> Var {
    x.sign() * x.abs().floor()
}

fn one(x: &Var) -> Var {
    x.constant(1.0)
}

pub(super) const OPERATORS: Operators = &[
    ("Abs", |call| call.like(0, call.float(0)?.abs())),
    ("Add", |call| same(call, |a, b| a + b)),
    ("And", |call| condition(call, |a, b| a * b)),
    ("Cast", cast),
    ("CastLike", |call| match call.value(1)?.kind() {
        Kind::Float => float(call.float(0)?),
        Kind::Bool => of(Kind::Bool, truth(call)?),
        Kind::Int => whole(call),
    }),
    ("Celu", |call| {
        let alpha = call.real("alpha", 1.0)?;
        unary(call, |x| x.scale(alpha.recip()).elu(1.0).scale(alpha))
    }),
    ("Clip", clip),
    ("Cosh", |call| unary(call, |x| (x.exp() + (-x).exp()).scale(0.5))),
    ("Div", |call| match call.value(0)?.kind() {
        Kind::Int => same(call, |a, b| truncated(&(a / b))),
        _ => same(call, |a, b| a / b),
    }),
    ("Dropout", |call| {
        if call
            .optional(2)
            .is_some_and(|training| !matches!(training, Value::Known(known) if known.as_floats() == [0.0]))
        {
            bail!(Checkpoint, "it drops elements as in training, which is not supported");
        }
        Ok(vec![call.value(0)?.clone()])
    }),
    ("Elu", |call| {
        let alpha = call.real("alpha", 1.0)?;
        unary(call, |x| x.elu(alpha))
    }),
    ("Equal", |call| condition(call, Var::eq)),
    ("Gelu", |call| match call.text("approximate", "none")? {
        "none" => unary(call, Var::gelu),
        "tanh" => unary(call, Var::gelu_tanh),
        other => bail!(Checkpoint, "the attribute `approximate` is {other:?}"),
    }),
    ("Greater", |call| condition(call, Var::gt)),
    ("GreaterOrEqual", |call| condition(call, Var::ge)),
    ("HardSigmoid", |call| {
        let (alpha, beta) = (call.real("alpha", 0.2)?, call.real("beta", 0.5)?);
        unary(call, |x| (x.scale(alpha) + x.constant(beta)).clamp(0.0, 1.0))
    }),
    ("HardSwish", |call| unary(call, |x| x * (x.scale(1.0 / 6.0) + x.constant(0.5)).clamp(0.0, 1.0))),
    ("Identity", |call| Ok(vec![call.value(0)?.clone()])),
    ("IsNaN", |call| {
        let x = call.float(0)?;
        of(Kind::Bool, x.ne(&x))
    }),
    ("LeakyRelu", |call| {
        let alpha = call.real("alpha", 0.01)?;
        unary(call, |x| x.leaky_relu(alpha))
    }),
    ("Less", |call| condition(call, Var::lt)),
    ("LessOrEqual", |call| condition(call, Var::le)),
    ("Max", |call| same(call, Var::maximum)),
    ("Mean", |call| {
        let count = call.inputs.len() as f64;
        let sum = call.float(0)?;
        let sum = (1..call.inputs.len()).try_fold(sum, |sum, k| Ok::<_, crate::Error>(sum + call.float(k)?))?;
        float(sum.scale(count.recip()))
    }),
    ("Min", |call| same(call, Var::minimum)),
    ("Mish", |call| unary(call, |x| x * x.softplus().tanh())),
    ("Mod", |call| {
        call.only("fmod", 0, 0)?;
        same(call, |a, b| a - b * (a / b).floor())
    }),
    ("Mul", |call| same(call, |a, b| a * b)),
    ("Neg", |call| call.like(0, -call.float(0)?)),
    ("Not", |call| {
        let x = call.float(0)?;
        of(Kind::Bool, one(&x) - x)
    }),
    ("Or", |call| condition(call, Var::maximum)),
    ("PRelu", |call| {
        let (x, slope) = (call.float(0)?, call.float(1)?);
        float(x.lt(&x.constant(0.0)).where_cond(&(slope * &x), &x))
    }),
    ("Pow", pow),
    ("Relu", |call| call.like(0, call.float(0)?.relu())),
    ("Selu", |call| {
        let (alpha, gamma) = (call.real("alpha", 1.673_263_2)?, call.real("gamma", 1.050_701)?);
        unary(call, |x| x.elu(alpha).scale(gamma))
    }),
    ("Sign", |call| call.like(0, call.float(0)?.sign())),
    // Accurate near 0.
    ("Sinh", |call| unary(call, |x| (x.expm1() - (-x).expm1()).scale(0.5))),
    ("Softsign", |call| unary(call, |x| x / (x.abs() + one(x)))),
    ("Sub", |call| same(call, |a, b| a - b)),
    ("Sum", |call| same(call, |a, b| a + b)),
    ("Swish", |call| match call.real("alpha", 1.0)? {
        1.0 => unary(call, Var::silu),
        alpha => unary(call, |x| x * x.scale(alpha).sigmoid()),
    }),
    ("ThresholdedRelu", |call| {
        let alpha = call.real("alpha", 1.0)?;
        unary(call, |x| x.gt(&x.constant(alpha)).where_cond(x, &x.constant(0.0)))
    }),
    ("Where", |call| {
        let (condition, a, b) = (call.float(0)?, call.float(1)?, call.float(2)?);
        call.like(1, condition.where_cond(&a, &b))
    }),
    ("Xor", |call| condition(call, Var::ne)),
];

/// 1 where the operand is not 0, else 0.
fn truth(call: &Call<'_>) -> Result<Var> {
    let x = call.float(0)?;
    Ok(if call.value(0)?.kind() == Kind::Bool { x } else { x.ne(&x.constant(0.0)) })
}

/// The operand as integers: floats rounded towards 0, indices unchanged.
fn whole(call: &Call<'_>) -> Result<Vec<Value>> {
    match call.value(0)? {
        Value::Var(var, Kind::Int) => of(Kind::Int, var.clone()),
        Value::Var(_, Kind::Bool) => of(Kind::Int, call.float(0)?),
        _ => of(Kind::Int, truncated(&call.float(0)?)),
    }
}

fn cast(call: &Call<'_>) -> Result<Vec<Value>> {
    let to = call.int("to", 0)?;
    match i32::try_from(to).unwrap_or(0) {
        // All floats are computed in the device's precision.
        element::FLOAT | element::DOUBLE | element::FLOAT16 | element::BFLOAT16 => float(call.float(0)?),
        element::BOOL => of(Kind::Bool, truth(call)?),
        element::INT64
        | element::INT32
        | element::INT16
        | element::INT8
        | element::UINT64
        | element::UINT32
        | element::UINT16
        | element::UINT8 => whole(call),
        other => bail!(Checkpoint, "casts to type {other} are not supported"),
    }
}

fn clip(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.float(0)?;
    if call.opset < 11 {
        let (low, high) = (call.real("min", f64::NEG_INFINITY)?, call.real("max", f64::INFINITY)?);
        return float(x.clamp(low, high));
    }
    let bound = |k: usize, otherwise: f64| match call.optional(k) {
        None => Some(otherwise),
        Some(Value::Known(array)) if array.len() == 1 => Some(array.as_floats()[0]),
        Some(_) => None,
    };
    let y = match (bound(1, f64::NEG_INFINITY), bound(2, f64::INFINITY)) {
        (Some(low), Some(high)) if low <= high => x.clamp(low, high),
        _ => {
            let above = call.optional_float(1)?.map_or_else(|| x.clone(), |low| x.maximum(&low));
            call.optional_float(2)?.map_or_else(|| above.clone(), |high| above.minimum(&high))
        }
    };
    call.like(0, y)
}

fn pow(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.float(0)?;
    let y = match call.value(1)? {
        // Accurate, and valid for negative numbers.
        Value::Known(array) if array.len() == 1 && array.dims.len() <= x.shape().rank() => match array.as_floats()[0] {
            1.0 => x,
            2.0 => x.square(),
            3.0 => x.square() * x,
            0.5 => x.sqrt(),
            -1.0 => x.recip(),
            -0.5 => x.rsqrt(),
            exponent => x.pow(&x.constant(exponent)),
        },
        _ => x.pow(&call.float(1)?),
    };
    debug_assert!(y.ty().dtype != DType::U32, "integers are floats by now");
    call.like(0, y)
}
