//! Arithmetic on constants, elementwise with broadcasting, in the types of the file.

use super::small;
use crate::error::bail;
use crate::onnx::import::call::Call;
use crate::onnx::import::element::Element;
use crate::onnx::import::elementwise::{Modulo, target};
use crate::onnx::import::narrow::Rounding;
use crate::onnx::import::value::{Array, Data};
use crate::{Result, Shape};

/// The result of a node, if its operator computes and can be folded.
pub(super) fn fold(call: &Call<'_>, x: &[Option<&Array>], first: &Array) -> Result<Option<Array>> {
    match (call.op(), x) {
        ("Cast" | "CastLike", _) => {
            let to = target(call)?;
            call.budget.charge(first.len())?;
            cast(call, first, to).map(Some)
        }
        ("Where", [_, Some(a), Some(b)]) => where_(call, first, a, b),
        ("Neg" | "Abs" | "Floor" | "Ceil" | "Round" | "Sqrt" | "Not" | "Exp" | "Log" | "Reciprocal", [_]) => {
            call.budget.charge(first.len())?;
            unary(call.op(), first)
        }
        (_, [Some(a), Some(b)]) => binary(call, a, b),
        _ => Ok(None),
    }
}

/// Casts as `onnxruntime` does on x86: integers wrap around; floats become the integers before them, wrapped around in
/// types of up to 16 bits. In larger ones, floats that do not fit become the lowest integer.
#[expect(clippy::cast_possible_truncation, reason = "floats become the integers before them, as ONNX says")]
fn cast(call: &Call<'_>, x: &Array, to: Element) -> Result<Array> {
    let data = match (&x.data, to.integer()) {
        _ if let Element::Narrow(format) = to => {
            let rounding = Rounding::of_call(call, format)?;
            Data::Floats(x.as_floats().into_iter().map(|number| rounding.of(number)).collect())
        }
        (_, None) if to == Element::Bool => {
            Data::Ints(x.as_floats().into_iter().map(|number| i64::from(number != 0.0)).collect())
        }
        (_, None) => Data::Floats(x.as_floats().into_iter().map(|number| to.rounded(number)).collect()),
        (Data::Ints(numbers), Some(_)) => {
            Data::Ints(numbers.iter().map(|&number| to.wrapped(i128::from(number))).collect())
        }
        (Data::Floats(numbers), Some((bits, is_signed))) => {
            let reach = 2f64.powi(if bits == 64 { 63 } else { 31 });
            let each = |&number: &f64| match number.trunc() {
                number if bits <= 16 && number.abs() < reach => Ok(to.wrapped(number as i128)),
                _ if bits <= 16 => Ok(0),
                number if is_signed && number.abs() < reach => Ok(number as i64),
                _ if is_signed => Ok(if bits == 64 { i64::MIN } else { i64::from(i32::MIN) }),
                number if number.abs() < 2f64.powi(63) => Ok(to.wrapped(number as i128)),
                number => bail!(Checkpoint, "{number} cannot become a number of type {}", to.name()),
            };
            Data::Ints(numbers.iter().map(each).collect::<Result<_>>()?)
        }
    };
    Ok(Array { dims: x.dims.clone(), element: to, data })
}

/// The source of an element of a broadcast value.
fn source(dims: &[usize], out: &[usize], mut at: usize) -> usize {
    let (mut place, mut below) = (0, 1);
    for axis in 0..out.len() {
        let number = at % out[out.len() - 1 - axis];
        at /= out[out.len() - 1 - axis];
        if axis < dims.len() {
            let extent = dims[dims.len() - 1 - axis];
            place += if extent == 1 { 0 } else { number * below };
            below *= extent;
        }
    }
    place
}

