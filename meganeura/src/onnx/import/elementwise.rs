//! Elementwise operators, which broadcast. Rows of the elementwise table are not listed here.

use super::call::{Call, Operators, condition};
use super::element::{Element, Kind};
use super::narrow::Rounding;
use super::value::{Array, Data, Value, sound, wrapped};
use crate::error::bail;
use crate::onnx::proto::element_name;
use crate::ops::Pointwise;
use crate::{Result, Var};

/// An operator with one operand and a float result.
fn unary(call: &Call<'_>, f: impl FnOnce(&Var) -> Var) -> Result<Vec<Value>> {
    call.floats(f(&call.float(0)?))
}

/// A row of the elementwise table that is an operator of ONNX.
pub(super) fn row(call: &Call<'_>) -> Result<Vec<Value>> {
    let Some(row) = Pointwise::of_operator(call.op()) else { unreachable!("no row is {}", call.op()) };
    unary(call, |x| x.record(row, &[x]))
}

/// An operator with one operand, and a result of the same type.
fn one_of(call: &Call<'_>, f: impl FnOnce(&Var) -> Var) -> Result<Vec<Value>> {
    call.computed(&f(&call.own(0)?))
}

/// An operator whose result has the type of its operands. Integers wrap around.
fn arithmetic(call: &Call<'_>, f: impl Fn(&Var, &Var) -> Var) -> Result<Vec<Value>> {
    let mut y = call.own(0)?;
    for k in 1..call.inputs.len() {
        y = f(&y, &call.own(k)?);
    }
    call.computed(&y)
}

/// A comparison.
fn compare(call: &Call<'_>, f: fn(&Var, &Var) -> Var) -> Result<Vec<Value>> {
    condition(f(&ordered(call, &call.own(0)?)?, &ordered(call, &call.own(1)?)?))
}

/// An operator that chooses one of its operands.
fn choice(call: &Call<'_>, f: impl Fn(&Var, &Var) -> Var) -> Result<Vec<Value>> {
    let mut y = ordered(call, &call.own(0)?)?;
    for k in 1..call.inputs.len() {
        y = f(&y, &ordered(call, &call.own(k)?)?);
    }
    call.floats(ordered(call, &y)?)
}

/// The quotient of integers of 64 bits without a sign.
fn quotient(x: &Var, by: &Var) -> Var {
    let (zero, one) = (x.constant(0.0), x.constant(1.0));
    let highest = one.shift_left(&x.constant(63.0));
    let reaches = |x: &Var| x.bitwise_xor(&highest).ge(by.bitwise_xor(&highest)).where_cond(&one, &zero);
    // That of half of it has a sign; what it leaves is less than twice the divisor.
    let half = (x.shift_right(&one).bitwise_and(&highest.bitwise_not()) / by).shift_left(&one);
    let near = &half + reaches(&(x - &half * by));
    by.lt(&zero).where_cond(&reaches(x), &near)
}

/// Integers of the type of operand 0 in the order of numbers with a sign, and back: `uint64` has the same 64 bits, of
/// which the highest counts the other way.
pub(super) fn ordered(call: &Call<'_>, x: &Var) -> Result<Var> {
    if call.value(0)?.element() != Element::U64 {
        return Ok(x.clone());
    }
    let highest = Array { dims: Vec::new(), element: Element::U64, data: Data::Ints(vec![i64::MIN]) };
    Ok(x.bitwise_xor(&highest.own(call.tape)?))
}

/// An operator on conditions.
fn logic(call: &Call<'_>, f: fn(&Var, &Var) -> Var) -> Result<Vec<Value>> {
    condition(f(&call.float(0)?, &call.float(1)?))
}

/// The definition of a remainder.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Modulo {
    /// Has the sign of the divisor.
    Floor,
    /// Has the sign of the dividend.
    Trunc,
}

impl Modulo {
    pub(super) fn of(call: &Call<'_>) -> Result<Self> {
        match call.int("fmod", 0)? {
            0 => Ok(Self::Floor),
            1 => Ok(Self::Trunc),
            other => bail!(Checkpoint, "the attribute `fmod` is {other}"),
        }
    }
}

