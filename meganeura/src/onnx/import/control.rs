//! Graphs inside nodes: branches and loops. They are unrolled where conditions and counts are known while the model is
//! recorded. Of a branch that is chosen when the model runs, both sides are computed.

use std::sync::Arc;

use super::call::{Call, Operators};
use super::element::Element;
use super::value::{Array, Data, Value, sound};
use crate::error::bail;
use crate::onnx::proto;
use crate::{ErrorKind, Result, Var};

pub(super) const OPERATORS: Operators = &[("If", branch), ("Loop", loop_), ("Scan", scan)];

/// What the budget for constants is charged for each node that a loop records: nodes take memory.
const OF_NODE: usize = 32;

/// A condition, if it is known now.
fn truth(call: &Call<'_>, value: &Value) -> Result<Option<bool>> {
    match value.read(call.tape) {
        Ok(array) => match array.as_floats()[..] {
            [number] => Ok(Some(number != 0.0)),
            ref numbers => bail!(Checkpoint, "a condition of {} elements", numbers.len()),
        },
        Err(error) if error.kind() == ErrorKind::Argument => Ok(None),
        Err(error) => Err(error),
    }
}

fn branch(call: &Call<'_>) -> Result<Vec<Value>> {
    let (yes, no) = (call.graph("then_branch")?, call.graph("else_branch")?);
    match truth(call, call.value(0)?)? {
        Some(true) => call.record(yes, Vec::new()),
        Some(false) => call.record(no, Vec::new()),
        None => {
            let condition = call.float(0)?.reshape([]);
            let (yes, no) = (call.record(yes, Vec::new())?, call.record(no, Vec::new())?);
            if yes.len() != no.len() {
                bail!(Checkpoint, "its branches have {} and {} results", yes.len(), no.len());
            }
            yes.iter().zip(&no).map(|(yes, no)| either(call, &condition, yes, no)).collect()
        }
    }
}

/// One of two values, chosen when the model runs.
fn either(call: &Call<'_>, condition: &Var, yes: &Value, no: &Value) -> Result<Value> {
    if let (Value::Sequence(yes, element), Value::Sequence(no, _)) = (yes, no)
        && yes.len() == no.len()
    {
        let items = yes.iter().zip(&**no).map(|(yes, no)| either(call, condition, yes, no));
        return Ok(Value::Sequence(items.collect::<Result<_>>()?, *element));
    }
    if yes.element() != no.element() || yes.dims() != no.dims() {
        let of = |value: &Value| format!("{}{:?}", value.element().name(), value.dims());
        bail!(
            Checkpoint,
            "its condition is computed at run time, and its branches have results of different types, {} and {}",
            of(yes),
            of(no)
        );
    }
    let chosen = condition.where_cond(&yes.own(call.tape)?, &no.own(call.tape)?);
    Ok(Value::Var(sound(chosen)?, yes.element()))
}

/// Charges the budget for recording a graph once more.
fn charge(call: &Call<'_>, graph: &proto::Graph) -> Result<()> {
    call.budget.charge(OF_NODE * (1 + graph.node.len()))
}

fn loop_(call: &Call<'_>) -> Result<Vec<Value>> {
    let body = call.graph("body")?;
    let count = match call.optional(0) {
        Some(_) => match call.ints(0)?[..] {
            [count] => Some(count),
            ref counts => bail!(Checkpoint, "{} counts, not one", counts.len()),
        },
        None => None,
    };
    let known = |value: &Value| match truth(call, value)? {
        Some(truth) => Ok(truth),
        None => bail!(
            Checkpoint,
            "the condition to go on depends on the values of inputs: use `Model::run`, which knows them"
        ),
    };
    let mut condition = call.optional(1).cloned();
    let mut goes_on = condition.as_ref().map_or(Ok(true), known)?;
    let carried = call.inputs.len().saturating_sub(2);
    let mut state = (2..call.inputs.len()).map(|k| call.value(k).cloned()).collect::<Result<Vec<_>>>()?;
    let scans = body.output.len().checked_sub(1 + carried);
    let Some(scans) = scans else {
        bail!(Checkpoint, "its body has {} results, for {carried} values that it passes on", body.output.len());
    };
    let mut all = vec![Vec::new(); scans];
    let mut step = 0;
    while goes_on && count.is_none_or(|count| step < count) {
        charge(call, body)?;
        let truth = condition.take().unwrap_or_else(|| {
            Value::Known(Arc::new(Array { dims: Vec::new(), element: Element::Bool, data: Data::Ints(vec![1]) }))
        });
        let mut operands = vec![Value::Known(Arc::new(Array::int(step))), truth];
        operands.append(&mut state);
        // A body without the condition, or the number of the step, still lists both.
        let mut results = call.record(body, operands)?.into_iter();
        let next = results.next();
        goes_on = next.as_ref().map_or(Ok(true), known)?;
        condition = next;
        state = results.by_ref().take(carried).collect();
        all.iter_mut().zip(results).for_each(|(all, value)| all.push(value));
        step += 1;
    }
    for values in &all {
        state.push(stacked(call, values, 0, false)?);
    }
    Ok(state)
}

