//! The tape: records operations as a graph, and runs what was recorded through a plan.
//!
//! Recording computes types only. Values come into being when one is read or an update is applied; the graph is then
//! turned into a plan, or finds the plan of an earlier step with the same structure. The tape knows operations only as
//! `Op`.

mod assign;
mod compile;
mod cotangents;
mod dot;
mod dump;
mod entered;
mod forget;
mod numbers;
mod part;
mod recompute;
mod run;
mod signature;
mod step;
#[cfg(feature = "onnx")]
mod trace;
mod var;

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::Location;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

pub use compile::Compiled;
pub(crate) use cotangents::Cotangents;
pub use entered::Entered;
pub(crate) use entered::{Event, Held, Part, Place, What};
pub(crate) use recompute::Region;
pub use signature::{Inputs, Outputs, Tensors};
pub(crate) use step::CompiledStep;
#[cfg(feature = "onnx")]
pub(crate) use trace::{Trace, TraceLeaf};
pub use var::Var;
pub(crate) use var::{Handle, VarState};

use crate::graph::{Graph, Operands, Source, ValueId};
use crate::host::HostWord;
use crate::ops::Op;
use crate::param::Cell;
use crate::{Buffer, Device, Error, ErrorKind, Param, Shape, Tensor, TensorType};

/// Records one step of computation on one device.
///
/// Make a new tape for each step: recording is cheap, and a step of the same structure runs the plan of the one before.
/// Clones are the same tape.
///
/// A tape may also be used again and again, for inference in a loop, say. A run computes what is wanted and not known
/// yet, and what nobody can ask for any more is forgotten: nodes, inputs and values that lead to no [`Var`] and to no
/// [`Grads`](crate::Grads) that somebody holds. A held `Var` keeps all that led to it, since its gradient may be asked
/// for; a state that goes from pass to pass is cut off from its past by [`Var::detach`].
#[derive(Clone)]
pub struct Tape {
    recording: Rc<RefCell<Recording>>,
}

struct Recording {
    device: Device,
    graph: Graph,
    /// The caller's line behind each node.
    origins: Vec<&'static Location<'static>>,
    /// The recomputed region that each node is in, if it is in one.
    regions: Vec<Option<Region>>,
    /// The region that is being recorded.
    region: Option<Region>,
    /// The next region that will be.
    next_region: Region,
    /// The caller's hold on each value: values that somebody holds are computed, others only where needed.
    handles: Vec<Weak<Handle>>,
    leaves: Vec<Leaf>,
    host: Vec<HostWord>,
    cells: HashMap<u64, usize>,
    /// Values already computed.
    values: HashMap<ValueId, Tensor>,
    /// The cotangents that somebody's `Grads` name.
    cotangents: Vec<Weak<RefCell<Cotangents>>>,
    /// `true` once something ran on this tape.
    has_run: bool,
    /// The number of callers that hold bare names of values, which must not change meanwhile.
    pins: usize,
    /// While gradient rules run, their operations bear the line of the operation that they differentiate.
    origin: Option<&'static Location<'static>>,
    training: bool,
    seed: u64,
    /// The number of random operations so far: each draws from a stream of its own.
    streams: u32,
    /// The host words that hold the seed, once something drew from it.
    seed_value: Option<ValueId>,
    /// What buffers become when the step is taken.
    assigned: Vec<assign::Assigned>,
    /// Where each buffer is among those, by its identity.
    assigned_at: HashMap<u64, usize>,
    /// Values to read instead of a parameter's own, by parameter identity: how gradients are checked in another
    /// precision.
    substitutes: HashMap<u64, Tensor>,
    /// Which parts of a model recorded what, while a summary is made.
    trace: Option<Vec<Event>>,
}

/// What the elements of an input name: one of so many classes or rows, unless they are the one that is ignored.
#[derive(Clone, Copy, PartialEq)]
struct Range {
    count: usize,
    ignored: Option<u32>,
}

/// The results of an operation, as the caller holds them.
pub(crate) type Vars = SmallVec<[Var; 1]>;

