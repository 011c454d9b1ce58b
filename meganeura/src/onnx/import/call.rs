//! A node with its operands, in the form that operators need: typed operands, and attributes with defaults.
//!
//! Reading an attribute marks it. One that no operator has read is an error: its meaning would be lost.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use super::element::{Element, Kind};
use super::quantize::Dequantised;
use super::texts::Texts;
use super::value::{Array, Data, Value, wrapped};
use super::walk::Recording;
use crate::error::{bail, shortened};
use crate::onnx::proto::{self, attribute};
use crate::onnx::read::{self, Beside};
use crate::{DType, ErrorKind, Result, Shape, Tape, Var};

/// Records or computes a node and returns its results in order.
pub(super) type Operator = fn(&Call<'_>) -> Result<Vec<Value>>;

/// Operators by name.
pub(super) type Operators = &'static [(&'static str, Operator)];

/// The number of elements that may still be computed from constants.
#[derive(Debug)]
pub(super) struct Budget {
    left: Cell<usize>,
}

impl Budget {
    pub(super) fn new(elements: usize) -> Self {
        Self { left: Cell::new(elements) }
    }

    /// Takes elements that are about to be computed.
    pub(super) fn charge(&self, elements: usize) -> Result<()> {
        match self.left.get().checked_sub(elements) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => bail!(
                Checkpoint,
                "{elements} elements of constants would be computed, and {} are left of the limit for this file",
                self.left.get()
            ),
        }
    }
}

/// Records a graph inside a node: its operands, and the results.
pub(super) type Recorder<'a> = &'a dyn Fn(&proto::Graph, Vec<Value>) -> Result<Vec<Value>>;

/// A node and its operands.
pub(super) struct Call<'a> {
    node: &'a proto::Node,
    /// The operands; `None` for an optional one that is left out.
    pub(super) inputs: Vec<Option<Value>>,
    /// The bytes that operands were, if they were any.
    pub(super) origins: Vec<Option<Dequantised>>,
    pub(super) tape: &'a Tape,
    pub(super) opset: i64,
    pub(super) budget: &'a Budget,
    pub(super) texts: &'a RefCell<Texts>,
    recorder: Recorder<'a>,
    /// A bit for each attribute that was read.
    read: Cell<u64>,
    /// An operand that decides what is recorded, and is not known.
    open: Cell<Option<usize>>,
}

/// A condition on the tape, as the only result.
#[expect(clippy::unnecessary_wraps, reason = "what an operator returns")]
pub(super) fn condition(var: Var) -> Result<Vec<Value>> {
    Ok(vec![Value::Var(var, Element::Bool)])
}

impl<'a> Call<'a> {
    pub(super) fn new(
        node: &'a proto::Node,
        inputs: Vec<Option<Value>>,
        tape: &'a Tape,
        opset: i64,
        recording: &'a Recording,
        recorder: Recorder<'a>,
    ) -> Result<Self> {
        if node.attribute.len() > 64 {
            bail!(Checkpoint, "{} attributes, more than any operator has", node.attribute.len());
        }
        for (k, attribute) in node.attribute.iter().enumerate() {
            if node.attribute[..k].iter().any(|other| other.name == attribute.name) {
                bail!(Checkpoint, "two attributes have the name `{}`", shortened(&attribute.name));
            }
        }
        let Recording { folded: budget, texts, .. } = recording;
        let (origins, read, open) = (Vec::new(), Cell::new(0), Cell::new(None));
        let mut call = Self { node, inputs, origins, tape, opset, budget, texts, recorder, read, open };
        if opset < 7 {
            call.align()?;
        }
        Ok(call)
    }

