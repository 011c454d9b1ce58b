//! Elementwise operators, which broadcast. Rows of the elementwise table are not listed here.

use super::call::{Call, Operators, condition, fitted, wrapped};
use super::element::{Element, Kind};
use super::value::{Elements, Value, exact_limit, exactly, far, union};
use crate::error::bail;
use crate::onnx::proto::element_name;
use crate::ops::Pointwise;
use crate::{DType, Result, Var};

/// An operator with one operand and a float result.
fn unary(call: &Call<'_>, f: impl FnOnce(&Var) -> Var) -> Result<Vec<Value>> {
    call.floats(f(&call.float(0)?))
}

/// A row of the elementwise table that is an operator of ONNX.
pub(super) fn row(call: &Call<'_>) -> Result<Vec<Value>> {
    let Some(row) = Pointwise::of_operator(call.op()) else { unreachable!("no row is {}", call.op()) };
    unary(call, |x| x.record(row, &[x]))
}

/// Bounds of integers.
type Bounds = [f64; 2];

/// An operator with one operand, and a result of the same type.
fn one_of(call: &Call<'_>, f: impl FnOnce(&Var) -> Var, bounds: fn(Bounds) -> Bounds) -> Result<Vec<Value>> {
    let (x, range) = call.bounded(0)?;
    call.computed(0, f(&x), bounds(range))
}

/// An operator whose result has the type of its operands.
fn arithmetic(
    call: &Call<'_>,
    f: impl Fn(&Var, &Var) -> Var,
    bounds: fn(Bounds, Bounds) -> Bounds,
) -> Result<Vec<Value>> {
    let element = call.value(0)?.element();
    let (x, range) = call.bounded(0)?;
    let mut result = Value::Var(x, Elements { element, bounds: range });
    for k in 1..call.inputs.len() {
        let (x, range) = call.bounded(k)?;
        let y = result.float(call.tape)?;
        result = fitted(f(&y, &x), element, bounds(result.elements().bounds, range))?;
    }
    Ok(vec![result])
}

/// An operator that chooses one of its operands.
fn choice(call: &Call<'_>, f: impl Fn(&Var, &Var) -> Var, bounds: fn(Bounds, Bounds) -> Bounds) -> Result<Vec<Value>> {
    let (mut y, mut range) = call.bounded(0)?;
    for k in 1..call.inputs.len() {
        let (x, other) = call.bounded(k)?;
        (y, range) = (f(&y, &x), bounds(range, other));
    }
    call.chosen(0, y, range)
}

/// A comparison. Of integers, one must be small enough that the other's rounding does not matter.
fn compare(call: &Call<'_>, f: fn(&Var, &Var) -> Var) -> Result<Vec<Value>> {
    let (x, y) = (call.float(0)?, call.float(1)?);
    let is_wide = |k: usize| -> Result<bool> {
        let limit = exact_limit(x.ty().dtype);
        Ok(match call.value(k)? {
            Value::Var(var, elements) => var.ty().dtype == DType::U32 && elements.bounds[1] > limit,
            Value::Known(_) => false,
        })
    };
    if is_wide(0)? && is_wide(1)? {
        bail!(Checkpoint, "both operands may be integers of 2^24 or more, whose floats cannot be compared");
    }
    condition(f(&x, &y))
}

/// An operator on conditions.
fn logic(call: &Call<'_>, f: fn(&Var, &Var) -> Var) -> Result<Vec<Value>> {
    condition(f(&call.float(0)?, &call.float(1)?))
}

/// Rounds towards 0.
pub(super) fn truncated(x: &Var) -> Var {
    x.sign() * x.abs().floor()
}

/// The integer quotient of magnitudes and its remainder, also where a device's division is off by a rounding.
fn divided(a: &Var, b: &Var) -> (Var, Var) {
    let (a, b) = (exactly(&a.abs(), [0.0, f64::INFINITY]), b.abs());
    let quotient = (&a / &b).floor();
    let rest = &a - &quotient * &b;
    let zero = a.constant(0.0);
    let (is_less, is_more) = (rest.lt(&zero), rest.ge(&b));
    let rest = is_less.where_cond(&(&rest + &b), &is_more.where_cond(&(&rest - &b), &rest));
    (quotient + is_more - is_less, rest)
}

/// The definition of a remainder.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Modulo {
    /// Has the sign of the divisor. For integers only.
    Floor,
    /// Has the sign of the dividend.
    Trunc,
}

impl Modulo {
    pub(super) fn of(call: &Call<'_>) -> Result<Self> {
        match call.int("fmod", 0)? {
            0 if call.value(0)?.kind() == Kind::Float => {
                bail!(Checkpoint, "the attribute `fmod` must be 1 for floats")
            }
            0 => Ok(Self::Floor),
            1 => Ok(Self::Trunc),
            other => bail!(Checkpoint, "the attribute `fmod` is {other}"),
        }
    }
}

