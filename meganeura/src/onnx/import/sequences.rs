//! Sequences of tensors and optional values. The length of a sequence is known while the model is recorded.

use std::sync::Arc;

use super::call::{Call, Operators, known};
use super::control::stacked;
use super::element::Element;
use super::numeric::named_type;
use super::shapes::{concatenated, parts, sizes};
use super::value::{Array, Data, Value};
use crate::Result;
use crate::error::bail;

pub(super) const OPERATORS: Operators = &[
    ("ConcatFromSequence", |call| {
        let (items, axis) = (items(call, 0)?, call.required("axis")?);
        if call.flag("new_axis", false)? {
            return Ok(vec![stacked(call, items, axis, false)?]);
        }
        Ok(vec![concatenated(call, &items.iter().collect::<Vec<_>>(), axis)?])
    }),
    ("Optional", |call| {
        call.ignore(&["type"]);
        Ok(vec![call.optional(0).cloned().unwrap_or(Value::Nothing(Element::F32))])
    }),
    ("OptionalGetElement", |call| match call.value(0)? {
        Value::Nothing(_) => bail!(Checkpoint, "the optional value is left out"),
        value => Ok(vec![value.clone()]),
    }),
    ("OptionalHasElement", |call| {
        let has_element = i64::from(!matches!(call.optional(0), None | Some(Value::Nothing(_))));
        known(Array { dims: Vec::new(), element: Element::Bool, data: Data::Ints(vec![has_element]) })
    }),
    ("SequenceAt", |call| {
        let items = items(call, 0)?;
        Ok(vec![items[place(call, 1, items.len())?].clone()])
    }),
    ("SequenceConstruct", |call| sequence(call.inputs.iter().flatten().cloned().collect(), call.value(0)?.element())),
    ("SequenceEmpty", |call| sequence(Vec::new(), named_type(call, "dtype", Element::F32)?)),
    ("SequenceErase", |call| {
        let mut items = items(call, 0)?.to_vec();
        let Some(last) = items.len().checked_sub(1) else { bail!(Checkpoint, "the sequence is empty") };
        items.remove(if call.optional(1).is_some() { place(call, 1, items.len())? } else { last });
        sequence(items, call.value(0)?.element())
    }),
    ("SequenceInsert", |call| {
        let (mut items, value) = (items(call, 0)?.to_vec(), call.value(1)?);
        if value.element() != call.value(0)?.element() {
            bail!(
                Checkpoint,
                "a tensor of {} into a sequence of {}",
                value.element().name(),
                call.value(0)?.element().name()
            );
        }
        let count = items.len();
        // Negative places count from the end, before which there is one more place.
        let at = match call.optional(2) {
            None => count,
            Some(_) => match call.ints(2)?[..] {
                [at] if usize::try_from(at) == Ok(count) => count,
                _ => place(call, 2, count)?,
            },
        };
        items.insert(at, value.clone());
        sequence(items, value.element())
    }),
    ("SequenceLength", |call| known(Array::int(i64::try_from(items(call, 0)?.len()).unwrap_or(i64::MAX)))),
    ("SequenceMap", map),
    ("SplitToSequence", split),
];

#[expect(clippy::unnecessary_wraps, reason = "what an operator returns")]
fn sequence(items: Vec<Value>, element: Element) -> Result<Vec<Value>> {
    Ok(vec![Value::Sequence(items.into(), element)])
}

/// The tensors of an operand that is a sequence.
fn items<'a>(call: &'a Call<'_>, k: usize) -> Result<&'a Arc<[Value]>> {
    match call.value(k)? {
        Value::Sequence(items, _) => Ok(items),
        _ => bail!(Checkpoint, "operand {k} is a tensor, not a sequence"),
    }
}

/// A place in a sequence; negative ones count from its end.
fn place(call: &Call<'_>, k: usize, count: usize) -> Result<usize> {
    let [at] = call.ints(k)?[..] else { bail!(Checkpoint, "operand {k} is not one place in a sequence") };
    let from_start = if at < 0 { at.saturating_add_unsigned(count as u64) } else { at };
    match usize::try_from(from_start) {
        Ok(place) if place < count => Ok(place),
        _ => bail!(Checkpoint, "place {at} of a sequence of {count} tensors"),
    }
}

/// The results of a graph for each tensor of a sequence, with those at the same place of other sequences.
fn map(call: &Call<'_>) -> Result<Vec<Value>> {
    let body = call.graph("body")?;
    let count = items(call, 0)?.len();
    let mut results = vec![Vec::new(); body.output.len()];
    for k in 0..count {
        call.budget.charge(32 * (1 + body.node.len()))?;
        let of = |value: &Option<Value>| match value {
            Some(Value::Sequence(items, _)) => match items.get(k) {
                Some(item) if items.len() == count => Ok(item.clone()),
                _ => bail!(Checkpoint, "sequences of {count} and of {} tensors", items.len()),
            },
            Some(value) => Ok(value.clone()),
            None => bail!(Checkpoint, "an operand is missing"),
        };
        let operands = call.inputs.iter().map(of).collect::<Result<Vec<_>>>()?;
        results.iter_mut().zip(call.record(body, operands)?).for_each(|(all, value)| all.push(value));
    }
    let of_results = |values: Vec<Value>| {
        let Some(element) = values.first().map(Value::element) else {
            bail!(Checkpoint, "the sequence is empty, so that its results have no type");
        };
        Ok(Value::Sequence(values.into(), element))
    };
    results.into_iter().map(of_results).collect()
}

/// Parts along an axis: of given extents, of one extent as far as it goes, or of 1.
fn split(call: &Call<'_>) -> Result<Vec<Value>> {
    let dims = call.value(0)?.dims();
    let axis = call.axis(call.int("axis", 0)?, dims.len())?;
    let (extent, keeps) = (dims[axis], call.flag("keepdims", true)?);
    let equal = |part: usize| (0..extent.div_ceil(part)).map(|k| part.min(extent - k * part)).collect::<Vec<_>>();
    let extents = match call.optional(1) {
        None => equal(1),
        Some(value) if value.dims().is_empty() => match sizes(&call.ints(1)?)?[..] {
            [part] if part > 0 => equal(part),
            ref parts => bail!(Checkpoint, "parts of {parts:?} elements"),
        },
        Some(_) => sizes(&call.ints(1)?)?,
    };
    call.budget.charge(extents.len())?;
    let mut items = parts(call, axis, &extents)?;
    if !keeps && call.optional(1).is_none() {
        let mut dims = dims;
        dims.remove(axis);
        let shape = call.shape(&dims)?;
        for item in &mut items {
            if let Value::Var(var, _) = item {
                *var = var.reshape(shape);
            }
        }
    }
    sequence(items, call.value(0)?.element())
}
