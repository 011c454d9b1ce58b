//! A node with its operands, in the form that operators need: typed operands, and attributes with defaults.

use std::sync::Arc;

use super::value::{Array, Data, Kind, Value};
use crate::error::{bail, shortened};
use crate::onnx::proto::{self, attribute};
use crate::onnx::read::{self, Beside};
use crate::{DType, Result, Shape, Tape, Var};

/// Records or computes a node and returns its results in order.
pub(super) type Operator = fn(&Call<'_>) -> Result<Vec<Value>>;

/// Operators by name.
pub(super) type Operators = &'static [(&'static str, Operator)];

/// A node and its operands.
pub(super) struct Call<'a> {
    node: &'a proto::Node,
    /// The operands; `None` for an optional one that is left out.
    pub(super) inputs: Vec<Option<Value>>,
    pub(super) tape: &'a Tape,
    pub(super) opset: i64,
}

/// A float on the tape, as the only result.
#[expect(clippy::unnecessary_wraps, reason = "what an operator returns")]
pub(super) fn float(var: Var) -> Result<Vec<Value>> {
    Ok(vec![Value::Var(var, Kind::Float)])
}

/// A value of this kind on the tape, as the only result.
#[expect(clippy::unnecessary_wraps, reason = "what an operator returns")]
pub(super) fn of(kind: Kind, var: Var) -> Result<Vec<Value>> {
    Ok(vec![Value::Var(var, kind)])
}

impl<'a> Call<'a> {
    pub(super) fn new(node: &'a proto::Node, inputs: Vec<Option<Value>>, tape: &'a Tape, opset: i64) -> Self {
        Self { node, inputs, tape, opset }
    }

    pub(super) fn op(&self) -> &str {
        &self.node.op_type
    }

    /// The number of results.
    pub(super) fn results(&self) -> usize {
        self.node.output.len()
    }

    /// `true` if result `k` may be used.
    pub(super) fn wants(&self, k: usize) -> bool {
        self.node.output.get(k).is_some_and(|name| !name.is_empty())
    }

    /// An optional operand.
    pub(super) fn optional(&self, k: usize) -> Option<&Value> {
        self.inputs.get(k)?.as_ref()
    }

    /// An operand.
    pub(super) fn value(&self, k: usize) -> Result<&Value> {
        match self.optional(k) {
            Some(value) => Ok(value),
            None => bail!(Checkpoint, "operand {k} is missing"),
        }
    }

    /// An operand on the tape, as floats.
    pub(super) fn float(&self, k: usize) -> Result<Var> {
        self.value(k)?.float(self.tape)
    }

    /// An optional operand on the tape, as floats.
    pub(super) fn optional_float(&self, k: usize) -> Result<Option<Var>> {
        self.optional(k).map(|value| value.float(self.tape)).transpose()
    }

    /// An operand that must be known on the host.
    pub(super) fn known(&self, k: usize) -> Result<&Array> {
        match self.value(k)? {
            Value::Known(array) => Ok(array),
            Value::Var(..) => bail!(Checkpoint, "operand {k} must be a constant, but it is computed at run time"),
        }
    }

    /// An operand of integers that must be known on the host.
    pub(super) fn ints(&self, k: usize) -> Result<Vec<i64>> {
        match self.known(k)?.as_ints() {
            Some(ints) => Ok(ints.to_vec()),
            None => bail!(Checkpoint, "operand {k} holds floats, not integers"),
        }
    }

    /// An optional operand of integers that must be known on the host.
    pub(super) fn optional_ints(&self, k: usize) -> Result<Option<Vec<i64>>> {
        if self.optional(k).is_none() { Ok(None) } else { self.ints(k).map(Some) }
    }

    /// An operand of one number that must be known on the host.
    pub(super) fn number(&self, k: usize) -> Result<f64> {
        match self.known(k)?.as_floats()[..] {
            [number] => Ok(number),
            ref numbers => bail!(Checkpoint, "operand {k} has {} numbers, not one", numbers.len()),
        }
    }

    /// Indices along an axis of this extent; negative ones count from its end.
    pub(super) fn indices(&self, k: usize, extent: usize) -> Result<Var> {
        let count = i64::try_from(extent).unwrap_or(i64::MAX);
        match self.value(k)? {
            Value::Known(array) => {
                let Some(ints) = array.as_ints() else { bail!(Checkpoint, "operand {k} holds floats, not indices") };
                let from_start = |&index: &i64| if index < 0 { index.saturating_add(count) } else { index };
                let data = Data::Ints(ints.iter().map(from_start).collect());
                Array { dims: array.dims.clone(), data }.indices(self.tape)
            }
            Value::Var(var, Kind::Int) if var.ty().dtype == DType::U32 => Ok(var.clone()),
            #[expect(clippy::cast_precision_loss, reason = "extents are far below 2^53")]
            Value::Var(var, Kind::Int) => {
                let (zero, end) = (var.constant(0.0), var.constant(extent as f64));
                Ok(var.lt(&zero).where_cond(&(var + end), var).to_index())
            }
            Value::Var(..) => bail!(Checkpoint, "operand {k} holds floats, not indices"),
        }
    }

