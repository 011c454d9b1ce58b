//! Constant folding on the host while the model is recorded: extents, and small numbers computed from constants.
//!
//! Exporters write the shapes of a model as nodes: `Shape`, `Gather`, `Mul`, `Concat`, `Reshape`. None of these is left
//! when a model runs.

use super::call::{Call, Operators, known};
use super::value::{Array, Data, Value};
use crate::error::bail;
use crate::host::{reserve, try_filled};
use crate::onnx::proto::{attribute, element};
use crate::{Result, Shape};

/// The most elements of a constant that is computed on the host.
const MOST: usize = 1 << 16;

/// Operators with results that are always known.
pub(super) const OPERATORS: Operators = &[
    ("Constant", |call| known(constant(call)?)),
    ("ConstantOfShape", |call| known(constant_of_shape(call)?)),
    ("Shape", |call| known(shape(call)?)),
    ("Size", |call| {
        let dims = call.value(0)?.dims();
        let count = dims.iter().try_fold(1i64, |n, &extent| n.checked_mul(i64::try_from(extent).ok()?));
        known(Array { dims: Vec::new(), data: Data::Ints(vec![count.unwrap_or(i64::MAX)]) })
    }),
    ("Range", |call| known(range(call)?)),
];

/// The results of a node, if all its operands are known and its operator can be folded.
pub(super) fn fold(call: &Call<'_>) -> Result<Option<Vec<Array>>> {
    let Some(x) = call.inputs.iter().map(operand).collect::<Option<Vec<_>>>() else { return Ok(None) };
    let Some(Some(first)) = x.first() else { return Ok(None) };
    let small = x.iter().flatten().all(|array| array.len() <= MOST);
    if !small {
        return Ok(None);
    }
    let array = match (call.op(), &x[..]) {
        ("Identity", _) => (*first).clone(),
        ("Cast", _) => cast(first, call.int("to", 0)?)?,
        ("Unsqueeze", _) => {
            let list = call.optional_list("axes")?.map_or_else(|| call.ints(1), Ok)?;
            let rank = first.dims.len() + list.len();
            let mut axes = call.axes(&list, rank)?;
            axes.sort_unstable();
            let mut dims = first.dims.clone();
            for axis in axes {
                if axis > dims.len() {
                    bail!(Checkpoint, "an axis is twice in {list:?}");
                }
                dims.insert(axis, 1);
            }
            Array { dims, data: first.data.clone() }
        }
        ("Squeeze", _) => {
            let axes = call.optional_axes(1, first.dims.len())?;
            let goes = |axis: usize| axes.as_ref().map_or(first.dims[axis] == 1, |axes| axes.contains(&axis));
            let dims: Vec<_> = (0..first.dims.len()).filter(|&axis| !goes(axis)).map(|axis| first.dims[axis]).collect();
            if dims.iter().product::<usize>() != first.len() {
                bail!(Checkpoint, "axes {axes:?} of {:?} must have extent 1", first.dims);
            }
            Array { dims, data: first.data.clone() }
        }
        ("Reshape", [_, Some(_)]) => {
            let dims = reshaped(&first.dims, &call.ints(1)?, call.flag("allowzero", false)?)?;
            Array { dims, data: first.data.clone() }
        }
        ("Concat", _) => return Ok(concat(call, &x)?.map(|array| vec![array])),
        ("Gather", [_, Some(index)]) if first.dims.len() == 1 => {
            return gather(first, index).map(|array| Some(vec![array]));
        }
        ("Slice", _) if first.len() > 0 => slice(call, first)?,
        ("Transpose", _) if first.len() > 0 => transpose(call, first)?,
        ("ReduceProd", _) if first.dims.len() == 1 => {
            let Data::Ints(ints) = &first.data else { return Ok(None) };
            let product = ints.iter().try_fold(1i64, |product, &x| product.checked_mul(x));
            let Some(product) = product else { bail!(Checkpoint, "a product of extents overflows") };
            let dims = if call.flag("keepdims", true)? { vec![1] } else { Vec::new() };
            Array { dims, data: Data::Ints(vec![product]) }
        }
        ("Expand", [_, Some(_)]) if first.len() == 1 => {
            let ints = call.ints(1)?;
            let dims = ints.iter().map(|&extent| usize::try_from(extent)).collect::<Result<Vec<_>, _>>();
            let (Ok(dims), 1) = (dims, first.dims.iter().product::<usize>()) else { return Ok(None) };
            match dims.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent)) {
                Some(count) if count <= MOST && dims.len() >= first.dims.len() => spread(first, dims, count)?,
                _ => return Ok(None),
            }
        }
        ("Where", [_, Some(a), Some(b)]) => return where_(first, a, b).map(|array| array.map(|array| vec![array])),
        ("Neg" | "Abs" | "Floor" | "Ceil" | "Round" | "Sqrt" | "Not" | "Exp" | "Log" | "Reciprocal", [_]) => {
            return Ok(unary(call.op(), first).map(|array| vec![array]));
        }
        (op, [Some(a), Some(b)]) => return binary(op, a, b).map(|array| array.map(|array| vec![array])),
        _ => return Ok(None),
    };
    Ok(Some(vec![array]))
}

