//! Constant folding on the host while the model is recorded: extents, and small numbers computed from constants.
//!
//! Exporters write the shapes of a model as nodes: `Shape`, `Gather`, `Mul`, `Concat`, `Reshape`. None of these is left
//! when a model runs. Numbers are computed in the types of the file: `10 × 0.7` is 7 in `float`, and 6.99… in `double`.
//!
//! The elements of a result are counted against the budget before they are computed.

mod arithmetic;
mod arrange;
mod constants;

pub(super) use self::arrange::reshaped;
pub(super) use self::constants::OPERATORS;
use super::call::Call;
use super::value::{Array, Value};
use crate::Result;
use crate::error::bail;
use crate::onnx::read;

/// The most elements of a constant that is computed on the host.
pub(super) const MOST: usize = 1 << 16;

/// The results of a node, if all its operands are known and its operator can be folded.
pub(super) fn fold(call: &Call<'_>) -> Result<Option<Vec<Value>>> {
    let Some(x) = call.inputs.iter().map(operand).collect::<Option<Vec<_>>>() else { return Ok(None) };
    let Some(Some(first)) = x.first() else { return Ok(None) };
    if x.iter().flatten().any(|array| array.len() > MOST) {
        return Ok(None);
    }
    if call.op() == "Identity" {
        return Ok(Some(vec![call.value(0)?.clone()]));
    }
    let array = match arrange::fold(call, &x, first)? {
        // The tape has the arithmetic of 64 bits without a sign.
        None if x.iter().flatten().any(|array| array.is_beyond_i64()) => None,
        None => arithmetic::fold(call, &x, first)?,
        array => array,
    };
    if let Some(array) = array.as_ref().filter(|array| read::elements(&array.dims).is_none()) {
        bail!(Checkpoint, "its result has the extents {:?}, which are too large", array.dims);
    }
    Ok(array.map(|array| vec![Value::Known(array.into())]))
}

/// A known operand, or an omitted one.
#[expect(clippy::option_option, reason = "neither is an operand that is computed when the model runs")]
fn operand(value: &Option<Value>) -> Option<Option<&Array>> {
    match value {
        Some(Value::Known(array)) => Some(Some(array)),
        Some(Value::Var(..) | Value::Sequence(..) | Value::Nothing(_)) => None,
        None => Some(None),
    }
}

/// The number of elements of these extents, if it is small enough to be computed.
fn small(dims: &[usize]) -> Option<usize> {
    read::elements(dims).filter(|&count| count <= MOST)
}
