//! Functions that are recorded once and called many times, from any thread.

mod once;

use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::{Arc, MutexGuard};

use self::once::Once;
use super::run::{Borrowed, locate};
use super::signature::{Inputs, Outputs, Tensors};
use super::subgraph::SubgraphLeaf;
use super::{Leaf, Range, Tape, TapeState, Var};
use crate::device::PreparedPlan;
use crate::error::{bail, here};
use crate::executor::{Bindings, Fixed};
use crate::graph::{Graph, Source, ValueId};
use crate::host::{HostWord, Kept};
use crate::param::{Cell, State};
use crate::plan::Memory;
use crate::storage::Storage;
use crate::{Device, Error, ErrorKind, Result, Tensor, TensorType};

/// A function that was recorded and planned once, to serve a model. Made by [`Device::compile`].
///
/// A call binds its tensors and the parameters to the plan and runs it; it records nothing and looks up no plan. Clones
/// are the same function. Threads may share it and call it at the same time; each call returns the same bits as alone.
/// The type names the inputs and results: `Compiled<Tensor, Tensor>`, `Compiled<(Tensor, Tensor), Tensor>`.
pub struct Compiled<I = Tensor, O = Tensor> {
    function: Arc<Function>,
    signature: PhantomData<fn(I) -> O>,
}

/// The parts of a recording that a call needs.
pub(super) struct Function {
    device: Device,
    prepared: Arc<PreparedPlan>,
    /// To name the operation in an error when memory runs out.
    graph: Graph,
    origins: Vec<&'static Location<'static>>,
    /// Those of the plan, and after them those of `once` alone.
    leaves: Vec<Bound>,
    once: Option<Once>,
    /// The leaves that are cells, in the order in which cells are locked.
    cells: Vec<usize>,
    /// For each leaf, `true` if a call gives its cell a new value.
    updated: Vec<bool>,
    host: Vec<HostWord>,
    kept: Arc<Kept>,
    inputs: Vec<Input>,
    outputs: Vec<(TensorType, Output)>,
}

/// The requirements on an input.
struct Input {
    ty: TensorType,
    ranges: Vec<Range>,
}

/// The source of a leaf's tensor.
enum Bound {
    Input(usize),
    Captured(Tensor),
    Cell(Arc<Cell>),
    /// A value that the function keeps from call to call.
    Kept(usize),
}

/// The tensor and the version of each leaf, and the storages for a run.
type Bindable<'a> = (Vec<Option<Tensor>>, Vec<Option<u64>>, Borrowed<'a>);

/// The source of a result.
#[derive(Clone, Copy)]
enum Output {
    Leaf(usize),
    Computed(usize),
}

