//! Functions that are recorded once and called many times, from any thread.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::{Arc, MutexGuard};

use super::part::PartLeaf;
use super::run::{Lent, locate};
use super::signature::{Inputs, Outputs, Tensors};
use super::{Leaf, Range, Recording, Tape, Var};
use crate::device::PreparedPlan;
use crate::error::{bail, here};
use crate::executor::Bindings;
use crate::graph::{Graph, Source, ValueId};
use crate::host::HostWord;
use crate::param::{Cell, State};
use crate::plan::Memory;
use crate::tensor::Storage;
use crate::{DType, Device, Error, ErrorKind, Result, Tensor, TensorType};

/// A function that was recorded and planned once: for serving a model. [`Device::compile`] makes it.
///
/// A call binds its tensors and the parameters to the plan and runs it: nothing is recorded, and no plan is looked for.
/// Clones are the same function; threads may share it and call it at the same time, and each gets the bits that it
/// would get alone. Types to name it by are those of its inputs and results: `Compiled<Tensor, Tensor>`,
/// `Compiled<(Tensor, Tensor), Tensor>`.
pub struct Compiled<I = Tensor, O = Tensor> {
    function: Arc<Function>,
    signature: PhantomData<fn(I) -> O>,
}

/// What is left of the tape.
pub(super) struct Function {
    device: Device,
    prepared: Arc<PreparedPlan>,
    /// What names an operation for which there is no memory.
    graph: Graph,
    origins: Vec<&'static Location<'static>>,
    leaves: Vec<Bound>,
    /// The numbers of the leaves that are cells, in the order in which cells are locked.
    cells: Vec<usize>,
    /// For each leaf, whether a call gives its cell a new value.
    updated: Vec<bool>,
    host: Vec<HostWord>,
    inputs: Vec<Input>,
    outputs: Vec<(TensorType, Output)>,
}

/// What an input must be.
struct Input {
    ty: TensorType,
    ranges: Vec<Range>,
}

/// Where a leaf's tensor comes from.
enum Bound {
    Input(usize),
    Captured(Tensor),
    Cell(Arc<Cell>),
}

/// Where a result comes from.
#[derive(Clone, Copy)]
enum Output {
    Leaf(usize),
    Computed(usize),
}

impl Device {
    /// Records a function of tensors of these types, as on a [`Tape::inference`], and plans it.
    ///
    /// The types of the inputs are declared (see [`Inputs`]): a shape, a type, a tensor of the type, or a tuple of
    /// such; the function gets a [`Var`] or a tuple of them, and gives one, a tuple or an array.
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
    /// # What is seen and what is kept
    ///
    /// * Parameters and buffers are **seen**: each call reads what they hold then, and an optimizer's step either whole
    ///   or not at all. So a model can be served while it is trained; compile a clone of it (`net.clone()`), whose
    ///   parameters have an identity of their own, to serve it as it is now. Parameters that were moved to another
    ///   device are an error of the call.
    /// * Everything else that the function reads is **kept** as it was: tensors that it brings onto the tape, numbers,
    ///   seeds. What it says of buffers ([`Tape::update_buffer`]) is not done: a call changes nothing.
    /// * Tensors of another shape are an error, not a reason to plan anew: a request must not take seconds because it
    ///   is the first of its size. Compile the function for each batch size that is served; plans share their memory.
    ///
    /// # Errors
    ///
    /// What goes wrong while recording, at once; what [`Var::to_tensor`] returns besides. Reading a value of the tape
    /// inside of the function: there is none yet.
    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "shapes and tuples of them are written where they are passed")]
    pub fn compile<I: Inputs, O: Outputs>(
        &self,
        inputs: I,
        function: impl FnOnce(&I::Vars) -> O,
    ) -> Result<Compiled<I::Tensors, O::Tensors>> {
        let (tape, types, vars) = Tape::declared(self, &inputs)?;
        let outputs = function(&vars).vars();
        let wanted = here(|| outputs.iter().map(|y| tape.own(y)).collect::<Result<Vec<_>>>())?;
        let (function, _) = here(|| tape.recording.borrow().compile(&types, &wanted, &[]))?;
        Ok(Compiled { function: Arc::new(function), signature: PhantomData })
    }
}

