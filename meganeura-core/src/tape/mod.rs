//! The tape: records operations as a graph, and runs it through a plan.
//!
//! Recording computes only types. Values are computed when one is read or an update is applied: the graph is then
//! turned into a plan, or finds the plan of an earlier step with the same structure. The tape knows operations only as
//! `Op`.

mod adapted;
mod assign;
mod compile;
mod cotangents;
mod dot;
mod dump;
mod entered;
mod forget;
mod numbers;
mod recompute;
mod run;
mod signature;
mod step;
mod subgraph;
#[cfg(feature = "onnx")]
mod trace;
mod var;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::panic::Location;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

pub use compile::Compiled;
pub(crate) use cotangents::Cotangents;
pub use entered::Entered;
pub(crate) use entered::{EnteredModule, Event, Held, Place, What};
pub(crate) use recompute::Region;
pub use signature::{Inputs, Outputs, Tensors};
pub use step::CompiledStep;
#[cfg(feature = "onnx")]
pub use trace::{Trace, TraceLeaf};
pub use var::Var;
pub(crate) use var::{Handle, VarState};

use crate::graph::{Graph, Operands, Source, ValueId};
use crate::host::HostWord;
use crate::ops::{KernelOp, Op};
use crate::param::Cell;
use crate::{Buffer, Device, Error, ErrorKind, Param, Shape, Tensor, TensorType};

/// Records one step of computation on one device.
///
/// Make a new tape for each step: recording is cheap, and a step with the same structure reuses the plan of the one
/// before. Clones are the same tape.
///
/// A tape may also be reused, for example for inference in a loop. Each run computes the wanted values that are not
/// known yet. It forgets unreachable nodes, inputs and values: those that lead to no live [`Var`] and no live
/// [`Grads`](crate::Grads). A held `Var` keeps all that led to it, since its gradient may be asked for. [`Var::detach`]
/// cuts off the past of a state that goes from pass to pass.
#[derive(Clone)]
pub struct Tape {
    recording: Rc<RefCell<TapeState>>,
}

struct TapeState {
    device: Device,
    graph: Graph,
    /// For each node, the caller's line.
    origins: Vec<&'static Location<'static>>,
    /// For each node, the recomputed region that it is in, if any.
    regions: Vec<Option<Region>>,
    /// The region that is currently recorded.
    region: Option<Region>,
    /// The next region's number.
    next_region: Region,
    /// The caller's hold on each value. Held values are computed, others only where needed.
    handles: Vec<Weak<Handle>>,
    leaves: Vec<Leaf>,
    host: Vec<HostWord>,
    cells: HashMap<u64, usize>,
    /// Values that are already computed.
    values: HashMap<ValueId, Tensor>,
    /// The cotangents named by living `Grads`.
    cotangents: Vec<Weak<RefCell<Cotangents>>>,
    /// `true` once the tape has run.
    has_run: bool,
    /// The parameters that were read into values since the last step, by identity.
    read_through: HashSet<u64>,
    /// The number of callers that keep bare names of values, which must not change meanwhile.
    pins: usize,
    /// While gradient rules run, the line of the operation that they differentiate; new nodes get this line.
    origin: Option<&'static Location<'static>>,
    training: bool,
    seed: u64,
    /// The number of random operations so far; each draws from a stream of its own.
    streams: u32,
    /// The host words of the seed, once an operation draws from it.
    seed_value: Option<ValueId>,
    /// The new values of buffers when the step is taken.
    assigned: Vec<assign::Assigned>,
    /// The index of each buffer in `assigned`, by its identity.
    assigned_at: HashMap<u64, usize>,
    /// Values to use instead of parameters' own, by identity, to check gradients in another precision.
    substitutes: HashMap<u64, Tensor>,
    /// The log of entered layers, while a summary is made.
    trace: Option<Vec<Event>>,
    /// The last field, dropped after all others.
    _end: End,
}

/// The end of a tape. After a large one, the allocator returns free pages to the system.
struct End(Device);

impl Drop for End {
    fn drop(&mut self) {
        if self.0.takes_discarded() {
            crate::host::return_free_pages();
        }
    }
}

/// A bound on an input of indices: the number of classes or rows, an index that is ignored, and the operation with the
/// line of its caller.
#[derive(Clone, Copy, PartialEq)]
struct Range {
    count: usize,
    ignored: Option<u32>,
    op: &'static str,
    line: &'static Location<'static>,
}