/// The extents of the result of operands that broadcast; `None` if it is not small.
fn together(x: &[&Array]) -> Result<Option<Vec<usize>>> {
    if x.iter().any(|array| array.dims.contains(&0)) {
        return without_elements(x).map(Some);
    }
    let mut out = Shape::SCALAR;
    for array in x {
        let shape = array.shape()?;
        match out.broadcast(&shape) {
            Some(shape) => out = shape,
            None => bail!(Checkpoint, "{out} and {shape} do not broadcast"),
        }
    }
    Ok(small(out.dims()).map(|_| out.dims().to_vec()))
}

/// The extents of a result without elements.
fn without_elements(x: &[&Array]) -> Result<Vec<usize>> {
    let rank = x.iter().map(|array| array.dims.len()).max().unwrap_or(0);
    let mut out = vec![1; rank];
    for array in x {
        for (out, &extent) in out.iter_mut().rev().zip(array.dims.iter().rev()) {
            match (*out, extent) {
                (_, 1) => {}
                (1, extent) => *out = extent,
                (own, extent) if own == extent => {}
                _ => bail!(
                    Checkpoint,
                    "operands of extents {:?} do not broadcast",
                    x.iter().map(|x| &x.dims).collect::<Vec<_>>()
                ),
            }
        }
    }
    Ok(out)
}

fn where_(call: &Call<'_>, condition: &Array, a: &Array, b: &Array) -> Result<Option<Array>> {
    let Some(dims) = together(&[condition, a, b])? else { return Ok(None) };
    let Some(truth) = condition.as_ints() else { bail!(Checkpoint, "the condition holds floats") };
    let count = dims.iter().product();
    call.budget.charge(count)?;
    let places = (0..count).map(|at| (truth[source(&condition.dims, &dims, at)] != 0, at));
    let data = match (&a.data, &b.data) {
        (Data::Ints(x), Data::Ints(y)) => {
            let each = |(truth, at)| if truth { x[source(&a.dims, &dims, at)] } else { y[source(&b.dims, &dims, at)] };
            Data::Ints(places.map(each).collect())
        }
        _ => {
            let (x, y) = (a.as_floats(), b.as_floats());
            let each = |(truth, at)| if truth { x[source(&a.dims, &dims, at)] } else { y[source(&b.dims, &dims, at)] };
            Data::Floats(places.map(each).collect())
        }
    };
    Ok(Some(Array { dims, element: a.element, data }))
}

fn unary(op: &str, x: &Array) -> Result<Option<Array>> {
    let element = x.element;
    let data = match (&x.data, op) {
        (Data::Ints(numbers), "Not") => Data::Ints(numbers.iter().map(|&number| i64::from(number == 0)).collect()),
        (Data::Ints(numbers), "Neg") => {
            Data::Ints(numbers.iter().map(|&number| element.wrapped(-i128::from(number))).collect())
        }
        (Data::Ints(numbers), "Abs") => {
            Data::Ints(numbers.iter().map(|&number| element.wrapped(i128::from(number).abs())).collect())
        }
        (Data::Floats(numbers), op) => {
            let f: fn(f64) -> f64 = match op {
                "Neg" => |x| -x,
                "Abs" => f64::abs,
                "Floor" => f64::floor,
                "Ceil" => f64::ceil,
                "Round" => f64::round_ties_even,
                "Sqrt" => f64::sqrt,
                "Exp" => f64::exp,
                "Log" => f64::ln,
                "Reciprocal" => f64::recip,
                _ => return Ok(None),
            };
            Data::Floats(numbers.iter().map(|&number| element.rounded(f(number))).collect())
        }
        _ => return Ok(None),
    };
    Ok(Some(Array { dims: x.dims.clone(), element, data }))
}

/// NaN if one of them is, else the chosen one.
fn chosen(a: f64, b: f64, choose: fn(f64, f64) -> f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { choose(a, b) }
}

/// A power of integers as ONNX has it: that of floats, cut to an integer.
#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "what the cut is")]
fn power(a: i128, b: i128) -> Option<i128> {
    match u32::try_from(b) {
        // Modulo 2^128, and so modulo any smaller power.
        Ok(b) => Some(a.wrapping_pow(b)),
        Err(_) if b < 0 => Some((a as f64).powf(b as f64) as i128),
        Err(_) => None,
    }
}

