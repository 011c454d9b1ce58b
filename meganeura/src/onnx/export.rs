//! From a function to a graph of ONNX operators.

use std::collections::{HashMap, HashSet};
use std::panic::Location;

use super::batch::{self, Symbolic};
use super::file::Onnx;
use super::{FIRST_OPSET, LAST_OPSET, OPSET, encode};
use crate::error::{bail, here};
use crate::graph::{Exact, Graph, Source, ValueId};
use crate::host::HostWord;
use crate::ops::form::{Form, Operand, Value};
use crate::ops::{Op, View};
use crate::tape::{Trace, TraceLeaf};
use crate::{Device, Error, ErrorKind, Inputs, Module, ModuleExt, Outputs, Result, TensorType};

/// Records a function of tensors of these types, like [`Device::compile`], and writes it as an ONNX model.
///
/// The types of the inputs are declared (see [`Inputs`]), with fixed extents. Inputs are named `input`, or `input_0`
/// and so on; outputs are named `output` likewise. Parameters and buffers are written with their current values.
/// Dropout does nothing, and batch normalisation uses its running statistics. [`Export`] has options.
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let net = (Linear::new(4, 8), Relu, Linear::new(8, 3)).init(&device, Seed::new(1))?;
/// let model = meganeura::onnx::export(&device, [2, 4], |x| net.forward(x))?;
/// assert!(model.to_bytes()?.len() > (4 * 8 + 8 * 3) * 4);
/// # Ok::<(), meganeura::Error>(())
/// ```
///
/// # Errors
///
/// Any error from recording. [`Argument`](ErrorKind::Argument) for an operation without an ONNX form: random numbers,
/// [custom operations](crate::ops::CustomOp), exchanges between ranks, `erfinv`, and gradients.
#[track_caller]
pub fn export<I: Inputs, O: Outputs>(device: &Device, inputs: I, function: impl Fn(&I::Vars) -> O) -> Result<Onnx> {
    Export::new().record(device, inputs, function)
}

/// Options of an [`export`].
///
/// ```
/// use meganeura::onnx::{Export, Model};
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let net = (Linear::new(4, 8), Relu, Linear::new(8, 3)).init(&device, Seed::new(1))?;
/// let export = Export::new().inputs(["features"]).outputs(["scores"]).batch("N");
/// let bytes = export.record(&device, [1, 4], |x| net.forward(x))?.to_bytes()?;
///
/// let model = Model::from_bytes(&device, &bytes)?;
/// assert_eq!(model.inputs()[0].to_string(), "features: float[N, 4]");
/// let of_seven = model.compile_for(&[Shape::from([7, 4])])?;
/// assert_eq!(of_seven.output_types()[0].shape.dims(), [7, 3]);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Export {
    inputs: Vec<String>,
    outputs: Vec<String>,
    batch: Option<String>,
    opset: i64,
    /// The paths of parameters and buffers, by their identity.
    paths: HashMap<u64, String>,
}

/// A recorded function as nodes of ONNX.
pub(super) struct ExportedFunction {
    pub(super) form: Form,
    /// For each node of the form, the caller's line.
    pub(super) lines: Vec<&'static Location<'static>>,
    /// The values that are inputs, parameters or the function's own tensors.
    pub(super) leaves: Vec<(Value, TraceLeaf, TensorType)>,
    pub(super) outputs: Vec<(Value, TensorType)>,
}

/// A recorded function with names, ready to be encoded.
pub(super) struct Named {
    pub(super) recorded: ExportedFunction,
    pub(super) inputs: Vec<(String, TensorType)>,
    pub(super) outputs: Vec<String>,
    /// The name of the first axis if it is left open, and the integers that depend on it.
    pub(super) batch: Option<(String, Symbolic)>,
    pub(super) opset: i64,
    pub(super) paths: HashMap<u64, String>,
}

impl Default for Export {
    fn default() -> Self {
        Self::new()
    }
}

impl Export {
    /// The default options: see [`export`].
    #[must_use]
    pub fn new() -> Self {
        Self { inputs: Vec::new(), outputs: Vec::new(), batch: None, opset: OPSET, paths: HashMap::new() }
    }