fn modulo(call: &Call<'_>) -> Result<Vec<Value>> {
    let modulo = Modulo::of(call)?;
    match modulo {
        Modulo::Trunc if call.value(0)?.kind() == Kind::Float => arithmetic(call, remainder),
        Modulo::Floor if call.value(0)?.kind() == Kind::Float => arithmetic(call, |x, by| {
            let (rest, zero) = (remainder(x, by), x.constant(0.0));
            // The dividend's sign becomes the divisor's.
            let differs = rest.ne(&zero) * (&rest * by).lt(&zero);
            differs.where_cond(&(&rest + by), &rest)
        }),
        _ if call.value(0)?.element() == Element::U64 => arithmetic(call, |x, by| x - quotient(x, by) * by),
        Modulo::Floor => arithmetic(call, Var::modulo),
        Modulo::Trunc => arithmetic(call, Var::rem),
    }
}

/// What a division of floats that is cut to a whole number leaves, with the sign of the dividend. Exact up to a
/// rounding of the dividend; next to a multiple of the divisor, that may be the next interval.
fn remainder(x: &Var, by: &Var) -> Var {
    let (size, step, zero) = (x.abs(), by.abs(), x.constant(0.0));
    let rest = &size - (&size / &step).floor() * &step;
    // The quotient was rounded to a whole number from either side.
    let rest = rest.lt(&zero).where_cond(&(&rest + &step), &rest);
    let rest = rest.ge(&step).where_cond(&(&rest - &step), &rest);
    // A smaller dividend is left as it is, also by an infinite divisor.
    let rest = size.lt(&step).where_cond(&size, &rest);
    x.lt(&zero).where_cond(&-&rest, &rest)
}

/// A shift of the bits of integers; to the right, the sign is kept.
fn shift(call: &Call<'_>) -> Result<Vec<Value>> {
    match call.text("direction", "")? {
        "LEFT" => arithmetic(call, Var::shift_left),
        "RIGHT" if call.value(0)?.element() == Element::U64 => arithmetic(call, |x, by| {
            // The highest bit is no sign, of which there would be copies.
            let copies = x.constant(-1.0).shift_left(&(x.constant(64.0) - by));
            x.shift_right(by).bitwise_and(&copies.bitwise_not())
        }),
        "RIGHT" => arithmetic(call, Var::shift_right),
        other => bail!(Checkpoint, "the attribute `direction` is {other:?}"),
    }
}

fn one(x: &Var) -> Var {
    x.constant(1.0)
}