    pub(super) fn attribute(&self, name: &str) -> Result<Option<&'a proto::Attribute>> {
        let found = self.node.attribute.iter().find(|attribute| attribute.name == name);
        match found {
            Some(attribute) if !attribute.ref_attr_name.is_empty() || attribute.g.is_some() => {
                bail!(
                    Checkpoint,
                    "the attribute `{name}` belongs to a function or to a graph inside a node, which are not supported"
                )
            }
            found => Ok(found),
        }
    }

    fn mistyped(&self, attribute: &proto::Attribute) -> crate::Error {
        let message = format!("the attribute `{}` has a type that it should not have", shortened(&attribute.name));
        crate::Error::new(crate::ErrorKind::Checkpoint, message)
    }

    pub(super) fn int(&self, name: &str, default: i64) -> Result<i64> {
        Ok(self.optional_int(name)?.unwrap_or(default))
    }

    pub(super) fn optional_int(&self, name: &str) -> Result<Option<i64>> {
        let Some(found) = self.attribute(name)? else { return Ok(None) };
        match found.i {
            Some(number) if found.kind == attribute::INT => Ok(Some(number)),
            _ => Err(self.mistyped(found)),
        }
    }

    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool> {
        Ok(self.int(name, i64::from(default))? != 0)
    }

    pub(super) fn real(&self, name: &str, default: f64) -> Result<f64> {
        let Some(found) = self.attribute(name)? else { return Ok(default) };
        match found.f {
            // The shortest decimal number that rounds to this `f32`, as it was written: 1e-5.
            Some(number) if found.kind == attribute::FLOAT => {
                Ok(number.to_string().parse().unwrap_or(f64::from(number)))
            }
            _ => Err(self.mistyped(found)),
        }
    }

    pub(super) fn optional_list(&self, name: &str) -> Result<Option<Vec<i64>>> {
        let Some(found) = self.attribute(name)? else { return Ok(None) };
        if found.kind == attribute::INTS { Ok(Some(found.ints.clone())) } else { Err(self.mistyped(found)) }
    }

    /// An attribute of `count` numbers, all at least 0; filled with `default` if it is left out.
    pub(super) fn sizes(&self, name: &str, count: usize, default: usize) -> Result<Vec<usize>> {
        let Some(list) = self.optional_list(name)? else { return Ok(vec![default; count]) };
        match list.iter().map(|&number| usize::try_from(number)).collect::<Result<Vec<_>, _>>() {
            Ok(sizes) if sizes.len() == count => Ok(sizes),
            _ => bail!(Checkpoint, "the attribute `{name}` is {list:?}, not {count} numbers of at least 0"),
        }
    }

    pub(super) fn text(&self, name: &str, default: &'static str) -> Result<&'a str> {
        let Some(found) = self.attribute(name)? else { return Ok(default) };
        let text = found.s.as_ref().filter(|_| found.kind == attribute::STRING);
        match text.and_then(|text| std::str::from_utf8(text).ok()) {
            Some(text) => Ok(text),
            None => Err(self.mistyped(found)),
        }
    }

    /// An attribute that is a tensor.
    pub(super) fn tensor(&self, name: &str) -> Result<Option<Array>> {
        let Some(found) = self.attribute(name)? else { return Ok(None) };
        let Some(tensor) = &found.t else { return Err(self.mistyped(found)) };
        Ok(Some(Array::new(read::dims(tensor)?, read::numbers(tensor, Beside::Nowhere)?)))
    }

    /// An axis of a value with `rank` axes; negative ones count from the end.
    pub(super) fn axis(&self, axis: i64, rank: usize) -> Result<usize> {
        let count = i64::try_from(rank).unwrap_or(i64::MAX);
        let from_start = if axis < 0 { axis.saturating_add(count) } else { axis };
        match usize::try_from(from_start) {
            Ok(axis) if axis < rank => Ok(axis),
            _ => bail!(Checkpoint, "axis {axis} is out of range: the value has {rank} axes"),
        }
    }

    pub(super) fn axes(&self, axes: &[i64], rank: usize) -> Result<Vec<usize>> {
        axes.iter().map(|&axis| self.axis(axis, rank)).collect()
    }

    /// Axes from an operand or, in older files, from an attribute.
    pub(super) fn optional_axes(&self, k: usize, rank: usize) -> Result<Option<Vec<usize>>> {
        let list = match self.optional_list("axes")? {
            None => self.optional_ints(k)?,
            list => list,
        };
        list.map(|list| self.axes(&list, rank)).transpose()
    }

    /// A shape with these extents.
    pub(super) fn shape(&self, dims: &[usize]) -> Result<Shape> {
        match Shape::try_new(dims) {
            Some(shape) if dims.contains(&0) => bail!(Checkpoint, "a result {shape}, which has no elements"),
            Some(shape) => Ok(shape),
            None => bail!(Checkpoint, "a result of {} axes; there are at most {}", dims.len(), crate::MAX_RANK),
        }
    }

    /// A value on the tape of the same kind as operand `k`, as the only result.
    pub(super) fn like(&self, k: usize, var: Var) -> Result<Vec<Value>> {
        of(self.value(k)?.kind(), var)
    }

    /// Refuses values of an attribute other than the supported ones.
    pub(super) fn only(&self, name: &str, default: i64, read: i64) -> Result<()> {
        match self.int(name, default)? {
            found if found == read => Ok(()),
            found => bail!(Checkpoint, "the attribute `{name}` is {found}; only {read} is supported"),
        }
    }
}

/// A known value, as the only result.
#[expect(clippy::unnecessary_wraps, reason = "what an operator returns")]
pub(super) fn known(array: Array) -> Result<Vec<Value>> {
    Ok(vec![Value::Known(Arc::new(array))])
}