    /// Sets the names of the inputs, in order.
    #[must_use]
    pub fn inputs<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.inputs = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the names of the outputs, in order.
    #[must_use]
    pub fn outputs<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.outputs = names.into_iter().map(Into::into).collect();
        self
    }

    /// Leaves the first axis of every input open, under a name such as `N`, for batches of any size.
    ///
    /// The function is recorded for three sizes, and integers that differ must grow linearly with the size. An error
    /// names the first that does not. Causes are a mean over the batch, a tensor that the function creates with the
    /// batch's size, and a function that computes something else for another size.
    #[must_use]
    pub fn batch(mut self, name: impl Into<String>) -> Self {
        self.batch = Some(name.into());
        self
    }

    /// Sets the operator set to write, from 21 to 27; the default is [`OPSET`].
    ///
    /// The program that reads the file must support it: `onnxruntime` supports 21 since release 1.18.
    #[must_use]
    pub fn opset(mut self, version: i64) -> Self {
        self.opset = version;
        self
    }

    /// Names parameters and buffers by their paths in this model. By default they have the paths that were set earlier,
    /// for example by a derived `init`.
    #[must_use]
    pub fn names_of<M: Module + ?Sized>(mut self, module: &M) -> Self {
        let leaves = module.leaves().into_iter();
        self.paths.extend(leaves.map(|leaf| (leaf.cell().id(), leaf.path)));
        self
    }

    /// Like [`export`], with these options.
    ///
    /// # Errors
    ///
    /// Fails like [`export`]. [`Argument`](ErrorKind::Argument) if the number of names is not that of the inputs or
    /// outputs, if two names are equal, or if an integer does not grow linearly with the [batch](Self::batch).
    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "shapes and tuples of them are written where they are passed")]
    pub fn record<I: Inputs, O: Outputs>(
        &self,
        device: &Device,
        inputs: I,
        function: impl Fn(&I::Vars) -> O,
    ) -> Result<Onnx> {
        let types = inputs.types(device.precision().dtype());
        here(|| self.check(&types))?;
        let sizes = match &self.batch {
            // A batch of one element would broadcast.
            Some(_) => (0..3).map(|more| types[0].shape[0].max(2) + more).map(Some).collect(),
            None => vec![None],
        };
        let mut all = Vec::with_capacity(sizes.len());
        for &size in &sizes {
            let sized = |ty: &TensorType| size.map_or(*ty, |size| ty.with_shape(ty.shape.with(0, size)));
            let types: Vec<_> = types.iter().map(sized).collect();
            all.push(Trace::record(device, &inputs, &types, &function)?);
        }
        here(|| {
            let mut all = all.into_iter().map(ExportedFunction::of).collect::<Result<Vec<_>>>()?;
            let batch = match &self.batch {
                Some(name) => {
                    let sizes: Vec<_> = sizes.into_iter().flatten().collect();
                    Some((name.clone(), batch::compare(&all, [sizes[0], sizes[1], sizes[2]])?))
                }
                None => None,
            };
            let recorded = all.swap_remove(0);
            let inputs = names(&self.inputs, "input", types.len())?.into_iter().zip(types).collect();
            let outputs = names(&self.outputs, "output", recorded.outputs.len())?;
            encode::model(Named { recorded, inputs, outputs, batch, opset: self.opset, paths: self.paths.clone() })
        })
    }

    fn check(&self, types: &[TensorType]) -> Result<()> {
        if !(FIRST_OPSET..=LAST_OPSET).contains(&self.opset) {
            bail!(Argument, "operator set {}; files are written in {FIRST_OPSET} to {LAST_OPSET}", self.opset);
        }
        let mut known = HashSet::new();
        if let Some(twice) = self.inputs.iter().chain(&self.outputs).find(|name| !known.insert(*name)) {
            bail!(Argument, "two inputs or outputs have the name `{twice}`");
        }
        let Some(name) = &self.batch else { return Ok(()) };
        if name.is_empty() {
            bail!(Argument, "the batch needs a name that is not empty");
        }
        let first = |ty: &TensorType| ty.shape.dims().first().copied();
        match types {
            [] => bail!(Argument, "a function without inputs has no batch"),
            [ty, rest @ ..] if first(ty).is_none() || rest.iter().any(|other| first(other) != first(ty)) => {
                let types: Vec<_> = types.iter().map(ToString::to_string).collect();
                bail!(
                    Argument,
                    "the first axis of every input must be the batch `{name}`; the inputs are {}",
                    types.join(", ")
                )
            }
            _ => Ok(()),
        }
    }
}