pub(super) const OPERATORS: Operators = &[
    ("Abs", |call| one_of(call, Var::abs)),
    ("Add", |call| arithmetic(call, |a, b| a + b)),
    ("And", |call| logic(call, |a, b| a * b)),
    ("BitShift", shift),
    ("BitwiseAnd", |call| arithmetic(call, Var::bitwise_and)),
    ("BitwiseNot", |call| one_of(call, Var::bitwise_not)),
    ("BitwiseOr", |call| arithmetic(call, Var::bitwise_or)),
    ("BitwiseXor", |call| arithmetic(call, Var::bitwise_xor)),
    ("Cast", cast),
    ("CastLike", cast),
    ("Celu", |call| {
        let alpha = call.real("alpha", 1.0)?;
        unary(call, |x| x.scale(alpha.recip()).elu(1.0).scale(alpha))
    }),
    ("Clip", clip),
    ("Cosh", |call| unary(call, |x| (x.exp() + (-x).exp()).scale(0.5))),
    // Integers are rounded towards 0.
    ("Div", |call| match call.value(0)?.element() {
        Element::U64 => arithmetic(call, quotient),
        _ => arithmetic(call, |a, b| a / b),
    }),
    ("Dropout", dropout),
    ("Elu", |call| {
        let alpha = call.real("alpha", 1.0)?;
        unary(call, |x| x.elu(alpha))
    }),
    ("Equal", |call| compare(call, |a, b| a.eq(b))),
    ("Gelu", |call| match call.text("approximate", "none")? {
        "none" => unary(call, Var::gelu),
        "tanh" => unary(call, Var::gelu_tanh),
        other => bail!(Checkpoint, "the attribute `approximate` is {other:?}"),
    }),
    ("Greater", |call| compare(call, |a, b| a.gt(b))),
    ("GreaterOrEqual", |call| compare(call, |a, b| a.ge(b))),
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
    ("Less", |call| compare(call, |a, b| a.lt(b))),
    ("LessOrEqual", |call| compare(call, |a, b| a.le(b))),
    ("Max", |call| choice(call, |a, b| a.maximum(b))),
    ("Mean", |call| {
        let count = call.inputs.len() as f64;
        let sum = call.float(0)?;
        let sum = (1..call.inputs.len()).try_fold(sum, |sum, k| Ok::<_, crate::Error>(sum + call.float(k)?))?;
        call.floats(sum.scale(count.recip()))
    }),
    ("Min", |call| choice(call, |a, b| a.minimum(b))),
    ("Mish", |call| unary(call, |x| x * x.softplus().tanh())),
    ("Mod", modulo),
    ("Mul", |call| arithmetic(call, |a, b| a * b)),
    ("Neg", |call| one_of(call, |x| -x)),
    ("Not", |call| {
        let x = call.float(0)?;
        condition(one(&x) - x)
    }),
    ("Or", |call| logic(call, |a, b| a.maximum(b))),
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
        call.floats(x.lt(x.constant(0.0)).where_cond(&(slope * &x), &x))
    }),
    ("Pow", pow),
    ("Relu", |call| one_of(call, Var::relu)),
    ("Selu", |call| {
        let usual = if call.opset < 6 { (1.6732, 1.0507) } else { (1.673_263_2, 1.050_701) };
        let (alpha, gamma) = (call.real("alpha", usual.0)?, call.real("gamma", usual.1)?);
        unary(call, |x| x.elu(alpha).scale(gamma))
    }),
    ("Sign", |call| one_of(call, Var::sign)),
    // Accurate near 0.
    ("Sinh", |call| unary(call, |x| (x.expm1() - (-x).expm1()).scale(0.5))),
    ("Softsign", |call| unary(call, |x| x / (x.abs() + one(x)))),
    ("Sub", |call| arithmetic(call, |a, b| a - b)),
    ("Sum", |call| arithmetic(call, |a, b| a + b)),
    ("Swish", |call| match call.real("alpha", 1.0)? {
        1.0 => unary(call, Var::silu),
        alpha => unary(call, |x| x * x.scale(alpha).sigmoid()),
    }),
    ("ThresholdedRelu", |call| {
        let alpha = call.real("alpha", 1.0)?;
        unary(call, |x| x.gt(x.constant(alpha)).where_cond(x, &x.constant(0.0)))
    }),
    ("Where", |call| call.like(1, call.float(0)?.where_cond(&call.own(1)?, &call.own(2)?))),
    ("Xor", |call| logic(call, |a, b| a.ne(b))),
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
        results
            .push(Value::Var(element.integer_dtype().map_or_else(|| ones.clone(), |dtype| ones.cast(dtype)), element));
    }
    Ok(results)
}

/// The type that a cast leads to.
pub(super) fn target(call: &Call<'_>) -> Result<Element> {
    // These are about floats of at most 8 bits.
    call.ignore(&["saturate", "round_mode"]);
    if call.op() == "CastLike" {
        return Ok(call.value(1)?.element());
    }
    let number = i32::try_from(call.required("to")?).unwrap_or(0);
    match Element::of(number) {
        Some(element) if element != Element::String => Ok(element),
        _ => bail!(Checkpoint, "casts to type {number}, {}, are not supported", element_name(number)),
    }
}

fn cast(call: &Call<'_>) -> Result<Vec<Value>> {
    let (to, x) = (target(call)?, call.value(0)?);
    let y = match (x.kind(), to.integer_dtype()) {
        _ if let Element::Narrow(format) = to => Rounding::of_call(call, format)?.record(&call.float(0)?),
        // All floats are computed in the device's precision.
        (_, None) if to.kind() == Kind::Float || x.kind() == Kind::Bool => call.float(0)?,
        (_, None) => {
            let x = call.own(0)?;
            x.ne(x.constant(0.0))
        }
        (Kind::Float, Some(_)) => return Ok(vec![Value::Var(whole(call, to)?, to)]),
        // Quantised numbers and indices stay as they are where all are integers of the other type.
        (Kind::Int, _) if includes(to, x.element()) => call.stored(0)?,
        (_, Some(dtype)) => wrapped(&call.own(0)?.cast(dtype), to),
    };
    let is_kept = to.integer().is_none_or(|(bits, _)| bits <= 16) || !y.ty().dtype.is_float();
    Ok(vec![Value::Var(if is_kept { y } else { y.cast(to.dtype(y.ty().dtype)) }, to)])
}