impl Device {
    /// Records a function of tensors of these types, as on a [`Tape::inference`], and plans it.
    ///
    /// Inputs are declared by a shape, a type, a tensor of the type, a tuple of these, or a `Vec<TensorType>` (see
    /// [`Inputs`]). The function takes a [`Var`], a tuple or a `Vec`, and returns a `Var`, a tuple, an array or a
    /// `Vec`, or a `Result` of these.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// # fn main() -> meganeura::Result<()> {
    /// let device = Device::cpu();
    /// let net = (Linear::new(4, 8), Relu, Linear::new(8, 3)).init(&device, Seed::new(1))?;
    /// let scores = device.compile([2, 4], |x| net.forward(x))?;
    /// let y = scores.call(&Tensor::full(&device, [2, 4], 1.0)?)?;
    /// assert_eq!(y.shape().dims(), [2, 3]);
    ///
    /// let both = device.compile(([2, 4], [2, 3]), |(x, t)| [net.forward(x) - t, x.sum()])?;
    /// let [difference, sum] = both.call((&Tensor::full(&device, [2, 4], 1.0)?, &y))?;
    /// assert_eq!((difference.to_vec()?, sum.item()?), (vec![0.0; 6], 8.0));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Later changes
    ///
    /// * Parameters and buffers are **live**: each call reads their current values, and sees an optimizer's step either
    ///   entirely or not at all. So a model can be served while it is trained. To serve it as it is now, compile a
    ///   clone (`net.clone()`), which has parameters of its own. A call fails if parameters were moved to another
    ///   device.
    /// * All else that the function reads is **captured**: tensors that it puts on the tape, numbers such as a layer's
    ///   `eps`, seeds, and which parameters there are. After a change of such a number, or of a parameter by another,
    ///   compile the function again. Its updates of buffers ([`Tape::update_buffer`]) are ignored: a call changes
    ///   nothing.
    /// * What depends on parameters, buffers and captured values alone, such as the factors of a normalisation in
    ///   evaluation, is computed in the first call, **kept**, and computed anew in the first call after one of them has
    ///   changed. Random numbers and results of custom operations are never kept.
    /// * Tensors of another shape are an error, never a reason to plan again: a request must not take seconds because
    ///   it is the first of its size. Compile the function once for each batch size; the plans share memory.
    ///
    /// # Rounding
    ///
    /// On the CPU in single precision, products with a factor that no call changes, such as a linear layer's weight,
    /// add up their terms in another order than on a tape, if they have six rows or more. So the last digits may
    /// differ. Everything else gives the bits of a tape, and so do all calls among themselves.
    ///
    /// # Errors
    ///
    /// Returns the first error from recording, and fails like [`Var::to_tensor`]. Fails also if the function reads a
    /// value of the tape, as there is none yet.
    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "shapes and tuples of them are written where they are passed")]
    pub fn compile<I: Inputs, O: Outputs>(
        &self,
        inputs: I,
        function: impl FnOnce(&I::Vars) -> O,
    ) -> Result<Compiled<I::Tensors, O::Tensors>> {
        let (tape, types, vars) = Tape::declared(self, &inputs)?;
        let outputs = function(&vars).vars()?;
        let wanted = here(|| outputs.iter().map(|y| tape.own(y)).collect::<Result<Vec<_>>>())?;
        let (function, _) = here(|| tape.recording.borrow().compile(&types, &wanted, None))?;
        Ok(Compiled { function: Arc::new(function), signature: PhantomData })
    }
}

impl Tape {
    /// The name of a value, which must be on this tape.
    pub(super) fn own(&self, y: &Var) -> Result<ValueId> {
        let id = y.id()?;
        if self.same(y.tape()) {
            return Ok(id);
        }
        let message = "a result of the compiled function is on another tape than its inputs";
        Err(Error::new(ErrorKind::Argument, message).operand(y.ty(), y.path()))
    }

    /// An inference tape with inputs that have no tensors, from which no value can be computed.
    #[track_caller]
    pub(crate) fn declared<I: Inputs>(device: &Device, inputs: &I) -> Result<(Self, Vec<TensorType>, I::Vars)> {
        let tape = Self::inference(device);
        let types = inputs.types(device.precision().dtype());
        let vars = inputs.vars(&mut tape.declare_all(&types)?.into_iter());
        Ok((tape, types, vars))
    }

    /// Inputs of these types that have no tensors yet.
    #[track_caller]
    pub(super) fn declare_all(&self, types: &[TensorType]) -> Result<Vec<Var>> {
        let mut inputs = Vec::with_capacity(types.len());
        for (k, &ty) in types.iter().enumerate() {
            inputs.push(self.declare(k, ty)?);
        }
        Ok(inputs)
    }

    /// An input that has no tensor yet.
    #[track_caller]
    fn declare(&self, input: usize, ty: TensorType) -> Result<Var> {
        let device = self.device();
        here(|| expect_declared(input, ty, &device))?;
        let mut recording = self.recording.borrow_mut();
        let leaf = recording.leaves.len();
        recording.leaves.push(Leaf::Declared { input, ranges: Vec::new() });
        let value = recording.push(Source::Leaf(leaf), [], [ty], Location::caller());
        drop(recording);
        Ok(self.var(value))
    }
}

/// Refuses an input that no tensor can match.
fn expect_declared(input: usize, ty: TensorType, device: &Device) -> Result<()> {
    if ty.shape.elements() == 0 {
        bail!(Shape, "input {input} needs at least one element, but {} has none", ty.shape);
    }
    if ty.shape.elements() == usize::MAX {
        bail!(OutOfMemory, "input {input} is {ty}, which has more elements than can be counted");
    }
    if ty.dtype.is_float() && ty.dtype != device.precision().dtype() {
        bail!(Argument, "input {input} is {ty}, but {device} computes in {}", device.precision().dtype());
    }
    Ok(())
}

