//! From a file to a function: the graph is walked once for each tape that it is recorded on.
//!
//! Values are either known on the host, such as shapes and numbers computed from them, or on the tape (`value.rs`). A
//! node whose operands are all known is computed at once if `fold.rs` can. Any other node is recorded by its operator's
//! entry in one of the tables.

mod call;
mod elementwise;
mod fold;
mod images;
mod matrices;
mod norms;
mod places;
mod port;
mod shapes;
mod value;

use std::collections::HashMap;
use std::fmt;
#[cfg(not(target_family = "wasm"))]
use std::path::Path;
use std::sync::Arc;

use prost::bytes::Bytes;

use self::call::{Call, Operator};
pub use self::port::Port;
use self::value::{Array, Kind, Value};
use super::read::{self, Beside, Numbers};
use super::{LAST_OPSET, proto};
use crate::error::{bail, here, shortened};
use crate::host::{HostBuffer, reserve};
#[cfg(not(target_family = "wasm"))]
use crate::io::{disk, io_error};
use crate::ops::Pointwise;
use crate::{Compiled, Device, Error, ErrorKind, Result, Shape, Tape, Tensor, TensorType, Var};

/// The oldest supported operator set.
const OLDEST_OPSET: i64 = 9;

/// Constants with at most this many elements are also known on the host.
const SMALL: usize = 1 << 12;

/// The most elements to compute on the host in total.
const MOST_FOLDED: usize = 1 << 21;

/// Loads an ONNX file and compiles it for a device: [`Model::load`] and [`Model::compile`] in one.
///
/// A call takes the inputs as a slice, in the order of the file, and returns a `Vec` of the outputs.
///
/// # Errors
///
/// Fails like [`Model::load`] and [`Model::compile`].
#[cfg(not(target_family = "wasm"))]
#[track_caller]
pub fn load(device: &Device, path: impl AsRef<Path>) -> Result<Compiled<Vec<Tensor>, Vec<Tensor>>> {
    here(|| Model::load(device, path)?.compile())
}

/// A model that was read from an ONNX file, with its weights on a device.
///
/// ```
/// use meganeura::onnx::{self, Model};
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let bytes = onnx::export(&device, [1, 3], |x| x.softmax(1))?.to_bytes()?;
/// let model = Model::from_bytes(&device, &bytes)?;
/// assert_eq!(model.inputs()[0].to_string(), "input: float[1, 3]");
/// // As a part of another function.
/// let tape = Tape::new(&device);
/// let x = tape.input(&Tensor::from_slice(&device, [1, 3], &[1.0, 2.0, 3.0])?);
/// let y = model.record(&tape, &[&x * 2.0])?.swap_remove(0).log();
/// assert!((y.to_vec()?[2] + 0.142_931).abs() < 1e-6);
/// # Ok::<(), meganeura::Error>(())
/// ```
pub struct Model {
    device: Device,
    graph: proto::Graph,
    opset: i64,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    initializers: HashMap<String, Initial>,
}

/// The initial state of a value.
enum Initial {
    Known(Arc<Array>),
    Tensor(Tensor),
}