/// `true` if every integer of one type is one of the other.
fn includes(whole: Element, part: Element) -> bool {
    match (whole.integer(), part.integer()) {
        (Some((bits, true)), Some((other, false))) => bits > other,
        (Some((bits, is_signed)), Some((other, other_is_signed))) => bits >= other && is_signed == other_is_signed,
        _ => false,
    }
}

/// Floats as integers of a type: see [`fold`](super::fold).
fn whole(call: &Call<'_>, to: Element) -> Result<Var> {
    let x = call.float(0)?;
    let Some((bits, is_signed)) = to.integer() else { return Ok(x) };
    let dtype = to.dtype(x.ty().dtype);
    let y = x.cast(dtype);
    if bits >= 32 && !is_signed {
        return Ok(wrapped(&y, to));
    }
    let lowest = match bits {
        32 => i64::from(i32::MIN),
        64 => i64::MIN,
        _ => 0,
    };
    let other = Array { dims: Vec::new(), element: to, data: Data::Ints(vec![lowest]) }.own(call.tape)?;
    let reach = x.constant(2f64.powi(if bits == 64 { 63 } else { 31 }));
    Ok(x.abs().lt(&reach).where_cond(&wrapped(&y, to), &other))
}

fn clip(call: &Call<'_>) -> Result<Vec<Value>> {
    if call.opset < 11 {
        let (low, high) = (call.real("min", f64::from(f32::MIN))?, call.real("max", f64::from(f32::MAX))?);
        return unary(call, |x| x.clamp(low, high));
    }
    let x = call.own(0)?;
    for k in [1, 2].into_iter().filter(|&k| call.optional(k).is_some()) {
        if !call.value(k)?.dims().is_empty() && call.value(k)?.dims() != [1] {
            bail!(Checkpoint, "the bound in operand {k} is no single number: {:?}", call.value(k)?.dims());
        }
    }
    let bound = |k: usize, otherwise: f64| match call.optional(k) {
        None => Some(otherwise),
        Some(Value::Known(array)) if array.kind() == Kind::Float && array.len() == 1 => Some(array.as_floats()[0]),
        Some(_) => None,
    };
    if let (Kind::Float, Some(low), Some(high)) =
        (call.value(0)?.kind(), bound(1, f64::NEG_INFINITY), bound(2, f64::INFINITY))
        && low <= high
    {
        return call.floats(x.clamp(low, high));
    }
    let mut y = x.clone();
    for (k, choose) in [(1, (|a, b| a.maximum(b)) as fn(&Var, &Var) -> Var), (2, |a, b| a.minimum(b))] {
        if call.optional(k).is_some() {
            y = sound(choose(&y, &call.own(k)?.reshape([1])))?;
        }
    }
    call.floats(y.reshape(x.shape()))
}

fn pow(call: &Call<'_>) -> Result<Vec<Value>> {
    let (base, exponent) = (call.value(0)?, call.value(1)?);
    if base.kind() == Kind::Int {
        let Some(dtype) = base.element().integer_dtype() else { bail!(Checkpoint, "a power of no number") };
        return match exponent.kind() {
            Kind::Int => call.computed(&call.own(0)?.pow(call.own(1)?.cast(dtype))),
            // The power of floats, cut to an integer.
            _ => call.computed(&call.float(0)?.pow(&call.float(1)?).cast(dtype)),
        };
    }
    let x = call.float(0)?;
    let known = match exponent {
        Value::Known(array) if array.len() == 1 && array.dims.len() <= x.shape().rank() => Some(array.as_floats()[0]),
        _ => None,
    };
    call.floats(match known {
        // Accurate, and valid for negative numbers.
        Some(1.0) => x,
        Some(2.0) => x.square(),
        Some(3.0) => x.square() * x,
        Some(0.5) => x.sqrt(),
        Some(-1.0) => x.recip(),
        Some(-0.5) => x.rsqrt(),
        Some(exponent) => x.pow(x.constant(exponent)),
        None => x.pow(&call.float(1)?),
    })
}