/// Values side by side along a new axis.
pub(super) fn stacked(call: &Call<'_>, values: &[Value], axis: i64, reverse: bool) -> Result<Value> {
    let Some(first) = values.first() else {
        bail!(Checkpoint, "a loop without any step, whose results have no elements");
    };
    let axis = call.axis(axis, first.dims().len() + 1)?;
    let element = first.element();
    let mut vars = Vec::new();
    for value in values {
        if value.element() != element || value.dims() != first.dims() {
            bail!(Checkpoint, "the results of a loop's steps have different types");
        }
        vars.push(value.own(call.tape)?);
    }
    if reverse {
        vars.reverse();
    }
    if let (0, [Value::Known(array), ..]) = (axis, values)
        && let Some(arrays) = values.iter().map(known).collect::<Option<Vec<_>>>()
    {
        let dims = [&[arrays.len()], &array.dims[..]].concat();
        let mut arrays = arrays;
        if reverse {
            arrays.reverse();
        }
        let data = match &array.data {
            Data::Floats(_) => Data::Floats(arrays.iter().flat_map(|array| array.as_floats()).collect()),
            Data::Ints(_) => Data::Ints(arrays.iter().filter_map(|array| array.as_ints()).flatten().copied().collect()),
        };
        return Ok(Value::Known(Arc::new(Array { dims, element: array.element, data })));
    }
    Ok(Value::Var(sound(Var::stack(&vars.iter().collect::<Vec<_>>(), axis))?, element))
}

fn known(value: &Value) -> Option<&Array> {
    match value {
        Value::Known(array) => Some(array),
        Value::Var(..) | Value::Sequence(..) | Value::Nothing(_) => None,
    }
}

/// Element `k` along an axis.
fn element(call: &Call<'_>, value: &Value, axis: usize, k: usize) -> Result<Value> {
    let mut dims = value.dims();
    dims.remove(axis);
    let x = value.stored(call.tape)?;
    let part = sound(x.slice(axis, k..k + 1).reshape(call.shape(&dims)?))?;
    Ok(Value::Var(part, value.element()))
}

fn scan(call: &Call<'_>) -> Result<Vec<Value>> {
    let body = call.graph("body")?;
    let scanned = match usize::try_from(call.required("num_scan_inputs")?) {
        Ok(scanned @ 1..) if scanned <= call.inputs.len() => scanned,
        _ => bail!(Checkpoint, "the attribute `num_scan_inputs` does not fit {} operands", call.inputs.len()),
    };
    let carried = call.inputs.len() - scanned;
    let Some(results) = body.output.len().checked_sub(carried) else {
        bail!(Checkpoint, "its body has {} results, for {carried} values that it passes on", body.output.len());
    };
    let list = |name: &str, count: usize| match call.optional_list(name)? {
        Some(list) if list.len() != count => {
            bail!(Checkpoint, "the attribute `{name}` is {list:?}, not {count} numbers")
        }
        list => Ok(list.unwrap_or_else(|| vec![0; count])),
    };
    let (axes, reverse) = (list("scan_input_axes", scanned)?, list("scan_input_directions", scanned)?);
    let (to_axes, to_reverse) = (list("scan_output_axes", results)?, list("scan_output_directions", results)?);
    let mut state = (0..carried).map(|k| call.value(k).cloned()).collect::<Result<Vec<_>>>()?;
    let mut sources = Vec::new();
    let mut steps = None;
    for (k, (&axis, &reverse)) in axes.iter().zip(&reverse).enumerate() {
        let value = call.value(carried + k)?;
        let axis = call.axis(axis, value.dims().len())?;
        let extent = value.dims()[axis];
        if steps.is_some_and(|steps| steps != extent) {
            bail!(Checkpoint, "operand {} has {extent} elements along axis {axis}, another has {steps:?}", carried + k);
        }
        steps = Some(extent);
        sources.push((value, axis, reverse != 0));
    }
    let steps = steps.unwrap_or(0);
    let mut all = vec![Vec::new(); results];
    for step in 0..steps {
        charge(call, body)?;
        let mut operands = std::mem::take(&mut state);
        for &(value, axis, reverse) in &sources {
            operands.push(element(call, value, axis, if reverse { steps - 1 - step } else { step })?);
        }
        let mut found = call.record(body, operands)?.into_iter();
        state = found.by_ref().take(carried).collect();
        all.iter_mut().zip(found).for_each(|(all, value)| all.push(value));
    }
    for ((values, axis), reverse) in all.iter().zip(to_axes).zip(to_reverse) {
        state.push(stacked(call, values, axis, reverse != 0)?);
    }
    Ok(state)
}