/// The results of an operation, as the caller holds them.
pub(crate) type Vars = SmallVec<[Var; 1]>;

/// A tensor that the caller provides, now or later.
enum Leaf {
    Input(Tensor),
    /// An input without a tensor, of a function that is recorded to be compiled, exported or summarised.
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
    /// A tape for a training step: dropout is active, and batch normalisation uses the batch's statistics.
    ///
    /// Each tape made by this function gets the device's next random seed, counted from [`Device::set_seed`].
    #[must_use]
    pub fn new(device: &Device) -> Self {
        Self::make(device, true, device.next_seed())
    }

    /// A tape for a training step with the given random seed.
    #[must_use]
    pub fn with_seed(device: &Device, seed: u64) -> Self {
        Self::make(device, true, seed)
    }

    /// A tape for inference: dropout does nothing, and batch normalisation uses its running statistics.
    #[doc(alias("no_grad", "eval"))]
    #[must_use]
    pub fn inference(device: &Device) -> Self {
        Self::make(device, false, 0)
    }

    fn make(device: &Device, training: bool, seed: u64) -> Self {
        let recording = TapeState {
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
            read_through: HashSet::new(),
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
            _end: End(device.clone()),
        };
        Self { recording: Rc::new(RefCell::new(recording)) }
    }

    /// The device that computes the values.
    #[must_use]
    pub fn device(&self) -> Device {
        self.recording.borrow().device.clone()
    }

    /// `true` if this is a training step, in which dropout is active.
    ///
    /// The mode belongs to the tape, so a model cannot be left in the wrong one. Parts of a model can be put into
    /// [evaluation mode](crate::ModuleExt::evaluate) besides, so layers of your own should ask
    /// [`is_training`](crate::ModuleExt::is_training) instead.
    #[must_use]
    pub fn is_training(&self) -> bool {
        self.recording.borrow().training
    }