fn modulo(call: &Call<'_>) -> Result<Vec<Value>> {
    let modulo = Modulo::of(call)?;
    if call.value(0)?.kind() == Kind::Float {
        bail!(Checkpoint, "remainders of floats are only supported for constants");
    }
    match modulo {
        Modulo::Floor => arithmetic(
            call,
            |a, b| {
                let (_, rest) = divided(a, b);
                let zero = a.constant(0.0);
                // The remainder of magnitudes, counted from the divisor if the signs differ.
                let is_apart = (a.sign() * b.sign()).lt(&zero) * rest.ne(&zero);
                is_apart.where_cond(&(b.abs() - &rest), &rest) * b.sign()
            },
            |_, b| [(b[0] + 1.0).min(0.0), (b[1] - 1.0).max(0.0)],
        ),
        Modulo::Trunc => arithmetic(
            call,
            |a, b| divided(a, b).1 * a.sign(),
            |a, b| {
                let most = (b[0].abs().max(b[1].abs()) - 1.0).max(0.0);
                [if a[0] < 0.0 { -most } else { 0.0 }, if a[1] > 0.0 { most } else { 0.0 }]
            },
        ),
    }
}

/// The bounds of a product.
pub(super) fn product(a: Bounds, b: Bounds) -> Bounds {
    let all = [a[0] * b[0], a[0] * b[1], a[1] * b[0], a[1] * b[1]];
    [all.into_iter().fold(f64::INFINITY, f64::min), all.into_iter().fold(f64::NEG_INFINITY, f64::max)]
}

fn one(x: &Var) -> Var {
    x.constant(1.0)
}

pub(super) const OPERATORS: Operators = &[
    ("Abs", |call| one_of(call, Var::abs, |[low, high]| [if low > 0.0 { low } else { 0.0 }, high.max(-low)])),
    ("Add", |call| arithmetic(call, |a, b| a + b, |a, b| [a[0] + b[0], a[1] + b[1]])),
    ("And", |call| logic(call, |a, b| a * b)),
    ("Cast", cast),
    ("CastLike", cast),
    ("Celu", |call| {
        let alpha = call.real("alpha", 1.0)?;
        unary(call, |x| x.scale(alpha.recip()).elu(1.0).scale(alpha))
    }),
    ("Clip", clip),
    ("Cosh", |call| unary(call, |x| (x.exp() + (-x).exp()).scale(0.5))),
    ("Div", |call| match call.value(0)?.kind() {
        Kind::Int => arithmetic(
            call,
            |a, b| divided(a, b).0 * (a.sign() * b.sign()),
            |a, b| {
                let most = a[0].abs().max(a[1].abs());
                [if a[0] >= 0.0 && b[0] >= 0.0 { 0.0 } else { -most }, most]
            },
        ),
        _ => arithmetic(call, |a, b| a / b, union),
    }),
    ("Dropout", dropout),
    ("Elu", |call| {
        let alpha = call.real("alpha", 1.0)?;
        unary(call, |x| x.elu(alpha))
    }),
    ("Equal", |call| compare(call, Var::eq)),
    ("Gelu", |call| match call.text("approximate", "none")? {
        "none" => unary(call, Var::gelu),
        "tanh" => unary(call, Var::gelu_tanh),
        other => bail!(Checkpoint, "the attribute `approximate` is {other:?}"),
    }),
    ("Greater", |call| compare(call, Var::gt)),
    ("GreaterOrEqual", |call| compare(call, Var::ge)),
    ("HardSigmoid", |call| {
        let (alpha, beta) = (call.real("alpha", 0.2)?, call.real("beta", 0.5)?);
        unary(call, |x| (x.scale(alpha) + x.constant(beta)).clamp(0.0, 1.0))
    }),
    ("HardSwish", |call| unary(call, |x| x * (x.scale(1.0 / 6.0) + x.constant(0.5)).clamp(0.0, 1.0))),
    ("Identity", |call| Ok(vec![call.value(0)?.clone()])),
    ("IsNaN", |call| {
        let x = call.float(0)?;
        condition(x.ne(&x))
    }),
    ("LeakyRelu", |call| {
        let alpha = call.real("alpha", 0.01)?;
        unary(call, |x| x.leaky_relu(alpha))
    }),
    ("Less", |call| compare(call, Var::lt)),
    ("LessOrEqual", |call| compare(call, Var::le)),
    ("Max", |call| choice(call, Var::maximum, |a, b| [a[0].max(b[0]), a[1].max(b[1])])),
    ("Mean", |call| {
        let count = call.inputs.len() as f64;
        let sum = call.float(0)?;
        let sum = (1..call.inputs.len()).try_fold(sum, |sum, k| Ok::<_, crate::Error>(sum + call.float(k)?))?;
        call.floats(sum.scale(count.recip()))
    }),
    ("Min", |call| choice(call, Var::minimum, |a, b| [a[0].min(b[0]), a[1].min(b[1])])),
    ("Mish", |call| unary(call, |x| x * x.softplus().tanh())),
    ("Mod", modulo),
    ("Mul", |call| arithmetic(call, |a, b| a * b, product)),
    ("Neg", |call| one_of(call, |x| -x, |[low, high]| [-high, -low])),
    ("Not", |call| {
        let x = call.float(0)?;
        condition(one(&x) - x)
    }),
    ("Or", |call| logic(call, Var::maximum)),
    ("PRelu", |call| {
        let (x, mut slope) = (call.float(0)?, call.float(1)?);
        let rank = x.shape().rank();
        if call.opset < 7 && slope.shape().rank() == 1 && rank > 2 {
            // A number for each channel.
            let mut dims = vec![1; rank - 1];
            dims[0] = slope.shape()[0];
            slope = slope.reshape(call.shape(&dims)?);
        } else {
            call.narrow(1, x.shape())?;
        }
        call.floats(x.lt(&x.constant(0.0)).where_cond(&(slope * &x), &x))
    }),
    ("Pow", pow),
    ("Relu", |call| {
        let (x, range) = call.bounded(0)?;
        call.chosen(0, x.relu(), range.map(|bound| bound.max(0.0)))
    }),
    ("Selu", |call| {
        let usual = if call.opset < 6 { (1.6732, 1.0507) } else { (1.673_263_2, 1.050_701) };
        let (alpha, gamma) = (call.real("alpha", usual.0)?, call.real("gamma", usual.1)?);
        unary(call, |x| x.elu(alpha).scale(gamma))
    }),
    ("Sign", |call| one_of(call, Var::sign, |_| [-1.0, 1.0])),
    // Accurate near 0.
    ("Sinh", |call| unary(call, |x| (x.expm1() - (-x).expm1()).scale(0.5))),
    ("Softsign", |call| unary(call, |x| x / (x.abs() + one(x)))),
    ("Sub", |call| arithmetic(call, |a, b| a - b, |a, b| [a[0] - b[1], a[1] - b[0]])),
    ("Sum", |call| arithmetic(call, |a, b| a + b, |a, b| [a[0] + b[0], a[1] + b[1]])),
    ("Swish", |call| match call.real("alpha", 1.0)? {
        1.0 => unary(call, Var::silu),
        alpha => unary(call, |x| x * x.scale(alpha).sigmoid()),
    }),
    ("ThresholdedRelu", |call| {
        let alpha = call.real("alpha", 1.0)?;
        unary(call, |x| x.gt(&x.constant(alpha)).where_cond(x, &x.constant(0.0)))
    }),
    ("Where", |call| {
        let (condition, (a, first), (b, second)) = (call.float(0)?, call.bounded(1)?, call.bounded(2)?);
        call.chosen(1, condition.where_cond(&a, &b), union(first, second))
    }),
    ("Xor", |call| logic(call, Var::ne)),
];