fn binary(call: &Call<'_>, a: &Array, b: &Array) -> Result<Option<Array>> {
    type Ints = fn(i128, i128) -> Option<i128>;
    type Floats = fn(f64, f64) -> f64;
    type Compares<T> = fn(T, T) -> bool;
    let op = call.op();
    let truth: Option<(Compares<i64>, Compares<f64>)> = match op {
        "Equal" => Some((|a, b| a == b, |a, b| a == b)),
        "Less" => Some((|a, b| a < b, |a, b| a < b)),
        "LessOrEqual" => Some((|a, b| a <= b, |a, b| a <= b)),
        "Greater" => Some((|a, b| a > b, |a, b| a > b)),
        "GreaterOrEqual" => Some((|a, b| a >= b, |a, b| a >= b)),
        "And" => Some((|a, b| a != 0 && b != 0, |_, _| false)),
        "Or" => Some((|a, b| a != 0 || b != 0, |_, _| false)),
        "Xor" => Some((|a, b| (a != 0) != (b != 0), |_, _| false)),
        _ => None,
    };
    let number: Option<(Ints, Floats)> = match op {
        "Add" => Some((i128::checked_add, |a, b| a + b)),
        "Sub" => Some((i128::checked_sub, |a, b| a - b)),
        "Mul" => Some((i128::checked_mul, |a, b| a * b)),
        "Div" => Some((i128::checked_div, |a, b| a / b)),
        "Min" => Some((|a, b| Some(a.min(b)), |a, b| chosen(a, b, f64::min))),
        "Max" => Some((|a, b| Some(a.max(b)), |a, b| chosen(a, b, f64::max))),
        "Mod" => Some(match Modulo::of(call)? {
            // The sign of the divisor, or of the dividend.
            Modulo::Floor => (
                |a, b| a.checked_rem(b).map(|r| if r != 0 && (r < 0) != (b < 0) { r + b } else { r }),
                |a, b| a - b * (a / b).floor(),
            ),
            Modulo::Trunc => (i128::checked_rem, |a, b| a % b),
        }),
        "Pow" if a.kind() == b.kind() => Some((power, f64::powf)),
        _ => None,
    };
    if truth.is_none() && number.is_none() {
        return Ok(None);
    }
    let Some(dims) = together(&[a, b])? else { return Ok(None) };
    let count: usize = dims.iter().product();
    call.budget.charge(count)?;
    let places = (0..count).map(|at| (source(&a.dims, &dims, at), source(&b.dims, &dims, at)));
    let element = if truth.is_some() { Element::Bool } else { a.element };
    let data = match (a.as_ints().zip(b.as_ints()), truth, number) {
        (Some((x, y)), Some((f, _)), _) => Data::Ints(places.map(|(i, j)| i64::from(f(x[i], y[j]))).collect()),
        (None, Some((_, f)), _) => {
            let (x, y) = (a.as_floats(), b.as_floats());
            Data::Ints(places.map(|(i, j)| i64::from(f(x[i], y[j]))).collect())
        }
        (Some((x, y)), _, Some((f, _))) => {
            let each = |(i, j): (usize, usize)| match f(i128::from(x[i]), i128::from(y[j])) {
                Some(number) => Ok(element.wrapped(number)),
                None => bail!(Checkpoint, "an integer is divided by 0"),
            };
            Data::Ints(places.map(each).collect::<Result<_>>()?)
        }
        (None, _, Some((_, f))) => {
            let (x, y) = (a.as_floats(), b.as_floats());
            Data::Floats(places.map(|(i, j)| element.rounded(f(x[i], y[j]))).collect())
        }
        (_, None, None) => return Ok(None),
    };
    Ok(Some(Array { dims, element, data }))
}