/// A known operand, or an omitted one.
#[expect(clippy::option_option, reason = "neither is an operand that is computed when the model runs")]
fn operand(value: &Option<Value>) -> Option<Option<&Array>> {
    match value {
        Some(Value::Known(array)) => Some(Some(array)),
        Some(Value::Var(..)) => None,
        None => Some(None),
    }
}

fn constant(call: &Call<'_>) -> Result<Array> {
    if let Some(array) = call.tensor("value")? {
        return Ok(array);
    }
    let scalar = |data| Array { dims: Vec::new(), data };
    if call.attribute("value_float")?.is_some() {
        return Ok(scalar(Data::Floats(vec![call.real("value_float", 0.0)?])));
    }
    if let Some(number) = call.optional_int("value_int")? {
        return Ok(scalar(Data::Ints(vec![number])));
    }
    if let Some(list) = call.optional_list("value_ints")? {
        return Ok(Array::ints(list));
    }
    match call.attribute("value_floats")? {
        Some(found) if found.kind == attribute::INT || found.kind == attribute::INTS => {
            bail!(Checkpoint, "the attribute `value_floats` holds integers")
        }
        Some(found) => {
            let floats: Vec<_> = found.floats.iter().copied().map(f64::from).collect();
            Ok(Array { dims: vec![floats.len()], data: Data::Floats(floats) })
        }
        None => bail!(Checkpoint, "it has none of the supported values: numbers, or a tensor of them"),
    }
}

fn constant_of_shape(call: &Call<'_>) -> Result<Array> {
    let ints = call.ints(0)?;
    let Ok(dims) = ints.iter().map(|&extent| usize::try_from(extent)).collect::<Result<Vec<_>, _>>() else {
        bail!(Checkpoint, "one of the extents {ints:?} is invalid");
    };
    let count = dims.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent));
    let Some(count) = count.filter(|&count| count <= MOST) else {
        bail!(Checkpoint, "the extents {dims:?} of a constant are too large");
    };
    let one = call.tensor("value")?.unwrap_or(Array { dims: vec![1], data: Data::Floats(vec![0.0]) });
    if one.len() != 1 {
        bail!(Checkpoint, "{} values, not one", one.len());
    }
    spread(&one, dims, count)
}

/// `count` copies of one number.
fn spread(one: &Array, dims: Vec<usize>, count: usize) -> Result<Array> {
    let data = match &one.data {
        Data::Floats(numbers) => Data::Floats(try_filled(count, numbers[0])?),
        Data::Ints(numbers) => Data::Ints(try_filled(count, numbers[0])?),
        Data::Bools(numbers) => Data::Bools(try_filled(count, numbers[0])?),
    };
    Ok(Array { dims, data })
}

fn shape(call: &Call<'_>) -> Result<Array> {
    let dims = call.value(0)?.dims();
    let count = i64::try_from(dims.len()).unwrap_or(i64::MAX);
    let end = |name, default| -> Result<usize> {
        let at = call.int(name, default)?;
        let at = if at < 0 { at.saturating_add(count) } else { at };
        Ok(usize::try_from(at.clamp(0, count)).unwrap_or(0))
    };
    let (start, end) = (end("start", 0)?, end("end", count)?);
    let extents = dims.get(start..end.max(start)).unwrap_or_default();
    Ok(Array::ints(extents.iter().map(|&extent| i64::try_from(extent).unwrap_or(i64::MAX)).collect()))
}