/// A tensor that the caller brought, or will bring.
enum Leaf {
    Input(Tensor),
    /// An input of a function that is being compiled.
    Declared {
        input: usize,
        ranges: Vec<Range>,
    },
    Cell {
        cell: Arc<Cell>,
        version: u64,
        value: ValueId,
    },
}

impl Tape {
    /// A tape for a training step: dropout drops, batch normalisation goes by the batch. Each tape of a device gets the
    /// next random seed, from [`Device::set_seed`]'s on.
    #[must_use]
    pub fn new(device: &Device) -> Self {
        Self::make(device, true, device.next_seed())
    }

    /// A tape for a training step with random numbers of its own.
    #[must_use]
    pub fn with_seed(device: &Device, seed: u64) -> Self {
        Self::make(device, true, seed)
    }

    /// A tape for using a model: dropout does nothing, batch normalisation goes by what it has seen in training.
    #[must_use]
    pub fn inference(device: &Device) -> Self {
        Self::make(device, false, 0)
    }

    fn make(device: &Device, training: bool, seed: u64) -> Self {
        let recording = Recording {
            device: device.clone(),
            graph: Graph::default(),
            origins: Vec::new(),
            regions: Vec::new(),
            region: None,
            next_region: Region::default(),
            handles: Vec::new(),
            leaves: Vec::new(),
            host: Vec::new(),
            cells: HashMap::new(),
            values: HashMap::new(),
            cotangents: Vec::new(),
            has_run: false,
            pins: 0,
            origin: None,
            training,
            seed,
            streams: 0,
            seed_value: None,
            assigned: Vec::new(),
            assigned_at: HashMap::new(),
            substitutes: HashMap::new(),
            trace: None,
        };
        Self { recording: Rc::new(RefCell::new(recording)) }
    }

    /// The device that values are computed on.
    #[must_use]
    pub fn device(&self) -> Device {
        self.recording.borrow().device.clone()
    }

    /// `true` if this is a training step, in which dropout drops. The mode is the tape's, so that no model can be left
    /// in the wrong one; of a part of a model, [evaluation](crate::ModuleExt::evaluate) may be said besides. So layers
    /// of your own ask [`is_training`](crate::ModuleExt::is_training).
    #[must_use]
    pub fn is_training(&self) -> bool {
        self.recording.borrow().training
    }