impl TapeState {
    /// Compiles the function from inputs of these types to the wanted values, as a step with new values for cells if
    /// there are `assigns`. Also returns each host word's number in the recording.
    pub(super) fn compile(
        &self,
        types: &[TensorType],
        wanted: &[ValueId],
        assigns: Option<&[(Arc<Cell>, ValueId)]>,
    ) -> Result<(Function, Vec<usize>)> {
        // No values are known yet: a call uses current parameters, even those that were read while recording.
        let assigned = assigns.unwrap_or_default().iter();
        let assigned: Vec<_> = assigned.map(|(cell, value)| (self.cells[&cell.id()], *value)).collect();
        // A step has other numbers in each call, and changes the parameters.
        let kept = if assigns.is_some() { Vec::new() } else { self.kept(wanted) };
        let mut part = self.part(wanted, &assigned, kept.iter().copied());
        let (graph, origins) = (part.excerpt.to_graph(), self.part_origins(&part));
        let mut computed = Vec::new();
        let outputs = part.excerpt.outputs.iter().map(|&value| {
            let output = match graph.maker(value).source {
                Source::Leaf(leaf) => Output::Leaf(leaf),
                _ => Output::Computed(computed.iter().position(|&known| known == value).unwrap_or_else(|| {
                    computed.push(value);
                    computed.len() - 1
                })),
            };
            (graph.ty(value), output)
        });
        let outputs = outputs.collect();
        part.excerpt.outputs = computed;
        let mut inputs: Vec<_> = types.iter().map(|&ty| Input { ty, ranges: Vec::new() }).collect();
        for leaf in &self.leaves {
            if let Leaf::Declared { input, ranges } = leaf {
                inputs[*input].ranges.clone_from(ranges);
            }
        }
        let mut leaves = part.leaves.clone();
        let once = self.once(&kept, &mut leaves)?;
        let leaves = leaves.iter().map(|leaf| match *leaf {
            SubgraphLeaf::Leaf(leaf) => match &self.leaves[leaf] {
                Leaf::Input(tensor) => Bound::Captured(tensor.clone()),
                Leaf::Cell { cell, .. } => Bound::Cell(Arc::clone(cell)),
                Leaf::Declared { input, .. } => Bound::Input(*input),
            },
            SubgraphLeaf::Known(value) => Bound::Kept(kept.binary_search(&value).expect("a kept value")),
        });
        let leaves: Vec<_> = leaves.collect();
        let mut cells: Vec<_> = (0..leaves.len()).filter(|&leaf| matches!(leaves[leaf], Bound::Cell(_))).collect();
        cells.sort_by_key(|&leaf| leaves[leaf].cell().map(Cell::id));
        let path = |leaf: usize| leaves[leaf].cell().and_then(Cell::path);
        let prepared = self.device.plan(&part.excerpt).map_err(|error| locate(error, &graph, &origins, path))?;
        let mut updated = vec![false; leaves.len()];
        part.excerpt.assigns.iter().for_each(|&(leaf, _)| updated[leaf] = true);
        let function = Function {
            prepared,
            device: self.device.clone(),
            graph,
            origins,
            leaves,
            once,
            cells,
            updated,
            host: part.host,
            kept: Arc::default(),
            inputs,
            outputs,
        };
        Ok((function, part.words))
    }
}

impl Bound {
    fn cell(&self) -> Option<&Cell> {
        match self {
            Self::Cell(cell) => Some(cell),
            _ => None,
        }
    }
}

impl Function {
    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// An estimate of the host memory that it takes.
    pub(super) fn host_bytes(&self) -> usize {
        let once = self.once.as_ref().map_or(0, Once::host_bytes);
        size_of_val(self.graph.nodes()) + self.prepared.host_bytes() + self.kept.bytes() + once
    }