fn range(call: &Call<'_>) -> Result<Array> {
    let is_int = (0..3).all(|k| call.known(k).is_ok_and(|array| array.as_ints().is_some()));
    let [start, end, step] = [call.number(0)?, call.number(1)?, call.number(2)?];
    let count = ((end - start) / step).ceil().max(0.0);
    if !count.is_finite() || count > MOST as f64 {
        bail!(Checkpoint, "the range from {start} to {end} in steps of {step} has too many elements");
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small count")]
    let count = count as u32;
    let numbers = (0..count).map(|k| f64::from(k).mul_add(step, start));
    #[expect(clippy::cast_possible_truncation, reason = "small integers")]
    let data = match is_int {
        true => Data::Ints(numbers.map(|number| number as i64).collect()),
        false => Data::Floats(numbers.collect()),
    };
    Ok(Array { dims: vec![count as usize], data })
}

/// The extents of `Reshape`: 0 keeps an extent, −1 is inferred.
pub(super) fn reshaped(from: &[usize], to: &[i64], zero_is_zero: bool) -> Result<Vec<usize>> {
    let mut open = None;
    let mut dims = Vec::with_capacity(to.len());
    for (axis, &extent) in to.iter().enumerate() {
        dims.push(match extent {
            0 if !zero_is_zero => match from.get(axis) {
                Some(&extent) => extent,
                None => bail!(Checkpoint, "the shape {to:?} keeps axis {axis}, which {from:?} does not have"),
            },
            -1 if open.is_none() => {
                open = Some(axis);
                1
            }
            extent => match usize::try_from(extent) {
                Ok(extent) => extent,
                Err(_) => bail!(Checkpoint, "a shape {to:?}"),
            },
        });
    }
    let count = |dims: &[usize]| dims.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent));
    let (Some(all), Some(known)) = (count(from), count(&dims)) else {
        bail!(Checkpoint, "a shape {to:?}, which is too large");
    };
    if let Some(axis) = open {
        if known == 0 || all % known != 0 {
            bail!(Checkpoint, "{from:?} cannot have the shape {to:?}");
        }
        dims[axis] = all / known;
    }
    if dims.iter().product::<usize>() != all {
        bail!(Checkpoint, "{from:?} cannot have the shape {to:?}");
    }
    Ok(dims)
}

#[expect(clippy::cast_possible_truncation, reason = "floats become the integers before them, as ONNX says")]
fn cast(x: &Array, to: i64) -> Result<Array> {
    let data = match i32::try_from(to).unwrap_or(0) {
        element::FLOAT | element::DOUBLE | element::FLOAT16 | element::BFLOAT16 => Data::Floats(x.as_floats()),
        element::BOOL => Data::Bools(x.as_floats().into_iter().map(|number| i64::from(number != 0.0)).collect()),
        element::INT64
        | element::INT32
        | element::INT16
        | element::INT8
        | element::UINT8
        | element::UINT16
        | element::UINT32
        | element::UINT64 => match &x.data {
            Data::Floats(numbers) => Data::Ints(numbers.iter().map(|&number| number as i64).collect()),
            Data::Ints(numbers) | Data::Bools(numbers) => Data::Ints(numbers.clone()),
        },
        other => bail!(Checkpoint, "casts to type {other} are not supported"),
    };
    Ok(Array { dims: x.dims.clone(), data })
}

/// The concatenation of vectors.
fn concat(call: &Call<'_>, x: &[Option<&Array>]) -> Result<Option<Array>> {
    let x: Vec<_> = x.iter().flatten().collect();
    if x.iter().any(|array| array.dims.len() != 1) {
        return Ok(None);
    }
    call.axis(call.int("axis", 0)?, 1)?;
    let count = x.iter().map(|array| array.len()).sum();
    let data = if x.iter().all(|array| array.as_ints().is_some()) {
        let mut ints = Vec::new();
        reserve(&mut ints, count)?;
        x.iter().filter_map(|array| array.as_ints()).for_each(|part| ints.extend_from_slice(part));
        Data::Ints(ints)
    } else {
        Data::Floats(x.iter().flat_map(|array| array.as_floats()).collect())
    };
    Ok(Some(Array { dims: vec![count], data }))
}