    /// Before operator set 7, operand 1 broadcasts only if an attribute says so; another names its first axis.
    fn align(&mut self) -> Result<()> {
        const ALIGNED: [&str; 12] =
            ["Add", "And", "Div", "Equal", "Gemm", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"];
        if !ALIGNED.contains(&self.op()) || !self.flag("broadcast", false)? {
            return Ok(());
        }
        let (Some(axis), Some(Some(value))) = (self.optional_int("axis")?, self.inputs.get(1)) else { return Ok(()) };
        let (mut dims, rank) = (value.dims(), self.value(0)?.dims().len());
        let axis = self.axis(axis, rank)?;
        let Some(rest) = (rank - axis).checked_sub(dims.len()) else {
            bail!(Checkpoint, "operand 1 has {} axes, which are aligned with axis {axis} of {rank}", dims.len());
        };
        dims.resize(dims.len() + rest, 1);
        self.inputs[1] = Some(match value {
            Value::Known(array) => Value::Known(Arc::new(Array { dims, ..(**array).clone() })),
            Value::Var(var, element) => Value::Var(var.reshape(self.shape(&dims)?), *element),
            Value::Sequence(..) | Value::Nothing(_) => value.clone(),
        });
        Ok(())
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

    /// The name of an operand that decides what is recorded, and is not known.
    pub(super) fn open(&self) -> Option<&'a str> {
        self.open.get().and_then(|k| self.node.input.get(k)).map(String::as_str)
    }

    /// Refuses attributes that were not read.
    pub(super) fn finish(&self) -> Result<()> {
        let unread = |k: &usize| self.read.get() & (1 << k) == 0;
        match (0..self.node.attribute.len()).find(unread) {
            None => Ok(()),
            Some(k) => bail!(
                Checkpoint,
                "the attribute `{}` is not supported for this operator",
                shortened(&self.node.attribute[k].name)
            ),
        }
    }

    /// Marks attributes that do not change the result here.
    pub(super) fn ignore(&self, names: &[&str]) {
        for (k, attribute) in self.node.attribute.iter().enumerate() {
            if names.contains(&&attribute.name[..]) {
                self.read.set(self.read.get() | 1 << k);
            }
        }
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

    /// An operand on the tape, as floats; integers are rounded.
    pub(super) fn float(&self, k: usize) -> Result<Var> {
        self.value(k)?.float(self.tape)
    }

    /// An operand on the tape, in the type of its elements there, to compute with.
    pub(super) fn own(&self, k: usize) -> Result<Var> {
        self.value(k)?.own(self.tape)
    }

    /// An operand on the tape in whichever type it has, to be moved.
    pub(super) fn stored(&self, k: usize) -> Result<Var> {
        self.value(k)?.stored(self.tape)
    }

    /// An optional operand on the tape, as floats.
    pub(super) fn optional_float(&self, k: usize) -> Result<Option<Var>> {
        self.optional(k).map(|value| value.float(self.tape)).transpose()
    }

    /// An operand whose numbers decide what is recorded: a constant, or a value that is computed now. That needs a tape
    /// whose inputs have values.
    pub(super) fn known(&self, k: usize) -> Result<Arc<Array>> {
        match self.value(k)?.read(self.tape) {
            Ok(array) => Ok(array),
            Err(error) if error.kind() == ErrorKind::Argument => {
                self.open.set(Some(k));
                bail!(Checkpoint, "operand {k} is not known")
            }
            Err(error) => Err(error.context(format_args!("operand {k}"))),
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
        if let Some(known) = self.known_indices(k, extent)? {
            return known.indices(self.tape);
        }
        match self.value(k)? {
            value if value.kind() != Kind::Int => {
                bail!(Checkpoint, "operand {k} holds {}, not indices", value.element().name())
            }
            Value::Var(var, _) if var.ty().dtype == DType::U32 => Ok(var.clone()),
            value => {
                let (element, x) = (value.element(), self.own(k)?);
                if element.integer().is_some_and(|(_, is_signed)| !is_signed) {
                    return Ok(x.to_index());
                }
                #[expect(clippy::cast_precision_loss, reason = "extents are far below 2^53")]
                let end = x.constant(extent as f64);
                Ok(x.lt(x.constant(0.0)).where_cond(&(&x + end), &x).to_index())
            }
        }
    }

    /// The indices of an axis that operand `k` holds, counted from the start, if they are known.
    pub(super) fn known_indices(&self, k: usize, extent: usize) -> Result<Option<Array>> {
        let Value::Known(array) = self.value(k)? else { return Ok(None) };
        let Some(ints) = array.as_ints() else { bail!(Checkpoint, "operand {k} holds floats, not indices") };
        let count = i64::try_from(extent).unwrap_or(i64::MAX);
        let from_start = |&index: &i64| match if index < 0 { index.saturating_add(count) } else { index } {
            place if (0..count).contains(&place) => Ok(place),
            _ => bail!(Checkpoint, "index {index} of an axis with {count} elements"),
        };
        let data = Data::Ints(ints.iter().map(from_start).collect::<Result<_>>()?);
        Ok(Some(Array { dims: array.dims.clone(), element: array.element, data }))
    }

    pub(super) fn attribute(&self, name: &str) -> Result<Option<&'a proto::Attribute>> {
        let found = self.node.attribute.iter().find(|attribute| attribute.name == name);
        self.ignore(&[name]);
        match found {
            Some(attribute) if !attribute.ref_attr_name.is_empty() => {
                bail!(Checkpoint, "the attribute `{name}` refers to that of a function, and the node is in none")
            }
            found => Ok(found),
        }
    }

    fn mistyped(&self, attribute: &proto::Attribute) -> crate::Error {
        let message = format!("the attribute `{}` has a type that it should not have", shortened(&attribute.name));
        crate::Error::new(ErrorKind::Checkpoint, message)
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

    /// An attribute that has no default.
    pub(super) fn required(&self, name: &str) -> Result<i64> {
        match self.optional_int(name)? {
            Some(number) => Ok(number),
            None => bail!(Checkpoint, "the attribute `{name}` is missing"),
        }
    }

    /// Refuses operand `k` unless it broadcasts to this shape.
    pub(super) fn narrow(&self, k: usize, to: Shape) -> Result<()> {
        let dims = self.value(k)?.dims();
        match Shape::try_new(&dims).and_then(|shape| shape.broadcast(&to)) {
            Some(shape) if shape == to => Ok(()),
            _ => bail!(Checkpoint, "operand {k} has extents {dims:?}, which do not broadcast to {to}"),
        }
    }

    /// Refuses operand `k` unless it is a vector of this many elements.
    pub(super) fn vector(&self, k: usize, count: usize) -> Result<Var> {
        match self.value(k)?.dims() {
            dims if dims == [count] => self.float(k),
            dims => bail!(Checkpoint, "operand {k} has extents {dims:?}, not [{count}]"),
        }
    }

    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool> {
        Ok(self.int(name, i64::from(default))? != 0)
    }

    pub(super) fn real(&self, name: &str, default: f64) -> Result<f64> {
        let Some(found) = self.attribute(name)? else { return Ok(default) };
        match found.f {
            Some(number) if found.kind == attribute::FLOAT => Ok(shortest(number)),
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

    /// The graph in an attribute.
    pub(super) fn graph(&self, name: &str) -> Result<&'a proto::Graph> {
        let Some(found) = self.attribute(name)? else { bail!(Checkpoint, "the attribute `{name}` is missing") };
        match &found.g {
            Some(graph) if found.kind == attribute::GRAPH => Ok(graph),
            _ => Err(self.mistyped(found)),
        }
    }

    /// Records a graph inside the node, for these operands.
    pub(super) fn record(&self, graph: &proto::Graph, operands: Vec<Value>) -> Result<Vec<Value>> {
        (self.recorder)(graph, operands)
    }

    /// A number that was a float in the first operator set, and is an integer since.
    pub(super) fn real_or_int(&self, name: &str, default: f64) -> Result<f64> {
        match self.attribute(name)? {
            Some(found) if found.kind == attribute::INT => Ok(self.required(name)? as f64),
            _ => self.real(name, default),
        }
    }

    /// An attribute of floats.
    pub(super) fn reals(&self, name: &str) -> Result<Option<Vec<f64>>> {
        let Some(found) = self.attribute(name)? else { return Ok(None) };
        if found.kind != attribute::FLOATS {
            return Err(self.mistyped(found));
        }
        Ok(Some(found.floats.iter().copied().map(shortest).collect()))
    }

    /// An attribute of texts.
    pub(super) fn texts(&self, name: &str) -> Result<Option<Vec<String>>> {
        let Some(found) = self.attribute(name)? else { return Ok(None) };
        if found.kind != attribute::STRINGS {
            return Err(self.mistyped(found));
        }
        read::texts(&found.strings).map(Some)
    }

    /// An attribute that is a tensor.
    pub(super) fn tensor(&self, name: &str) -> Result<Option<Array>> {
        let Some(found) = self.attribute(name)? else { return Ok(None) };
        let Some(tensor) = &found.t else { return Err(self.mistyped(found)) };
        let (dims, element) = (read::dims(tensor)?, Element::of_tensor(tensor)?);
        let numbers = read::numbers(tensor, &mut Beside::nowhere())?;
        Ok(Some(Array::new(dims, element, numbers, &mut self.texts.borrow_mut())))
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

    /// Different axes of a value with `rank` axes.
    pub(super) fn axes(&self, axes: &[i64], rank: usize) -> Result<Vec<usize>> {
        if axes.len() > rank {
            bail!(Checkpoint, "{} axes of a value that has {rank}", axes.len());
        }
        let found = axes.iter().map(|&axis| self.axis(axis, rank)).collect::<Result<Vec<_>>>()?;
        match (0..found.len()).find(|&k| found[..k].contains(&found[k])) {
            Some(k) => bail!(Checkpoint, "axis {} occurs twice in {axes:?}", axes[k]),
            None => Ok(found),
        }
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

    /// Elements of the type of operand `k` on the tape, as the only result.
    pub(super) fn like(&self, k: usize, var: Var) -> Result<Vec<Value>> {
        Ok(vec![Value::Var(var, self.value(k)?.element())])
    }

    /// Elements of the type of operand 0 on the tape, as the only result.
    pub(super) fn floats(&self, var: Var) -> Result<Vec<Value>> {
        self.like(0, var)
    }

    /// Computed elements of the type of operand 0, as the only result. Integers wrap around where their type is
    /// narrower than that on the tape.
    pub(super) fn computed(&self, var: &Var) -> Result<Vec<Value>> {
        self.like(0, wrapped(var, self.value(0)?.element()))
    }

    /// Refuses values of an attribute other than the supported ones.
    pub(super) fn only(&self, name: &str, default: i64, read: i64) -> Result<()> {
        match self.int(name, default)? {
            found if found == read => Ok(()),
            found => bail!(Checkpoint, "the attribute `{name}` is {found}; only {read} is supported"),
        }
    }
}

/// The shortest decimal number that rounds to this `f32`, as it was written: 1e-5.
fn shortest(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

/// A known value, as the only result.
#[expect(clippy::unnecessary_wraps, reason = "what an operator returns")]
pub(super) fn known(array: Array) -> Result<Vec<Value>> {
    Ok(vec![Value::Known(Arc::new(array))])
}
