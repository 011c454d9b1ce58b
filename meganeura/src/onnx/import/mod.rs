//! From a file to a function: the graph is walked once for each tape that it is recorded on.
//!
//! Values are either known on the host, such as shapes and numbers computed from them, or on the tape (`value.rs`). A
//! node whose operands are all known is computed at once if `fold/` can. Any other node is recorded by its operator's
//! entry in one of the tables.

mod attention;
mod call;
mod control;
mod element;
mod elementwise;
mod eras;
mod evaluate;
mod fold;
mod graph;
mod grids;
mod images;
mod initial;
mod learned;
mod losses;
mod matrices;
mod microsoft;
mod narrow;
mod norms;
mod numeric;
mod operators;
mod places;
mod port;
mod quantize;
mod recurrent;
mod regions;
mod resize;
mod run;
mod scatter;
mod sequences;
mod shapes;
mod signal;
mod signature;
mod spelled;
mod stateful;
#[cfg(test)]
mod tests;
mod texts;
mod trainable;
mod training;
mod trees;
mod unique;
mod value;
mod walk;

use std::collections::{HashMap, HashSet};
use std::fmt;
#[cfg(not(target_family = "wasm"))]
use std::path::Path;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use prost::bytes::Bytes;

use self::element::{Element, Kind};
use self::initial::{Initial, external};
use self::operators::{check, findable, is_own};
pub use self::port::Port;
use self::run::{Constant, Plans};
use self::texts::Texts;
use self::trainable::Weights;
use self::value::{Array, Value, wrapped};
use super::read::{self, Beside};
use super::{LAST_OPSET, proto};
use crate::error::{bail, here, shortened};
use crate::host::reserve;
#[cfg(not(target_family = "wasm"))]
use crate::io::{disk, io_error};
use crate::{Compiled, Device, Error, Result, Shape, Tape, Tensor, TensorType, Var};

/// The oldest supported operator set.
const OLDEST_OPSET: i64 = 1;

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
    /// The number of elements in initializers.
    constants: usize,
    /// Those among the initializers.
    texts: Texts,
    /// Those that were initializers, of a model that can be trained.
    weights: Weights,
    /// The file, for messages.
    path: Option<PathBuf>,
    plans: Plans,
    /// The CPU, once a constant is computed there.
    host: OnceLock<Device>,
}