    /// The types of the inputs.
    pub(super) fn types(&self) -> impl Iterator<Item = TensorType> + '_ {
        self.inputs.iter().map(|input| input.ty)
    }

    /// `true` if all cells are on the device.
    pub(super) fn is_at_home(&self) -> bool {
        self.cells
            .iter()
            .all(|&leaf| self.leaves[leaf].cell().is_none_or(|cell| cell.lock().tensor.is_readable_on(&self.device)))
    }

    /// The recorded numbers.
    pub(super) fn host(&self) -> &[HostWord] {
        &self.host
    }

    pub(super) fn call(&self, inputs: &[&Tensor], host: &[HostWord]) -> Result<Vec<Tensor>> {
        if inputs.len() != self.inputs.len() {
            bail!(Argument, "the function was compiled for {} inputs, not for {}", self.inputs.len(), inputs.len());
        }
        for (k, (input, tensor)) in self.inputs.iter().zip(inputs).enumerate() {
            input.expect(k, tensor, &self.device)?;
        }
        // Before any cell is locked.
        let paths = self.device.paths_to_report((0..self.leaves.len()).map(|leaf| self.path(leaf)));
        let (mut tensors, mut versions, mut borrowed) =
            self.device.spend("bind", |host| &mut host.bind, || self.bind(inputs))?;
        if let Some(once) = &self.once {
            let kept = once.values(&self.device, &tensors, &versions, |leaf| self.path(leaf))?;
            for (leaf, bound) in self.leaves.iter().enumerate() {
                if let Bound::Kept(k) = *bound {
                    borrowed.leaves[leaf] = kept.tensors[k].storage().clone();
                    tensors[leaf] = Some(kept.tensors[k].clone());
                    versions[leaf] = Some(kept.version);
                }
            }
        }
        // A training step has the bits of one that was recorded.
        let exact = self.updated.contains(&true);
        let fixed = Some(Fixed { versions: versions.into(), kept: Arc::clone(&self.kept), exact });
        let mut bindings = Bindings { leaves: &mut borrowed.leaves, host, paths: &paths, fixed };
        let results = self.device.run(&self.prepared, &mut bindings);
        borrowed.give_back(results.is_ok());
        let results = results.map_err(|error| self.locate(error))?;
        let result = |&(ty, output): &(TensorType, Output)| match output {
            Output::Leaf(leaf) => tensors[leaf].clone().expect("kept for the result"),
            Output::Computed(k) => Tensor::from_storage(&self.device, ty, results[k].clone()),
        };
        Ok(self.outputs.iter().map(result).collect())
    }

    /// The tensor of each leaf; those of the cells are a consistent snapshot. Cells that the call updates lend their
    /// storage. Also the versions of the leaves that stay the same until they get another version.
    fn bind(&self, inputs: &[&Tensor]) -> Result<Bindable<'_>> {
        let mut borrowed = Borrowed { leaves: vec![Storage::empty(); self.leaves.len()], cells: Vec::new() };
        let mut tensors: Vec<Option<Tensor>> = self.leaves.iter().map(|_| None).collect();
        let mut versions = vec![None; self.leaves.len()];
        // Held until all are read.
        let mut states: Vec<MutexGuard<'_, State>> = Vec::new();
        for &leaf in &self.cells {
            let cell = self.leaves[leaf].cell().expect("the leaves of cells");
            let is_result = || self.outputs.iter().any(|(_, output)| matches!(output, Output::Leaf(k) if *k == leaf));
            if !self.updated[leaf] {
                let state = cell.lock();
                if !state.tensor.is_readable_on(&self.device) {
                    drop(state);
                    return Err(self.moved(leaf));
                }
                tensors[leaf] = Some(state.tensor.clone());
                versions[leaf] = Some(state.version);
                states.push(state);
                continue;
            }
            if is_result() {
                // Keeps its old value.
                tensors[leaf] = Some(cell.value());
            }
            if !cell.lock().tensor.is_readable_on(&self.device) {
                return Err(self.moved(leaf));
            }
            borrowed.lend(&self.device, leaf, cell, None)?;
        }
        drop(states);
        for (leaf, bound) in self.leaves.iter().enumerate() {
            match bound {
                Bound::Input(k) => tensors[leaf] = Some(inputs[*k].clone()),
                Bound::Captured(tensor) => {
                    tensors[leaf] = Some(tensor.clone());
                    versions[leaf] = Some(0);
                }
                Bound::Cell(_) | Bound::Kept(_) => {}
            }
            if let Some(tensor) = tensors[leaf].as_ref().filter(|_| !self.updated[leaf]) {
                borrowed.leaves[leaf] = tensor.storage().clone();
            }
        }
        Ok((tensors, versions, borrowed))
    }

    /// The error for a parameter that has moved to another device. Locks its cell.
    fn moved(&self, leaf: usize) -> Error {
        let cell = self.leaves[leaf].cell().expect("inputs and captured tensors do not move");
        let device = cell.value().device().to_string();
        let message =
            format!("{} was moved to {device} after the function was compiled for {}", cell.label(), self.device);
        Error::new(ErrorKind::Device, message)
    }

    fn path(&self, leaf: usize) -> Option<Arc<str>> {
        self.leaves[leaf].cell().and_then(Cell::path)
    }

    fn locate(&self, error: Error) -> Error {
        locate(error, &self.graph, &self.origins, |leaf| self.path(leaf))
    }
}