/// Selected elements of a vector.
fn pick(x: &Array, places: &[usize], dims: Vec<usize>) -> Array {
    let data = match &x.data {
        Data::Floats(numbers) => Data::Floats(places.iter().map(|&at| numbers[at]).collect()),
        Data::Ints(numbers) => Data::Ints(places.iter().map(|&at| numbers[at]).collect()),
        Data::Bools(numbers) => Data::Bools(places.iter().map(|&at| numbers[at]).collect()),
    };
    Array { dims, data }
}

fn gather(x: &Array, index: &Array) -> Result<Array> {
    let Some(ints) = index.as_ints() else { bail!(Checkpoint, "floats cannot be indices") };
    let count = i64::try_from(x.len()).unwrap_or(i64::MAX);
    let place = |&index: &i64| {
        let at = if index < 0 { index.saturating_add(count) } else { index };
        match usize::try_from(at) {
            Ok(at) if at < x.len() => Ok(at),
            _ => bail!(Checkpoint, "element {index} of {}", x.len()),
        }
    };
    Ok(pick(x, &ints.iter().map(place).collect::<Result<Vec<_>>>()?, index.dims.clone()))
}

fn slice(call: &Call<'_>, x: &Array) -> Result<Array> {
    let mut places: Vec<Vec<usize>> = x.dims.iter().map(|&extent| (0..extent).collect()).collect();
    for (axis, range) in super::shapes::ranges(call, &x.dims)? {
        places[axis] = range.places().collect();
    }
    let dims: Vec<_> = places.iter().map(Vec::len).collect();
    Ok(arranged(x, dims, |axis, at| (axis, places[axis][at])))
}

fn transpose(call: &Call<'_>, x: &Array) -> Result<Array> {
    let rank = x.dims.len();
    let axes = match call.optional_list("perm")? {
        Some(list) => call.axes(&list, rank)?,
        None => (0..rank).rev().collect(),
    };
    let mut sorted = axes.clone();
    sorted.sort_unstable();
    if !sorted.into_iter().eq(0..rank) {
        bail!(Checkpoint, "the axes {axes:?} of {:?}", x.dims);
    }
    let dims = axes.iter().map(|&axis| x.dims[axis]).collect();
    Ok(arranged(x, dims, |axis, at| (axes[axis], at)))
}

/// Elements in another order. For an axis of the result and a place along it, `from` returns the axis of `x` and the
/// place along that.
fn arranged(x: &Array, dims: Vec<usize>, from: impl Fn(usize, usize) -> (usize, usize)) -> Array {
    let mut strides = vec![1; x.dims.len()];
    (1..strides.len()).rev().for_each(|axis| strides[axis - 1] = strides[axis] * x.dims[axis]);
    let place = |mut at: usize| {
        let mut place = 0;
        for axis in (0..dims.len()).rev() {
            let (own, number) = from(axis, at % dims[axis]);
            place += number * strides[own];
            at /= dims[axis];
        }
        place
    };
    let places: Vec<_> = (0..dims.iter().product()).map(place).collect();
    pick(x, &places, dims)
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

/// The extents of the result of operands that broadcast; `None` if it is empty or not small.
fn together(x: &[&Array]) -> Result<Option<Vec<usize>>> {
    if x.iter().any(|array| array.dims.contains(&0)) {
        return Ok(None);
    }
    let mut out = Shape::SCALAR;
    for array in x {
        let shape = array.shape()?;
        match out.broadcast(&shape) {
            Some(shape) => out = shape,
            None => bail!(Checkpoint, "{out} and {shape} do not broadcast"),
        }
    }
    Ok((out.elements() <= MOST).then(|| out.dims().to_vec()))
}

fn where_(condition: &Array, a: &Array, b: &Array) -> Result<Option<Array>> {
    let Some(dims) = together(&[condition, a, b])? else { return Ok(None) };
    let Some(truth) = condition.as_ints() else { bail!(Checkpoint, "the condition holds floats") };
    let count = dims.iter().product();
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
    Ok(Some(Array { dims, data }))
}

fn unary(op: &str, x: &Array) -> Option<Array> {
    let data = match (&x.data, op) {
        (Data::Ints(numbers), "Neg") => Data::Ints(numbers.iter().map(|number| number.wrapping_neg()).collect()),
        (Data::Ints(numbers), "Abs") => Data::Ints(numbers.iter().map(|number| number.saturating_abs()).collect()),
        (Data::Bools(numbers), "Not") => Data::Bools(numbers.iter().map(|&number| i64::from(number == 0)).collect()),
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
                _ => return None,
            };
            Data::Floats(numbers.iter().copied().map(f).collect())
        }
        _ => return None,
    };
    Some(Array { dims: x.dims.clone(), data })
}