    pub(crate) fn same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.recording, &other.recording)
    }

    /// Brings a tensor onto the tape.
    #[must_use]
    #[track_caller]
    pub fn input(&self, tensor: &Tensor) -> Var {
        let device = self.device();
        if !device.takes(tensor) {
            let message = format!("the tensor is on {}, the tape on {device}", tensor.device());
            let error = Error::new(ErrorKind::Device, message).in_op("input").operand(tensor.ty(), None);
            return self.poisoned(tensor.ty(), error.at(Location::caller()));
        }
        let mut recording = self.recording.borrow_mut();
        let leaf = recording.leaves.len();
        recording.leaves.push(Leaf::Input(tensor.clone()));
        let value = recording.push(Source::Leaf(leaf), [], [tensor.ty()], Location::caller());
        drop(recording);
        self.var(value)
    }

    /// Brings a parameter onto the tape. The same parameter is the same value however often it is used, so its gradient
    /// is one sum. With an [adapter](crate::Lora), this is the parameter and what is added to it.
    #[must_use]
    #[track_caller]
    pub fn param(&self, param: &Param) -> Var {
        let value = self.cell(param.cell());
        match param.adapter() {
            Some(adapter) => adapter.add_to(&value),
            None => value,
        }
    }

    /// Brings a model's buffer onto the tape.
    #[must_use]
    #[track_caller]
    pub fn buffer(&self, buffer: &Buffer) -> Var {
        self.cell(buffer.cell())
    }

    #[track_caller]
    pub(crate) fn cell(&self, cell: &Arc<Cell>) -> Var {
        if let Some(value) = self.value_of(cell) {
            return self.var(value);
        }
        let substitute = self.recording.borrow().substitutes.get(&cell.id()).cloned();
        if let Some(tensor) = substitute {
            return self.cell_leaf(cell, &tensor);
        }
        let tensor = cell.lock().tensor.clone();
        let device = self.device();
        if !device.same(tensor.device()) {
            let message = format!("the parameter is on {}, the tape on {device}", tensor.device());
            let error = Error::new(ErrorKind::Device, message).in_op("param").operand(tensor.ty(), cell.path());
            return self.poisoned(tensor.ty(), error.at(Location::caller()));
        }
        self.cell_leaf(cell, &tensor)
    }

    #[track_caller]
    fn cell_leaf(&self, cell: &Arc<Cell>, tensor: &Tensor) -> Var {
        let mut recording = self.recording.borrow_mut();
        let leaf = recording.leaves.len();
        let value = recording.push(Source::Leaf(leaf), [], [tensor.ty()], Location::caller());
        let version = cell.lock().version;
        recording.leaves.push(Leaf::Cell { cell: Arc::clone(cell), version, value });
        recording.cells.insert(cell.id(), leaf);
        drop(recording);
        self.var(value)
    }

    /// The value of a parameter on this tape, if it was used.
    pub(crate) fn value_of(&self, cell: &Cell) -> Option<ValueId> {
        let recording = self.recording.borrow();
        match recording.leaves[*recording.cells.get(&cell.id())?] {
            Leaf::Cell { value, .. } => Some(value),
            Leaf::Input(_) | Leaf::Declared { .. } => unreachable!("cells name cell leaves"),
        }
    }

    /// The parameters and buffers that were used, in order.
    pub(crate) fn cells(&self) -> Vec<Arc<Cell>> {
        let recording = self.recording.borrow();
        let cell = |leaf: &Leaf| match leaf {
            Leaf::Cell { cell, .. } => Some(Arc::clone(cell)),
            Leaf::Input(_) | Leaf::Declared { .. } => None,
        };
        recording.leaves.iter().filter_map(cell).collect()
    }

    /// For each value, whether its gradient can be asked for: parameters that are trained, and what somebody holds.
    pub(crate) fn differentiated(&self) -> Vec<bool> {
        let recording = self.recording.borrow();
        let mut wanted: Vec<_> = recording.handles.iter().map(|handle| handle.strong_count() > 0).collect();
        for leaf in &recording.leaves {
            if let Leaf::Cell { cell, value, .. } = leaf {
                wanted[value.index()] |= cell.is_trained();
            }
        }
        wanted
    }

    pub(crate) fn substitute(&self, cell: &Cell, tensor: Tensor) {
        self.recording.borrow_mut().substitutes.insert(cell.id(), tensor);
    }

    /// Appends an operation; its results, poisoned if an operand is or the types do not fit.
    pub(crate) fn record(&self, op: Op, x: &[&Var], location: &'static Location<'static>) -> Vars {
        let types: SmallVec<[TensorType; 4]> = x.iter().map(|v| v.ty()).collect();
        let poison = |error: Error| {
            smallvec![self.poisoned(types.first().copied().unwrap_or_else(|| self.scalar_type()), error)]
        };
        let mut inputs = Operands::new();
        for var in x {
            match var.state() {
                VarState::Poisoned(error) => return poison(error.clone()),
                VarState::Live(_) if !self.same(var.tape()) => {
                    let message = "operands belong to different tapes; bring tensors over with `tape.input`";
                    return poison(Error::new(ErrorKind::Argument, message).in_op(op.name()).at(location));
                }
                VarState::Live(handle) => inputs.push(handle.id.get()),
            }
        }
        match op.outputs(&types) {
            Ok(outputs) => {
                let mut recording = self.recording.borrow_mut();
                let first = recording.push(Source::Op(op), inputs, outputs, location);
                let count = recording.graph.maker(first).outputs();
                drop(recording);
                count.map(|value| self.var(value)).collect()
            }
            Err(message) => {
                let location = self.recording.borrow().origin.unwrap_or(location);
                let error = Error::new(ErrorKind::Shape, message).in_op(op.name()).at(location);
                poison(x.iter().fold(error, |error, var| error.operand(var.ty(), var.path())))
            }
        }
    }

    fn scalar_type(&self) -> TensorType {
        TensorType::new(self.recording.borrow().device.precision().dtype(), Shape::SCALAR)
    }

    pub(crate) fn poisoned(&self, ty: TensorType, error: Error) -> Var {
        self.note(What::Failed);
        Var::new(self.clone(), ty, VarState::Poisoned(error))
    }

    /// The caller's hold on a value.
    pub(crate) fn var(&self, value: ValueId) -> Var {
        let mut recording = self.recording.borrow_mut();
        let ty = recording.graph.ty(value);
        let handle = recording.handles[value.index()].upgrade().unwrap_or_else(|| {
            let handle = Rc::new(Handle { id: value.into() });
            recording.handles[value.index()] = Rc::downgrade(&handle);
            handle
        });
        drop(recording);
        Var::new(self.clone(), ty, VarState::Live(handle))
    }

    /// The path of the parameter that a value is, if it is one.
    pub(crate) fn path_of(&self, value: ValueId) -> Option<Arc<str>> {
        self.recording.borrow().path(value)
    }

    /// The largest element of an input of indices, or of what views are of one, if that is known.
    pub(crate) fn largest_index(&self, value: ValueId, ignored: Option<u32>) -> Option<u32> {
        let recording = self.recording.borrow();
        match &recording.leaves[recording.viewed_leaf(value)?] {
            Leaf::Input(tensor) => tensor.largest_index(ignored),
            Leaf::Declared { .. } | Leaf::Cell { .. } => None,
        }
    }

    /// Notes that the value names one of so many classes or rows, so that an input that is known later can be checked
    /// then.
    pub(crate) fn note_range(&self, value: ValueId, count: usize, ignored: Option<u32>) {
        let mut recording = self.recording.borrow_mut();
        let Some(leaf) = recording.viewed_leaf(value) else { return };
        if let Leaf::Declared { ranges, .. } = &mut recording.leaves[leaf] {
            ranges.push(Range { count, ignored });
        }
    }

    pub(crate) fn with_graph<R>(&self, f: impl FnOnce(&Graph) -> R) -> R {
        f(&self.recording.borrow().graph)
    }

    /// The caller's line behind node `node`.
    pub(crate) fn origin_of(&self, node: usize) -> &'static Location<'static> {
        self.recording.borrow().origins[node]
    }

    /// For tests: the line behind each node, in the order of recording.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn lines(&self) -> Vec<&'static Location<'static>> {
        self.recording.borrow().origins.clone()
    }

    /// Runs `f` with every recorded operation bearing the line of node `node`.
    pub(crate) fn on_behalf_of<R>(&self, node: usize, f: impl FnOnce() -> R) -> R {
        let origin = self.origin_of(node);
        let outer = self.recording.borrow_mut().origin.replace(origin);
        let result = f();
        self.recording.borrow_mut().origin = outer;
        result
    }
}