impl Model {
    /// Reads a file, and weights in separate files, which must be in its folder.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, or if the device has no room for the weights.
    /// [`Checkpoint`](crate::ErrorKind::Checkpoint) if the file is damaged, or uses an unsupported element type or
    /// operator; the message names the operator with its node.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    pub fn load(device: &Device, path: impl AsRef<Path>) -> Result<Self> {
        here(|| {
            let path = path.as_ref();
            let bytes = disk::read(path).map_err(|error| io_error("read", path, error))?;
            let folder = path.parent().unwrap_or(Path::new(""));
            let model = Self::read(device, Bytes::from(bytes), &mut Beside::folder(folder))
                .map_err(|error| error.context(path.display()))?;
            Ok(Self { path: Some(path.to_owned()), ..model })
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
            Self::read(device, Bytes::from(copy), &mut Beside::nowhere())
        })
    }

    fn read(device: &Device, bytes: Bytes, beside: &mut Beside<'_>) -> Result<Self> {
        let mut model = read::model(bytes)?;
        graph::prepared(&mut model)?;
        let opset = opset(&model);
        let mut graph = model.graph.unwrap_or_default();
        graph.node.iter().try_for_each(findable)?;
        let opset = opset?;
        if !graph.sparse_initializer.is_empty() {
            bail!(Checkpoint, "sparse tensors are not supported");
        }
        let (mut initializers, mut shared, mut constants) = (HashMap::new(), HashMap::new(), 0usize);
        let mut texts = Texts::default();
        for tensor in std::mem::take(&mut graph.initializer) {
            let within = |error: Error| error.context(format_args!("tensor `{}`", shortened(&tensor.name)));
            if tensor.name.is_empty() {
                bail!(Checkpoint, "a tensor has no name");
            }
            let place = external(&tensor);
            let initial = match place.as_ref().and_then(|place| shared.get(place)) {
                Some(initial) => Initial::clone(initial),
                None => {
                    let initial = Initial::of(device, &tensor, beside, &mut texts).map_err(within)?;
                    constants = constants.saturating_add(initial.len());
                    initial
                }
            };
            if let Some(place) = place {
                shared.insert(place, initial.clone());
            }
            if initializers.insert(tensor.name.clone(), initial).is_some() {
                bail!(Checkpoint, "two tensors have the name `{}`", shortened(&tensor.name));
            }
        }
        // Older files also list initializers among the inputs.
        let is_input = |info: &&proto::ValueInfo| !initializers.contains_key(&info.name);
        let inputs = graph.input.iter().filter(is_input).map(Port::of).collect::<Result<Vec<_>>>()?;
        let outputs = graph.output.iter().map(Port::of).collect::<Result<Vec<_>>>()?;
        let mut names: HashSet<&str> = initializers.keys().map(String::as_str).collect();
        for port in &inputs {
            if !names.insert(port.name()) {
                bail!(Checkpoint, "two inputs have the name `{}`", shortened(port.name()));
            }
        }
        for node in &graph.node {
            check(node, opset, &mut names)?;
        }
        Ok(Self {
            device: device.clone(),
            graph,
            opset,
            inputs,
            outputs,
            initializers,
            constants,
            texts,
            weights: Weights::new(),
            path: None,
            plans: Plans::new(),
            host: OnceLock::new(),
        })
    }

    /// Gives an input a value without elements, such as a cache before the first step of decoding. It is no longer
    /// among the inputs. Extents are those of the file, and at least one is 0.
    ///
    /// ```
    /// use meganeura::onnx::{self, Model};
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let joined = onnx::Export::new().inputs(["past", "new"]);
    /// let joined = joined.record(&device, ([3, 2], [1, 2]), |(a, b)| Var::concat(&[a, b], 0))?;
    /// let mut model = Model::from_bytes(&device, &joined.to_bytes()?)?;
    /// assert!(model.set_empty("past", &[3, 0]).is_err(), "the file says [3, 2]");
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Argument`](crate::ErrorKind::Argument) if there is no such input, or if the file does not allow the extents.
    #[track_caller]
    pub fn set_empty(&mut self, input: &str, extents: &[usize]) -> Result<()> {
        here(|| {
            let Some(place) = self.inputs.iter().position(|port| port.name() == input) else {
                bail!(Argument, "the model has no input `{}`", shortened(input));
            };
            let port = &self.inputs[place];
            port.expect_tensor()?;
            if !extents.contains(&0) || !port.allows(extents) {
                bail!(Argument, "input {port} cannot be without elements as {extents:?}");
            }
            let empty = Array::empty(extents.to_vec(), port.element());
            self.initializers.insert(input.to_owned(), Initial::Known(Arc::new(empty)));
            self.inputs.remove(place);
            self.plans.forget();
            Ok(())
        })
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
    /// [`Argument`](crate::ErrorKind::Argument) if the file leaves an extent open; then use
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
    /// [`Argument`](crate::ErrorKind::Argument) if the file does not allow a shape.
    /// [`Checkpoint`](crate::ErrorKind::Checkpoint) if a node does not fit its operands, or has an unsupported
    /// attribute. Fails also like [`Device::compile`].
    #[track_caller]
    pub fn compile_for(&self, shapes: &[Shape]) -> Result<Compiled<Vec<Tensor>, Vec<Tensor>>> {
        here(|| {
            if shapes.len() != self.inputs.len() {
                bail!(Argument, "{} shapes for {} inputs", shapes.len(), self.inputs.len());
            }
            if shapes.is_empty() {
                bail!(Checkpoint, "the model has no inputs; `Model::run` computes its outputs");
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
                self.recorded(x[0].tape(), &[], x).unwrap_or_else(|error| {
                    failed = Some(error);
                    Vec::new()
                })
            });
            failed.map_or(compiled, Err)
        })
    }

    /// Records the model on a tape, as a part of a function of your own.
    ///
    /// Gradients flow through it to the inputs, and to the weights of a [trainable](Self::trainable) model.
    ///
    /// # Errors
    ///
    /// Fails like [`compile_for`](Self::compile_for), and if the tape is on another device.
    #[track_caller]
    pub fn record(&self, tape: &Tape, inputs: &[Var]) -> Result<Vec<Var>> {
        here(|| self.recorded(tape, &[], inputs))
    }

    /// The outputs. `constants` are the values of inputs that are none of `inputs`.
    fn recorded(&self, tape: &Tape, constants: &[Constant], inputs: &[Var]) -> Result<Vec<Var>> {
        if inputs.len() + constants.len() != self.inputs.len() {
            bail!(Argument, "{} inputs, but the model has {}", inputs.len(), self.inputs.len());
        }
        let is_open = |at: &usize| constants.iter().all(|(constant, _)| constant != at);
        let open = || (0..self.inputs.len()).filter(is_open).map(|at| &self.inputs[at]).zip(inputs);
        let mut known = HashMap::new();
        for (port, var) in open() {
            if let Some(error) = var.error() {
                return Err(error);
            }
            port.expect(var, &mut known)?;
        }
        let mut given: Vec<_> =
            constants.iter().map(|(at, array)| (self.inputs[*at].name(), Value::Known(Arc::clone(array)))).collect();
        given.extend(open().map(|(port, var)| {
            let element = port.element();
            (port.name(), Value::Var(entered(var, element), element))
        }));
        self.outputs.iter().try_for_each(Port::expect_tensor)?;
        let values = self.values(tape, &self.recording(), given)?;
        let output = |(port, value): (&Port, Value)| {
            value.own(tape).map_err(|error| error.context(format_args!("output `{}`", shortened(port.name()))))
        };
        self.outputs.iter().zip(values).map(output).collect()
    }
}

/// An input as a value of the graph: integers of any type become those of the file, and whole floats too; integers
/// become conditions.
fn entered(var: &Var, element: Element) -> Var {
    match element.integer_dtype() {
        Some(dtype) => wrapped(&var.cast(dtype), element),
        None if element.kind() == Kind::Bool && !var.ty().dtype.is_float() => var.to_float().ne(var.constant(0.0)),
        None => var.clone(),
    }
}

/// `true` for a node of ONNX's own domain, or with one inside it.
fn uses_own(node: &proto::Node) -> bool {
    is_own(&node.domain) || graph::bodies(node).flat_map(|graph| &graph.node).any(uses_own)
}

/// The version of the operator set of a file.
fn opset(model: &proto::Model) -> Result<i64> {
    let own = |set: &&proto::OperatorSet| is_own(&set.domain);
    let Some(set) = model.opset_import.iter().find(own) else {
        // Nodes of other domains need none.
        let nodes = model.graph.iter().flat_map(|graph| &graph.node);
        if model.opset_import.is_empty() || nodes.into_iter().any(uses_own) {
            bail!(Checkpoint, "the file has no version of ONNX's operator set");
        }
        return Ok(LAST_OPSET);
    };
    if !(OLDEST_OPSET..=LAST_OPSET).contains(&set.version) {
        bail!(Checkpoint, "operator set {}; supported are {OLDEST_OPSET} to {LAST_OPSET}", set.version);
    }
    Ok(set.version)
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |ports: &[Port]| ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        write!(f, "Model({} → {}, {} nodes)", list(&self.inputs), list(&self.outputs), self.graph.node.len())
    }
}