fn dropout(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.value(0)?;
    let number = |k: usize, otherwise: f64| match call.optional(k) {
        Some(_) => call.number(k),
        None => Ok(otherwise),
    };
    let is_training = if call.opset < 7 { !call.flag("is_test", false)? } else { number(2, 0.0)? != 0.0 };
    let ratio = call.real("ratio", 0.5)?;
    if is_training && number(1, ratio)? != 0.0 {
        bail!(Checkpoint, "it drops elements as in training, which is not supported");
    }
    call.ignore(&["seed"]);
    // Nothing is dropped, and the mask says so.
    let mut results = vec![x.clone()];
    if call.wants(1) {
        let element = if call.opset < 10 { x.element() } else { Element::Bool };
        let ones = call.tape.constant(1.0).expand(call.shape(&x.dims())?);
        results.push(Value::Var(ones, Elements { bounds: [1.0, 1.0], ..Elements::any(element) }));
    }
    Ok(results)
}

/// The type that a cast leads to.
pub(super) fn target(call: &Call<'_>) -> Result<Element> {
    // These are about floats of 8 bits.
    call.ignore(&["saturate", "round_mode"]);
    if call.op() == "CastLike" {
        return Ok(call.value(1)?.element());
    }
    let number = i32::try_from(call.required("to")?).unwrap_or(0);
    match Element::of(number) {
        Some(element) => Ok(element),
        None => bail!(Checkpoint, "casts to type {number}, {}, are not supported", element_name(number)),
    }
}