impl Leaf {
    /// Where a parameter stands in its model, if that is known.
    fn path(&self) -> Option<Arc<str>> {
        match self {
            Self::Cell { cell, .. } => cell.path(),
            Self::Input(_) | Self::Declared { .. } => None,
        }
    }
}

impl Recording {
    /// The leaf that a value is, or is a view of.
    fn viewed_leaf(&self, mut value: ValueId) -> Option<usize> {
        loop {
            let node = self.graph.maker(value);
            match node.source {
                Source::Op(Op::View(_)) => value = node.inputs[0],
                Source::Leaf(leaf) => return Some(leaf),
                _ => return None,
            }
        }
    }

    fn path(&self, value: ValueId) -> Option<Arc<str>> {
        match self.graph.maker(value).source {
            Source::Leaf(leaf) => self.leaves[leaf].path(),
            _ => None,
        }
    }

    fn push(
        &mut self,
        source: Source,
        inputs: impl IntoIterator<Item = ValueId>,
        types: impl IntoIterator<Item = TensorType>,
        location: &'static Location<'static>,
    ) -> ValueId {
        self.origins.push(self.origin.unwrap_or(location));
        self.regions.push(self.region);
        let first = self.graph.push(source, inputs, types);
        self.handles.resize_with(self.graph.values(), Weak::new);
        first
    }
}
