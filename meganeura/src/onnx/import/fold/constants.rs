//! Operators with results that are always known.

use super::{MOST, small};
use crate::Result;
use crate::error::bail;
use crate::host::{reserve, try_filled};
use crate::onnx::import::call::{Call, Operators, known};
use crate::onnx::import::element::{Element, Kind};
use crate::onnx::import::value::{Array, Data, Value, sound};
use crate::onnx::proto::attribute;

/// These operators.
pub(in crate::onnx::import) const OPERATORS: Operators = &[
    ("Constant", |call| known(constant(call)?)),
    ("ConstantOfShape", constant_of_shape),
    ("Shape", |call| known(shape(call)?)),
    ("Size", |call| {
        let dims = call.value(0)?.dims();
        let count = dims.iter().try_fold(1i64, |n, &extent| n.checked_mul(i64::try_from(extent).ok()?));
        known(Array::int(count.unwrap_or(i64::MAX)))
    }),
    ("Range", |call| known(range(call)?)),
];

fn constant(call: &Call<'_>) -> Result<Array> {
    if let Some(array) = call.tensor("value")? {
        return Ok(array);
    }
    if call.attribute("value_float")?.is_some() {
        let data = Data::Floats(vec![f64::from(call.real("value_float", 0.0)? as f32)]);
        return Ok(Array { dims: Vec::new(), element: Element::F32, data });
    }
    if let Some(number) = call.optional_int("value_int")? {
        return Ok(Array::int(number));
    }
    if let Some(list) = call.optional_list("value_ints")? {
        return Ok(Array::ints(list));
    }
    if call.attribute("value_string")?.is_some() {
        return Ok(call.texts.borrow_mut().array(Vec::new(), &[call.text("value_string", "")?]));
    }
    if let Some(texts) = call.texts("value_strings")? {
        return Ok(call.texts.borrow_mut().array(vec![texts.len()], &texts));
    }
    match call.attribute("value_floats")? {
        Some(found) if found.kind != attribute::FLOATS => {
            bail!(Checkpoint, "the attribute `value_floats` holds no floats")
        }
        Some(found) => {
            let floats: Vec<_> = found.floats.iter().copied().map(f64::from).collect();
            Ok(Array { dims: vec![floats.len()], element: Element::F32, data: Data::Floats(floats) })
        }
        None => bail!(Checkpoint, "it has none of the supported values: numbers, texts, or a tensor of them"),
    }
}

fn constant_of_shape(call: &Call<'_>) -> Result<Vec<Value>> {
    let array = call.known(0)?;
    if array.dims.len() != 1 {
        bail!(Checkpoint, "the extents have {} axes, not one", array.dims.len());
    }
    let ints = call.ints(0)?;
    let Ok(dims) = ints.iter().map(|&extent| usize::try_from(extent)).collect::<Result<Vec<_>, _>>() else {
        bail!(Checkpoint, "one of the extents {ints:?} is invalid");
    };
    let zero = Array { dims: vec![1], element: Element::F32, data: Data::Floats(vec![0.0]) };
    let one = call.tensor("value")?.unwrap_or(zero);
    if one.len() != 1 {
        bail!(Checkpoint, "{} values, not one", one.len());
    }
    let Some(count) = small(&dims) else {
        // On the tape, it takes no memory.
        let value = Value::Known(one.into());
        let var = value.own(call.tape)?.reshape([]).expand(call.shape(&dims)?);
        return Ok(vec![Value::Var(sound(var)?, value.element())]);
    };
    call.budget.charge(count)?;
    known(spread(&one, dims, count)?)
}

/// `count` copies of one number.
pub(super) fn spread(one: &Array, dims: Vec<usize>, count: usize) -> Result<Array> {
    let data = match &one.data {
        Data::Floats(numbers) => Data::Floats(try_filled(count, numbers[0])?),
        Data::Ints(numbers) => Data::Ints(try_filled(count, numbers[0])?),
    };
    Ok(Array { dims, element: one.element, data })
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

/// `start + k·step` up to `end`. Floats add the step each time, as `onnxruntime` does.
fn range(call: &Call<'_>) -> Result<Array> {
    call.only("stash_type", 1, 1)?;
    let element = call.known(0)?.element;
    let number = |k: usize| call.number(k);
    let [start, end, step] = [number(0)?, number(1)?, number(2)?];
    if element.kind() == Kind::Int {
        let int = |k: usize| Ok::<_, crate::Error>(i128::from(call.ints(k)?[0]));
        let [start, end, step] = [int(0)?, int(1)?, int(2)?];
        if step == 0 {
            bail!(Checkpoint, "the step must not be 0");
        }
        let far = if step > 0 { end - start } else { start - end };
        let (far, step_size) = (far.max(0), step.abs());
        let count = far / step_size + i128::from(far % step_size != 0);
        let count = counted(call, count.try_into().ok())?;
        let mut ints = Vec::new();
        reserve(&mut ints, count)?;
        for k in 0..count {
            ints.push(element.wrapped(start + k as i128 * step));
        }
        return Ok(Array { dims: vec![count], element, data: Data::Ints(ints) });
    }
    let steps = (element.rounded(end - start) / step).ceil().max(0.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count that was compared")]
    let count = counted(call, (steps <= MOST as f64).then_some(steps as usize))?;
    let mut floats = Vec::new();
    reserve(&mut floats, count)?;
    let mut next = start;
    for _ in 0..count {
        floats.push(next);
        next = element.rounded(next + step);
    }
    Ok(Array { dims: vec![count], element, data: Data::Floats(floats) })
}

/// A number of elements that may be computed.
fn counted(call: &Call<'_>, count: Option<usize>) -> Result<usize> {
    let Some(count) = count.filter(|&count| count <= MOST) else {
        bail!(Checkpoint, "the range has more than {MOST} elements, or no number of them");
    };
    call.budget.charge(count)?;
    Ok(count)
}