fn binary(op: &str, a: &Array, b: &Array) -> Result<Option<Array>> {
    type Ints = fn(i64, i64) -> Option<i64>;
    type Floats = fn(f64, f64) -> f64;
    type Compares<T> = fn(T, T) -> bool;
    let truth: Option<(Compares<i64>, Compares<f64>)> = match op {
        "Equal" => Some((|a, b| a == b, |a, b| a == b)),
        "Less" => Some((|a, b| a < b, |a, b| a < b)),
        "LessOrEqual" => Some((|a, b| a <= b, |a, b| a <= b)),
        "Greater" => Some((|a, b| a > b, |a, b| a > b)),
        "GreaterOrEqual" => Some((|a, b| a >= b, |a, b| a >= b)),
        "And" => Some((|a, b| a != 0 && b != 0, |_, _| false)),
        "Or" => Some((|a, b| a != 0 || b != 0, |_, _| false)),
        _ => None,
    };
    let number: Option<(Ints, Floats)> = match op {
        "Add" => Some((i64::checked_add, |a, b| a + b)),
        "Sub" => Some((i64::checked_sub, |a, b| a - b)),
        "Mul" => Some((i64::checked_mul, |a, b| a * b)),
        "Div" => Some((i64::checked_div, |a, b| a / b)),
        "Min" => Some((|a, b| Some(a.min(b)), f64::min)),
        "Max" => Some((|a, b| Some(a.max(b)), f64::max)),
        "Mod" => Some((i64::checked_rem_euclid, f64::rem_euclid)),
        "Pow" => Some((|a, b| a.checked_pow(u32::try_from(b).ok()?), f64::powf)),
        _ => None,
    };
    if truth.is_none() && number.is_none() {
        return Ok(None);
    }
    let Some(dims) = together(&[a, b])? else { return Ok(None) };
    let count: usize = dims.iter().product();
    let places = (0..count).map(|at| (source(&a.dims, &dims, at), source(&b.dims, &dims, at)));
    if matches!(op, "And" | "Or") && a.as_ints().zip(b.as_ints()).is_none() {
        bail!(Checkpoint, "the conditions hold floats");
    }
    let data = match (a.as_ints().zip(b.as_ints()), truth, number) {
        (Some((x, y)), Some((f, _)), _) => Data::Bools(places.map(|(i, j)| i64::from(f(x[i], y[j]))).collect()),
        (None, Some((_, f)), _) => {
            let (x, y) = (a.as_floats(), b.as_floats());
            Data::Bools(places.map(|(i, j)| i64::from(f(x[i], y[j]))).collect())
        }
        (Some((x, y)), _, Some((f, _))) => match places.map(|(i, j)| f(x[i], y[j])).collect() {
            Some(numbers) => Data::Ints(numbers),
            None => bail!(Checkpoint, "an integer of {op} overflows, or is divided by 0"),
        },
        (None, _, Some((_, f))) => {
            let (x, y) = (a.as_floats(), b.as_floats());
            Data::Floats(places.map(|(i, j)| f(x[i], y[j])).collect())
        }
        (_, None, None) => return Ok(None),
    };
    Ok(Some(Array { dims, data }))
}