/// Names for `count` inputs or outputs.
fn names(given: &[String], what: &str, count: usize) -> Result<Vec<String>> {
    match given.len() {
        0 if count == 1 => Ok(vec![what.to_owned()]),
        0 => Ok((0..count).map(|k| format!("{what}_{k}")).collect()),
        names if names == count => Ok(given.to_vec()),
        names => bail!(Argument, "{names} names for {count} {what}s"),
    }
}

impl ExportedFunction {
    fn of(trace: Trace) -> Result<Self> {
        let Trace { graph, origins, leaves, host, outputs } = trace;
        let mut form = Form::default();
        let (mut values, mut lines) = (vec![None; graph.values()], Vec::new());
        let mut leaf_values = Vec::new();
        for (at, node) in graph.nodes().iter().enumerate() {
            let ty = node.types[0];
            let written = match &node.source {
                Source::Leaf(leaf) => {
                    let value = form.value();
                    leaf_values.push((value, *leaf, ty));
                    vec![Some(value)]
                }
                Source::Const(Exact(number)) => vec![Some(form.float(ty.dtype, *number))],
                Source::Host(first) => match host[*first] {
                    HostWord::Float(number) => vec![Some(form.float(ty.dtype, number))],
                    // A seed, for random numbers, which have no ONNX form.
                    HostWord::Word(_) => vec![None],
                },
                Source::Converted => vec![values[node.inputs[0].index()]],
                Source::Op(op) => {
                    let operands = operands(&graph, &node.inputs, &values);
                    let written = operands.and_then(|operands| op.onnx(&operands, &node.types, &mut form));
                    written.ok_or_else(|| {
                        let message = "this operation has no ONNX form";
                        let error = Error::new(ErrorKind::Argument, message).in_op(op.name()).at(origins[at]);
                        node.inputs.iter().fold(error, |error, &x| error.operand(graph.ty(x), path(&graph, &leaves, x)))
                    })?
                }
            };
            lines.resize(form.nodes.len(), origins[at]);
            for (value, written) in node.outputs().zip(written) {
                values[value.index()] = written;
            }
        }
        let mut results = Vec::with_capacity(outputs.len());
        for &output in &outputs {
            let Some(value) = values[output.index()] else {
                let Source::Op(op) = &graph.maker(output).source else { bail!(Argument, "a seed cannot be a result") };
                let error = Error::new(ErrorKind::Argument, "this result has no ONNX form").in_op(op.name());
                return Err(error.at(origins[graph.maker_index(output)]));
            };
            results.push((value, graph.ty(output)));
        }
        let mut leaves: Vec<_> = leaves.into_iter().map(Some).collect();
        let leaf_values =
            leaf_values.into_iter().filter_map(|(value, leaf, ty)| Some((value, leaves[leaf].take()?, ty))).collect();
        Ok(Self { form, lines, leaves: leaf_values, outputs: results })
    }
}

/// The operands of a node, if all have an ONNX form.
fn operands(graph: &Graph, inputs: &[ValueId], values: &[Option<Value>]) -> Option<Vec<Operand>> {
    let operand = |&input: &ValueId| {
        let mut narrow = input;
        while let Source::Op(Op::View(View::Expand(_))) = graph.maker(narrow).source {
            narrow = graph.maker(narrow).inputs[0];
        }
        let narrow = (values[narrow.index()]?, graph.ty(narrow).shape);
        Some(Operand { value: values[input.index()]?, ty: graph.ty(input), narrow })
    };
    inputs.iter().map(operand).collect()
}

/// The path of a value that is a parameter.
fn path(graph: &Graph, leaves: &[TraceLeaf], value: ValueId) -> Option<std::sync::Arc<str>> {
    match graph.maker(value).source {
        Source::Leaf(leaf) => match &leaves[leaf] {
            TraceLeaf::Cell(cell) => cell.path(),
            _ => None,
        },
        _ => None,
    }
}