impl Input {
    /// Refuses a tensor that differs from its declaration.
    fn expect(&self, k: usize, tensor: &Tensor, device: &Device) -> Result<()> {
        let wrong = |kind, message: String| Err(Error::new(kind, message).in_op("call").operand(tensor.ty(), None));
        if tensor.ty() != self.ty {
            return wrong(
                ErrorKind::Shape,
                format!(
                    "the function was compiled for {} as input {k}; compile it for each type and shape that you need",
                    self.ty
                ),
            );
        }
        if !tensor.is_readable_on(device) {
            let message = format!("input {k} is on {}, but the function was compiled for {device}", tensor.device());
            return wrong(ErrorKind::Device, message);
        }
        for &Range { count, ignored, op, line } in &self.ranges {
            if let Some(largest) = tensor.largest_index(ignored).filter(|&largest| largest as usize >= count) {
                let message =
                    format!("input {k} holds {largest}, which is out of range: there are {count} classes or rows");
                let error = Error::new(ErrorKind::Argument, message).in_op(op).operand(tensor.ty(), None);
                return Err(error.at(line));
            }
        }
        Ok(())
    }
}

impl<I: Tensors, O: Tensors> Compiled<I, O> {
    /// Computes the results for these tensors: `&x`, a tuple of references, or for a `Vec` a slice, `&[&a, &b]`.
    ///
    /// On a GPU this submits the work and returns; [`Tensor::to_vec`] waits for it, and [`Tensor::to_vec_async`] does
    /// so without blocking the thread. On the CPU the results are ready on return; concurrent calls share its threads.
    ///
    /// # Errors
    ///
    /// Fails if a tensor does not have the declared type or is on another device, or if parameters have moved to
    /// another device. Returns errors of the device.
    #[track_caller]
    pub fn call(&self, inputs: I::Refs<'_>) -> Result<O> {
        here(|| {
            let results = self.function.call(&I::list(inputs), &self.function.host)?;
            Ok(O::collect(&mut results.into_iter()))
        })
    }

    /// The types of the inputs, in order.
    #[must_use]
    pub fn input_types(&self) -> Vec<TensorType> {
        self.function.types().collect()
    }

    /// The types of the results, in order.
    #[must_use]
    pub fn output_types(&self) -> Vec<TensorType> {
        self.function.outputs.iter().map(|&(ty, _)| ty).collect()
    }

    /// The device memory that a call takes, with the values that are kept from call to call, and without the weights
    /// that native kernels keep in an order of their own.
    #[must_use]
    pub fn memory(&self) -> Memory {
        let Function { prepared, once, leaves, .. } = &*self.function;
        match once {
            Some(once) => once.memory(&prepared.plan, |leaf| matches!(leaves[leaf], Bound::Kept(_))),
            None => prepared.plan.memory(),
        }
    }
}

impl<I, O> Clone for Compiled<I, O> {
    fn clone(&self) -> Self {
        Self { function: Arc::clone(&self.function), signature: PhantomData }
    }
}

impl<I, O> fmt::Debug for Compiled<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Function { inputs, outputs, device, .. } = &*self.function;
        let inputs: Vec<_> = inputs.iter().map(|input| input.ty.to_string()).collect();
        let outputs: Vec<_> = outputs.iter().map(|(ty, _)| ty.to_string()).collect();
        write!(f, "Compiled({} → {} on {device})", inputs.join(", "), outputs.join(", "))
    }
}