impl Tape {
    /// The name of a value, which has to be on this tape.
    pub(super) fn own(&self, y: &Var) -> Result<ValueId> {
        let id = y.id()?;
        if self.same(y.tape()) {
            return Ok(id);
        }
        let message = "a result of the compiled function is on another tape than its inputs";
        Err(Error::new(ErrorKind::Argument, message).operand(y.ty(), y.path()))
    }

    /// An input that has no tensor yet.
    #[track_caller]
    pub(super) fn declare(&self, input: usize, ty: TensorType) -> Result<Var> {
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

/// Refuses an input that no tensor can be.
fn expect_declared(input: usize, ty: TensorType, device: &Device) -> Result<()> {
    if ty.shape.elements() == 0 {
        bail!(Shape, "input {input} needs at least one element, {} has none", ty.shape);
    }
    if ty.dtype != DType::U32 && ty.dtype != device.precision().dtype() {
        bail!(Argument, "input {input} is {ty}, {device} computes in {}", device.precision().dtype());
    }
    Ok(())
}

impl Recording {
    /// A function of inputs of these types that computes what is wanted, and gives cells new values. With it, the
    /// number that each of its words has in the recording.
    pub(super) fn compile(
        &self,
        types: &[TensorType],
        wanted: &[ValueId],
        assigns: &[(Arc<Cell>, ValueId)],
    ) -> Result<(Function, Vec<usize>)> {
        // Nothing is known: parameters that were read meanwhile are those of each call all the same.
        let assigned: Vec<_> = assigns.iter().map(|(cell, value)| (self.cells[&cell.id()], *value)).collect();
        let mut part = self.part(wanted, &assigned, &HashMap::new());
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
        let leaves = part.leaves.iter().map(|leaf| match *leaf {
            PartLeaf::Leaf(leaf) => match &self.leaves[leaf] {
                Leaf::Input(tensor) => Bound::Captured(tensor.clone()),
                Leaf::Cell { cell, .. } => Bound::Cell(Arc::clone(cell)),
                Leaf::Declared { input, .. } => Bound::Input(*input),
            },
            PartLeaf::Known(_) => unreachable!("nothing is known"),
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
            cells,
            updated,
            host: part.host,
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

    /// The types of the inputs.
    pub(super) fn types(&self) -> impl Iterator<Item = TensorType> + '_ {
        self.inputs.iter().map(|input| input.ty)
    }

    /// Whether all cells are on the device.
    pub(super) fn is_at_home(&self) -> bool {
        self.cells
            .iter()
            .all(|&leaf| self.leaves[leaf].cell().is_none_or(|cell| self.device.takes(&cell.lock().tensor)))
    }

    /// The numbers that were recorded.
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
        let (tensors, mut lent) = self.device.spend("bind", |host| &mut host.bind, || self.bind(inputs))?;
        let mut bindings = Bindings { leaves: &mut lent.leaves, host, paths: &paths };
        let results = self.device.run(&self.prepared, &mut bindings);
        lent.give_back(results.is_ok());
        let results = results.map_err(|error| self.locate(error))?;
        let result = |&(ty, output): &(TensorType, Output)| match output {
            Output::Leaf(leaf) => tensors[leaf].clone().expect("kept for the result"),
            Output::Computed(k) => Tensor::from_storage(&self.device, ty, results[k].clone()),
        };
        Ok(self.outputs.iter().map(result).collect())
    }

    /// The tensor of each leaf, those of the cells as they are at one time. Cells that the call updates lend theirs.
    fn bind(&self, inputs: &[&Tensor]) -> Result<(Vec<Option<Tensor>>, Lent<'_>)> {
        let mut lent = Lent { leaves: vec![Storage::empty(); self.leaves.len()], cells: Vec::new() };
        let mut tensors: Vec<Option<Tensor>> = self.leaves.iter().map(|_| None).collect();
        // Held until all are known.
        let mut states: Vec<MutexGuard<'_, State>> = Vec::new();
        for &leaf in &self.cells {
            let cell = self.leaves[leaf].cell().expect("the leaves of cells");
            let is_result = || self.outputs.iter().any(|(_, output)| matches!(output, Output::Leaf(k) if *k == leaf));
            if !self.updated[leaf] {
                let state = cell.lock();
                if !self.device.takes(&state.tensor) {
                    drop(state);
                    return Err(self.moved(leaf));
                }
                tensors[leaf] = Some(state.tensor.clone());
                states.push(state);
                continue;
            }
            if is_result() {
                // As it was before.
                tensors[leaf] = Some(cell.value());
            }
            if !self.device.takes(&cell.lock().tensor) {
                return Err(self.moved(leaf));
            }
            lent.lend(&self.device, leaf, cell, None)?;
        }
        drop(states);
        for (leaf, bound) in self.leaves.iter().enumerate() {
            match bound {
                Bound::Input(k) => tensors[leaf] = Some(inputs[*k].clone()),
                Bound::Captured(tensor) => tensors[leaf] = Some(tensor.clone()),
                Bound::Cell(_) => {}
            }
            if let Some(tensor) = tensors[leaf].as_ref().filter(|_| !self.updated[leaf]) {
                lent.leaves[leaf] = tensor.storage().clone();
            }
        }
        Ok((tensors, lent))
    }

    /// The error for a parameter that is on another device than it was. Locks its cell.
    fn moved(&self, leaf: usize) -> Error {
        let path = self.path(leaf).map_or_else(|| "a parameter".to_owned(), |path| format!("parameter {path}"));
        let device = self.leaves[leaf].cell().map_or_else(String::new, |cell| cell.value().device().to_string());
        let message = format!("{path} was moved to {device} after the function was compiled for {}", self.device);
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
    /// Refuses a tensor that is not what was declared.
    fn expect(&self, k: usize, tensor: &Tensor, device: &Device) -> Result<()> {
        let wrong = |kind, message: String| Err(Error::new(kind, message).in_op("call").operand(tensor.ty(), None));
        if tensor.ty() != self.ty {
            return wrong(
                ErrorKind::Shape,
                format!("the function was compiled for {} as input {k}; compile it for other shapes as well", self.ty),
            );
        }
        if !device.takes(tensor) {
            let message = format!("input {k} is on {}, the function was compiled for {device}", tensor.device());
            return wrong(ErrorKind::Device, message);
        }
        for &Range { count, ignored } in &self.ranges {
            if let Some(largest) = tensor.largest_index(ignored).filter(|&largest| largest as usize >= count) {
                let message =
                    format!("input {k} holds {largest}, which is out of range: there are {count} classes or rows");
                return wrong(ErrorKind::Argument, message);
            }
        }
        Ok(())
    }
}

impl<I: Tensors, O: Tensors> Compiled<I, O> {
    /// The results for these tensors: a tensor, or a tuple or an array, as declared.
    ///
    /// On a GPU this submits the work and returns; [`Tensor::to_vec`] waits for it, and [`Tensor::to_vec_async`] does
    /// so without blocking the thread. The CPU has computed when this returns; calls of several threads share its
    /// threads.
    ///
    /// # Errors
    ///
    /// If a tensor is not of the declared type, or on another device; if parameters were moved to another; what the
    /// device meets.
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

    /// What a call takes of the device's memory.
    #[must_use]
    pub fn memory(&self) -> Memory {
        self.function.prepared.plan.memory()
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