fn cast(call: &Call<'_>) -> Result<Vec<Value>> {
    let (to, x) = (target(call)?, call.value(0)?);
    let elements = Elements::any(to);
    let Some((bits, _)) = to.integer() else {
        let y = call.float(0)?;
        // All floats are computed in the device's precision.
        let is_same = to.kind() == Kind::Float || x.kind() == Kind::Bool;
        return Ok(vec![Value::Var(if is_same { y } else { y.ne(&y.constant(0.0)) }, elements)]);
    };
    let own = x.elements().bounds;
    let [low, high] = elements.bounds;
    match x {
        _ if x.kind() == Kind::Float => Ok(vec![Value::Var(whole(&call.float(0)?, to), elements)]),
        Value::Var(var, _) if own[0] >= low && own[1] <= high || bits >= 32 && var.ty().dtype == DType::U32 => {
            let bounds = [own[0].max(low), own[1].min(high)];
            Ok(vec![Value::Var(var.clone(), Elements { element: to, bounds })])
        }
        _ => Ok(vec![fitted(call.exact(0)?, to, own)?]),
    }
}

/// Floats as integers of a type: see [`fold`](super::fold).
fn whole(x: &Var, to: Element) -> Var {
    let (x, [low, _]) = (truncated(x), to.bounds());
    let Some((bits, is_signed)) = to.integer() else { return x };
    let reach = x.constant(2f64.powi(if bits == 64 { 63 } else { 31 }));
    match (bits, is_signed) {
        (..=16, _) => {
            let wrapped = wrapped(&x, 2f64.powi(bits.cast_signed()), is_signed);
            x.abs().lt(&reach).where_cond(&wrapped, &x.constant(0.0))
        }
        (_, true) => x.abs().lt(&reach).where_cond(&x, &x.constant(low)),
        // A negative number becomes one of 2^31 or more, which has no exact float.
        (_, false) => x.lt(&x.constant(0.0)).where_cond(&-far(&x), &x),
    }
}

fn clip(call: &Call<'_>) -> Result<Vec<Value>> {
    if call.opset < 11 {
        let (low, high) = (call.real("min", f64::from(f32::MIN))?, call.real("max", f64::from(f32::MAX))?);
        return unary(call, |x| x.clamp(low, high));
    }
    let (x, mut range) = call.bounded(0)?;
    for k in [1, 2].into_iter().filter(|&k| call.optional(k).is_some()) {
        if !call.value(k)?.dims().is_empty() && call.value(k)?.dims() != [1] {
            bail!(Checkpoint, "the bound in operand {k} is no single number: {:?}", call.value(k)?.dims());
        }
        let own = call.bounded(k)?.1;
        let choose = if k == 1 { f64::max } else { f64::min };
        range = [choose(range[0], own[0]), choose(range[1], own[1])];
    }
    let bound = |k: usize, otherwise: f64| match call.optional(k) {
        None => Some(otherwise),
        Some(Value::Known(array)) if array.len() == 1 => Some(array.as_floats()[0]),
        Some(_) => None,
    };
    let y = match (bound(1, f64::NEG_INFINITY), bound(2, f64::INFINITY)) {
        (Some(low), Some(high)) if low <= high => x.clamp(low, high),
        _ => {
            let scalar = |k: usize| Ok::<_, crate::Error>(call.optional_float(k)?.map(|bound| bound.reshape([1])));
            let above = scalar(1)?.map_or_else(|| x.clone(), |low| x.maximum(&low));
            let y = scalar(2)?.map_or_else(|| above.clone(), |high| above.minimum(&high));
            if y.error().is_none() { y.reshape(x.shape()) } else { y }
        }
    };
    call.chosen(0, y, range)
}

fn pow(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, range) = call.bounded(0)?;
    let known = match call.value(1)? {
        Value::Known(array) if array.len() == 1 && array.dims.len() <= x.shape().rank() => Some(array.as_floats()[0]),
        _ => None,
    };
    if call.value(0)?.kind() == Kind::Int {
        let Some(times @ (1.0 | 2.0 | 3.0)) = known else {
            bail!(Checkpoint, "of integers, only powers with the constant exponents 1 to 3 are supported");
        };
        let element = call.value(0)?.element();
        let mut result = Value::Var(x.clone(), Elements { element, bounds: range });
        #[expect(clippy::cast_possible_truncation, reason = "2 or 3")]
        for _ in 1..times as i32 {
            let bounds = product(result.elements().bounds, range);
            result = fitted(result.float(call.tape)? * &x, element, bounds)?;
        }
        return Ok(vec![result]);
    }
    call.floats(match known {
        // Accurate, and valid for negative numbers.
        Some(1.0) => x,
        Some(2.0) => x.square(),
        Some(3.0) => x.square() * x,
        Some(0.5) => x.sqrt(),
        Some(-1.0) => x.recip(),
        Some(-0.5) => x.rsqrt(),
        Some(exponent) => x.pow(&x.constant(exponent)),
        None => x.pow(&call.exact(1)?),
    })
}