impl Model {
    /// Reads a file, and weights in separate files, which must be in its folder.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, or if the device has no room for the weights.
    /// [`Checkpoint`](ErrorKind::Checkpoint) if the file is damaged, or uses an unsupported element type or operator;
    /// the message names the operator with its node.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    pub fn load(device: &Device, path: impl AsRef<Path>) -> Result<Self> {
        here(|| {
            let path = path.as_ref();
            let bytes = disk::read(path).map_err(|error| io_error("read", path, error))?;
            let folder = path.parent().unwrap_or(Path::new(""));
            Self::read(device, Bytes::from(bytes), Beside::Folder(folder))
                .map_err(|error| error.context(path.display()))
        })
    }

    /// Reads the bytes of a file that contains its weights.
    ///
    /// # Errors
    ///
    /// Fails like [`load`](Self::load).
    #[track_caller]
    pub fn from_bytes(device: &Device, bytes: &[u8]) -> Result<Self> {
        here(|| {
            let mut copy = Vec::new();
            reserve(&mut copy, bytes.len())?;
            copy.extend_from_slice(bytes);
            Self::read(device, Bytes::from(copy), Beside::Nowhere)
        })
    }

    fn read(device: &Device, bytes: Bytes, beside: Beside<'_>) -> Result<Self> {
        let model = read::model(bytes)?;
        let opset = opset(&model)?;
        let mut graph = model.graph.unwrap_or_default();
        if !graph.sparse_initializer.is_empty() {
            bail!(Checkpoint, "sparse tensors are not supported");
        }
        let mut initializers = HashMap::new();
        for tensor in std::mem::take(&mut graph.initializer) {
            let within = |error: Error| error.context(format_args!("tensor `{}`", shortened(&tensor.name)));
            let initial = Initial::of(device, &tensor, beside).map_err(within)?;
            if initializers.insert(tensor.name.clone(), initial).is_some() {
                bail!(Checkpoint, "two tensors have the name `{}`", shortened(&tensor.name));
            }
        }
        // Older files also list initializers among the inputs.
        let is_input = |info: &&proto::ValueInfo| !initializers.contains_key(&info.name);
        let inputs = graph.input.iter().filter(is_input).map(Port::of).collect::<Result<_>>()?;
        let outputs = graph.output.iter().map(Port::of).collect::<Result<_>>()?;
        for node in &graph.node {
            find(node)?;
        }
        Ok(Self { device: device.clone(), graph, opset, inputs, outputs, initializers })
    }

    /// The inputs, in order.
    #[must_use]
    pub fn inputs(&self) -> &[Port] {
        &self.inputs
    }

    /// The outputs, in order.
    #[must_use]
    pub fn outputs(&self) -> &[Port] {
        &self.outputs
    }

    /// Compiles the model for the extents of its inputs in the file.
    ///
    /// # Errors
    ///
    /// [`Argument`](ErrorKind::Argument) if the file leaves an extent open; then use
    /// [`compile_for`](Self::compile_for). Otherwise fails like [`compile_for`](Self::compile_for).
    #[track_caller]
    pub fn compile(&self) -> Result<Compiled<Vec<Tensor>, Vec<Tensor>>> {
        here(|| {
            let shape = |port: &Port| match port.shape() {
                Some(shape) => Ok(shape),
                None => bail!(Argument, "input {port} has no fixed shape; pass one to `Model::compile_for`"),
            };
            self.compile_for(&self.inputs.iter().map(shape).collect::<Result<Vec<_>>>()?)
        })
    }

    /// Compiles the model for inputs of these shapes, in order.
    ///
    /// # Errors
    ///
    /// [`Argument`](ErrorKind::Argument) if the file does not allow a shape. [`Checkpoint`](ErrorKind::Checkpoint) if a
    /// node does not fit its operands, or has an unsupported attribute. Fails also like [`Device::compile`].
    #[track_caller]
    pub fn compile_for(&self, shapes: &[Shape]) -> Result<Compiled<Vec<Tensor>, Vec<Tensor>>> {
        here(|| {
            if shapes.len() != self.inputs.len() {
                bail!(Argument, "{} shapes for {} inputs", shapes.len(), self.inputs.len());
            }
            if shapes.is_empty() {
                bail!(Checkpoint, "the model has no inputs");
            }
            let float = self.device.precision().dtype();
            let types: Vec<_> = self
                .inputs
                .iter()
                .zip(shapes)
                .map(|(port, shape)| TensorType::new(port.dtype(float), *shape))
                .collect();
            let mut failed = None;
            let compiled = self.device.compile(types, |x: &Vec<Var>| {
                self.recorded(x[0].tape(), x).unwrap_or_else(|error| {
                    failed = Some(error);
                    Vec::new()
                })
            });
            failed.map_or(compiled, Err)
        })
    }

    /// Records the model on a tape, as a part of a function of your own.
    ///
    /// Gradients can flow through it to the inputs; its weights are not trained.
    ///
    /// # Errors
    ///
    /// Fails like [`compile_for`](Self::compile_for), and if the tape is on another device.
    #[track_caller]
    pub fn record(&self, tape: &Tape, inputs: &[Var]) -> Result<Vec<Var>> {
        here(|| self.recorded(tape, inputs))
    }

    fn recorded(&self, tape: &Tape, inputs: &[Var]) -> Result<Vec<Var>> {
        if inputs.len() != self.inputs.len() {
            bail!(Argument, "{} inputs, but the model has {}", inputs.len(), self.inputs.len());
        }
        let mut known = HashMap::new();
        for (port, var) in self.inputs.iter().zip(inputs) {
            if let Some(error) = var.error() {
                return Err(error);
            }
            port.expect(var, &mut known)?;
        }
        let mut values: HashMap<&str, Value> = HashMap::new();
        for (name, initial) in &self.initializers {
            let value = match initial {
                Initial::Known(array) => Value::Known(Arc::clone(array)),
                Initial::Tensor(tensor) => {
                    let var = tape.input(tensor);
                    if let Some(error) = var.error() {
                        return Err(error);
                    }
                    let kind = if tensor.ty().dtype.is_float() { Kind::Float } else { Kind::Int };
                    Value::Var(var, kind)
                }
            };
            values.insert(name, value);
        }
        for (port, var) in self.inputs.iter().zip(inputs) {
            values.insert(port.name(), Value::Var(var.clone(), port.kind()));
        }
        let mut folded = 0;
        for node in &self.graph.node {
            self.step(node, tape, &mut values, &mut folded)
                .map_err(|error| error.context(format_args!("node {}", title(node))))?;
        }
        let output = |port: &Port| match values.get(port.name()) {
            Some(value) => value.result(tape),
            None => bail!(Checkpoint, "no node computes the output `{}`", shortened(port.name())),
        };
        self.outputs.iter().map(output).collect()
    }

    /// Records or computes a node.
    fn step<'a>(
        &'a self,
        node: &'a proto::Node,
        tape: &Tape,
        values: &mut HashMap<&'a str, Value>,
        folded: &mut usize,
    ) -> Result<()> {
        let operand = |name: &String| match values.get(&name[..]) {
            _ if name.is_empty() => Ok(None),
            Some(value) => Ok(Some(value.clone())),
            None => bail!(Checkpoint, "it takes `{}`, which no earlier node computes", shortened(name)),
        };
        let inputs = node.input.iter().map(operand).collect::<Result<Vec<_>>>()?;
        let call = Call::new(node, inputs, tape, self.opset);
        let results = match fold::fold(&call)? {
            Some(arrays) => {
                *folded += arrays.iter().map(Array::len).sum::<usize>();
                if *folded > MOST_FOLDED {
                    bail!(Checkpoint, "with this node, more than {MOST_FOLDED} numbers are computed from constants");
                }
                arrays.into_iter().map(|array| Value::Known(Arc::new(array))).collect()
            }
            None => find(node)?(&call)?,
        };
        if let Some(error) = results.iter().find_map(Value::error) {
            return Err(Error::new(ErrorKind::Checkpoint, error.to_string()));
        }
        for (k, name) in node.output.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            let Some(value) = results.get(k) else {
                bail!(Checkpoint, "its result {k}, `{}`, is not computed", shortened(name));
            };
            values.insert(name, value.clone());
        }
        Ok(())
    }
}