    #[doc(hidden)]
    pub fn same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.recording, &other.recording)
    }

    /// Puts a tensor on the tape. If its `Var` is held, [`Grads::of`](crate::Grads::of) has its gradient after a
    /// [`backward`](Self::backward).
    #[must_use]
    #[track_caller]
    pub fn input(&self, tensor: &Tensor) -> Var {
        let device = self.device();
        if !tensor.is_readable_on(&device) {
            let message = format!("the tensor is on {}, but the tape is on {device}", tensor.device());
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

    /// Puts a parameter on the tape.
    ///
    /// All uses of a parameter are the same value, so its gradient is a single sum. With an adapter (`Lora`), this
    /// is the sum of the parameter and its adapter's product.
    #[must_use]
    #[track_caller]
    pub fn param(&self, param: &Param) -> Var {
        let value = self.cell(param.cell());
        match param.adapter() {
            Some(adapter) if adapter.dropout > 0.0 && self.is_training() && !param.mode().is_evaluated() => value.refuse(
                "lora",
                ErrorKind::Argument,
                "the adapter drops elements of the layer's input, and this layer does not multiply its input by one factor after \
                 the other; attach it without dropout",
            ),
            Some(adapter) if adapter.bias.is_some() => value.refuse(
                "lora",
                ErrorKind::Argument,
                "the adapter has a bias, which is added to the result of a layer and not to its weight",
            ),
            Some(adapter) => adapter.add_to(&value),
            None => value,
        }
    }

    /// Puts a model's buffer on the tape.
    #[must_use]
    #[track_caller]
    pub fn buffer(&self, buffer: &Buffer) -> Var {
        self.cell(buffer.cell())
    }

    #[track_caller]
    #[doc(hidden)]
    pub fn cell(&self, cell: &Arc<Cell>) -> Var {
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
            let message = format!("the parameter or buffer is on {}, but the tape is on {device}", tensor.device());
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

    /// For each value, `true` if its gradient can be asked for: trained parameters and held values.
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

    #[doc(hidden)]
    pub fn substitute(&self, cell: &Cell, tensor: Tensor) {
        self.recording.borrow_mut().substitutes.insert(cell.id(), tensor);
    }

    /// Appends an operation and returns its results. They are poisoned if an operand is, or if the types do not fit.
    pub(crate) fn record(&self, op: Op, x: &[&Var], location: &'static Location<'static>) -> Vars {
        let location = self.recording.borrow().origin.unwrap_or(location);
        let types: SmallVec<[TensorType; 4]> = x.iter().map(|v| v.ty()).collect();
        let poison = |error: Error| {
            smallvec![self.poisoned(types.first().copied().unwrap_or_else(|| self.scalar_type()), error)]
        };
        let mut inputs = Operands::new();
        for var in x {
            match var.state() {
                VarState::Poisoned(error) => return poison(error.clone()),
                VarState::Live(_) if !self.same(var.tape()) => {
                    let message = "operands belong to different tapes; put tensors on this tape with `tape.input`";
                    return poison(Error::new(ErrorKind::Argument, message).in_op(op.name()).at(location));
                }
                VarState::Live(handle) => inputs.push(handle.id.get()),
            }
        }
        let op = op.for_types(&types, self.scalar_type().dtype);
        match op.outputs(&types) {
            // `Shape::elements` saturates. Below that, products of extents of any operand fit.
            Ok(outputs) if outputs.iter().any(|ty| ty.shape.elements() == usize::MAX) => {
                let message = format!("its result {} has more elements than can be counted", outputs[0]);
                let error = Error::new(ErrorKind::OutOfMemory, message).in_op(op.name()).at(location);
                poison(x.iter().fold(error, |error, var| error.operand(var.ty(), var.path())))
            }
            Ok(outputs) => {
                let mut recording = self.recording.borrow_mut();
                let first = recording.push(Source::Op(op), inputs, outputs, location);
                let count = recording.graph.maker(first).outputs();
                drop(recording);
                count.map(|value| self.var(value)).collect()
            }
            Err(message) => {
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

    /// The path of a value that is a parameter.
    pub(crate) fn path_of(&self, value: ValueId) -> Option<Arc<str>> {
        self.recording.borrow().path(value)
    }

    /// The largest element of an input of indices, or of a view of one, if it is known.
    pub(crate) fn largest_index(&self, value: ValueId, ignored: Option<u32>) -> Option<u32> {
        let recording = self.recording.borrow();
        match &recording.leaves[recording.viewed_leaf(value)?] {
            Leaf::Input(tensor) => tensor.largest_index(ignored),
            Leaf::Declared { .. } | Leaf::Cell { .. } => None,
        }
    }

    /// Notes that the value's elements index `count` classes or rows of an operation, so that an input that is bound
    /// later can be checked then.
    #[track_caller]
    pub(crate) fn note_range(&self, value: ValueId, op: &'static str, count: usize, ignored: Option<u32>) {
        let line = Location::caller();
        let mut recording = self.recording.borrow_mut();
        let Some(leaf) = recording.viewed_leaf(value) else { return };
        if let Leaf::Declared { ranges, .. } = &mut recording.leaves[leaf] {
            ranges.push(Range { count, ignored, op, line });
        }
    }

    pub(crate) fn with_graph<R>(&self, f: impl FnOnce(&Graph) -> R) -> R {
        f(&self.recording.borrow().graph)
    }

    /// The caller's line behind a node.
    pub(crate) fn origin_of(&self, node: usize) -> &'static Location<'static> {
        self.recording.borrow().origins[node]
    }

    /// For tests: the line of each node, in the order of recording.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn lines(&self) -> Vec<&'static Location<'static>> {
        self.recording.borrow().origins.clone()
    }

    /// Runs `f`; operations recorded in it get the line of node `node`.
    pub(crate) fn on_behalf_of<R>(&self, node: usize, f: impl FnOnce() -> R) -> R {
        let origin = self.origin_of(node);
        let outer = self.recording.borrow_mut().origin.replace(origin);
        let result = f();
        self.recording.borrow_mut().origin = outer;
        result
    }
}

impl Leaf {
    /// The parameter's path in its model, if it is known.
    fn path(&self) -> Option<Arc<str>> {
        match self {
            Self::Cell { cell, .. } => cell.path(),
            Self::Input(_) | Self::Declared { .. } => None,
        }
    }
}

impl TapeState {
    /// The leaf that a value is, or is a view of, also as indices.
    fn viewed_leaf(&self, mut value: ValueId) -> Option<usize> {
        loop {
            let node = self.graph.maker(value);
            match node.source {
                Source::Op(Op::View(_) | Op::Kernel(KernelOp::ToIndex(_))) => value = node.inputs[0],
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