impl Initial {
    fn of(device: &Device, tensor: &proto::Tensor, beside: Beside<'_>) -> Result<Self> {
        let (dims, numbers) = (read::dims(tensor)?, read::numbers(tensor, beside)?);
        if numbers.len() <= SMALL || matches!(numbers, Numbers::Ints(_) | Numbers::Bools(_)) {
            return Ok(Self::Known(Arc::new(Array::new(dims, numbers))));
        }
        let Some(shape) = Shape::try_new(&dims) else { bail!(Checkpoint, "{} axes are too many", dims.len()) };
        let host = match numbers {
            Numbers::F32(numbers) => HostBuffer::F32(numbers),
            Numbers::F64(numbers) => HostBuffer::F64(numbers),
            Numbers::Ints(_) | Numbers::Bools(_) => unreachable!("they are known"),
        };
        let host = host.try_cast(device.precision().dtype())?;
        Ok(Self::Tensor(Tensor::from_host(device, shape, host)?))
    }
}

/// The version of the operator set of a file.
fn opset(model: &proto::Model) -> Result<i64> {
    let own = |set: &&proto::OperatorSet| is_own(&set.domain);
    let Some(set) = model.opset_import.iter().find(own) else {
        bail!(Checkpoint, "the file has no version of ONNX's operator set");
    };
    if !(OLDEST_OPSET..=LAST_OPSET).contains(&set.version) {
        bail!(Checkpoint, "operator set {}; supported are {OLDEST_OPSET} to {LAST_OPSET}", set.version);
    }
    Ok(set.version)
}

/// `true` for ONNX's own domain.
fn is_own(domain: &str) -> bool {
    matches!(domain, "" | "ai.onnx")
}

/// The operator of a node, or an error if it is not supported.
fn find(node: &proto::Node) -> Result<Operator> {
    let tables = [
        elementwise::OPERATORS,
        images::OPERATORS,
        matrices::OPERATORS,
        norms::OPERATORS,
        places::OPERATORS,
        shapes::OPERATORS,
        fold::OPERATORS,
    ];
    let mut rows = tables.into_iter().flatten();
    match rows.find(|(name, _)| *name == node.op_type && is_own(&node.domain)) {
        Some((_, operator)) => Ok(*operator),
        None if is_own(&node.domain) && Pointwise::of_operator(&node.op_type).is_some() => Ok(elementwise::row),
        None if is_own(&node.domain) => {
            bail!(Checkpoint, "node {}: the operator `{}` is not supported", title(node), shortened(&node.op_type))
        }
        None => bail!(
            Checkpoint,
            "node {}: operators of `{}` are not supported; they are not part of ONNX",
            title(node),
            shortened(&node.domain)
        ),
    }
}

/// The name of a node in messages.
fn title(node: &proto::Node) -> String {
    let name = [&node.name].into_iter().chain(&node.output).find(|name| !name.is_empty());
    format!("`{}` ({})", shortened(name.map_or("", String::as_str)), shortened(&node.op_type))
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |ports: &[Port]| ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        write!(f, "Model({} → {}, {} nodes)", list(&self.inputs), list(&self.outputs), self.graph.node.len())
    }
}
