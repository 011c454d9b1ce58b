//! Running a tape: wanted values and the leaves' tensors go through a plan, and come back as tensors.

use std::collections::{HashMap, HashSet};
use std::panic::Location;
use std::sync::{Arc, MutexGuard};

use super::subgraph::{Subgraph, SubgraphLeaf};
use super::{Leaf, Tape, TapeState, Var};
use crate::executor::Bindings;
use crate::graph::{Graph, Node, Source, ValueId};
use crate::ops::Op;
use crate::param::{Cell, State};
use crate::storage::Storage;
use crate::{Device, Error, ErrorKind, Result, Tensor, TensorType};

impl Tape {
    /// The tensor of `value`, computed now unless it is known. All other held values are computed in the same run.
    pub(crate) fn tensor_of(&self, value: ValueId) -> Result<Tensor> {
        let mut recording = self.recording.borrow_mut();
        if recording.leaves.iter().any(|leaf| matches!(leaf, Leaf::Declared { .. })) {
            return Err(nothing_to_read());
        }
        if let Some(tensor) = recording.known(value)? {
            return Ok(tensor);
        }
        recording.run(&[value], &[], &[])?;
        recording.note_read(value);
        let tensor = recording.values[&value].clone();
        recording.forget();
        Ok(tensor)
    }

    /// Computes all held values, and gives cells and updated buffers their new values, in one run.
    ///
    /// Callers should hold no `Var` of the new values: a held value is also returned as a separate tensor.
    pub(crate) fn update(&self, updates: Vec<(Arc<Cell>, Var)>) -> Result<()> {
        self.update_and_keep(updates, |_| Vec::new())
    }

    /// [`update`](Self::update) for an optimizer's step. The gradients of trained parameters outside `stepped` are
    /// computed in the same run and kept, as a later step may use them, and this step changes parameters that they
    /// depend on.
    #[doc(hidden)]
    pub fn update_keeping_gradients(&self, updates: Vec<(Arc<Cell>, Var)>, stepped: &HashSet<u64>) -> Result<()> {
        self.update_and_keep(updates, |recording| recording.other_gradients(stepped))?;
        let mut recording = self.recording.borrow_mut();
        if !std::mem::take(&mut recording.read_through).is_disjoint(stepped) {
            recording.device.count_early_read();
        }
        Ok(())
    }

    fn update_and_keep(
        &self,
        updates: Vec<(Arc<Cell>, Var)>,
        kept: impl FnOnce(&TapeState) -> Vec<ValueId>,
    ) -> Result<()> {
        let mut assigns: Vec<_> =
            updates.into_iter().map(|(cell, new)| Ok((cell, new.id()?))).collect::<Result<_>>()?;
        let mut recording = self.recording.borrow_mut();
        assigns.extend(recording.assigned_values()?);
        let kept = kept(&recording);
        recording.run(&[], &assigns, &kept)?;
        recording.take_assigned();
        recording.forget();
        Ok(())
    }

    /// Computes `values` with other tensors in place of some leaves, without changing the tape.
    pub(crate) fn evaluate_with(&self, values: &[ValueId], replaced: &[(ValueId, Tensor)]) -> Result<Vec<Tensor>> {
        self.recording.borrow().execute(values, &[], &HashMap::new(), replaced)
    }
}

impl TapeState {
    /// The tensor of a value that needs no run.
    fn known(&self, value: ValueId) -> Result<Option<Tensor>> {
        if let Some(tensor) = self.values.get(&value) {
            return Ok(Some(tensor.clone()));
        }
        match self.graph.maker(value).source {
            Source::Leaf(leaf) => self.leaf_tensor(leaf).map(Some),
            _ => Ok(None),
        }
    }

    /// Computes `wanted`, and in the same run the held values and those to be `kept`, if they can be computed.
    fn run(&mut self, wanted: &[ValueId], assigns: &[(Arc<Cell>, ValueId)], kept: &[ValueId]) -> Result<()> {
        let outputs = self.outputs(wanted, kept);
        if outputs.is_empty() && assigns.is_empty() {
            return Ok(());
        }
        let tensors = self.execute(&outputs, assigns, &self.values, &[])?;
        self.values.extend(outputs.into_iter().zip(tensors));
        Ok(())
    }

    /// Notes the trained parameters that a value depends on. A step that changes one of them computes anew what was
    /// computed for the value.
    fn note_read(&mut self, value: ValueId) {
        if !self.training {
            return;
        }
        let mut needed = vec![false; self.graph.values()];
        needed[value.index()] = true;
        for node in self.graph.nodes().iter().rev() {
            if !node.outputs().any(|value| needed[value.index()]) {
                continue;
            }
            node.inputs.iter().for_each(|input| needed[input.index()] = true);
            if let Source::Leaf(leaf) = node.source
                && let Leaf::Cell { cell, .. } = &self.leaves[leaf]
                && cell.is_trained()
            {
                self.read_through.insert(cell.id());
            }
        }
    }

    /// The values that a run hands out, each once.
    fn outputs(&self, wanted: &[ValueId], kept: &[ValueId]) -> Vec<ValueId> {
        let available = self.available();
        let is_available = |value: &ValueId| available.as_ref().is_none_or(|available| available[value.index()]);
        let is_held = |value: &ValueId| self.handles[value.index()].strong_count() > 0;
        let held = self.graph.nodes().iter().filter(|node| matches!(node.source, Source::Op(_)));
        let held = held.flat_map(Node::outputs).filter(is_held);
        // A kept gradient may itself be a parameter, which the update would change. Constants need not be kept.
        let changes = |value: &ValueId| match self.graph.maker(*value).source {
            Source::Leaf(leaf) => matches!(self.leaves[leaf], Leaf::Cell { .. }),
            Source::Op(_) | Source::Converted => true,
            Source::Host(_) | Source::Const(_) => false,
        };
        let along = held.chain(kept.iter().copied().filter(changes)).filter(is_available);
        let mut is_known = vec![false; self.graph.values()];
        self.values.keys().for_each(|value| is_known[value.index()] = true);
        let is_new = |value: &ValueId| !std::mem::replace(&mut is_known[value.index()], true);
        along.chain(wanted.iter().copied()).filter(is_new).collect()
    }

    /// For each value, `true` if it can be computed: no parameter that it depends on has changed, and every input is
    /// bound. `None` if all can.
    fn available(&self) -> Option<Vec<bool>> {
        let is_there = |leaf: &Leaf| match leaf {
            Leaf::Input(_) => true,
            Leaf::Declared { .. } => false,
            Leaf::Cell { cell, version, .. } => {
                self.substitutes.contains_key(&cell.id()) || cell.lock().version == *version
            }
        };
        let leaves: Vec<_> = self.leaves.iter().map(is_there).collect();
        if leaves.iter().all(|is_there| *is_there) {
            return None;
        }
        let mut available = vec![true; self.graph.values()];
        for node in self.graph.nodes() {
            let computable = match node.source {
                Source::Leaf(leaf) => leaves[leaf],
                _ => node.inputs.iter().all(|input| available[input.index()]),
            };
            for value in node.outputs().filter(|value| !computable && !self.values.contains_key(value)) {
                available[value.index()] = false;
            }
        }
        Some(available)
    }

    fn execute(
        &self,
        outputs: &[ValueId],
        assigns: &[(Arc<Cell>, ValueId)],
        known: &HashMap<ValueId, Tensor>,
        replaced: &[(ValueId, Tensor)],
    ) -> Result<Vec<Tensor>> {
        let assigned: Vec<_> = assigns.iter().map(|(cell, value)| (self.cells[&cell.id()], *value)).collect();
        let part = || self.part(outputs, &assigned, known.keys().copied());
        let part = self.device.spend("look up", |host| &mut host.look_up, part);
        let replaced: HashMap<usize, &Tensor> =
            replaced.iter().filter_map(|(value, x)| Some((self.leaf(*value)?, x))).collect();
        let storage = |leaf: &SubgraphLeaf| match *leaf {
            SubgraphLeaf::Known(value) => Ok(known[&value].storage().clone()),
            SubgraphLeaf::Leaf(leaf) => match replaced.get(&leaf) {
                Some(tensor) => Ok(tensor.storage().clone()),
                None => self.leaf_tensor(leaf).map(|tensor| tensor.storage().clone()),
            },
        };
        let storages = || part.leaves.iter().map(storage).collect::<Result<_>>();
        let leaves = self.device.spend("bind", |host| &mut host.bind, storages)?;
        let prepared = self.device.plan(&part.excerpt).map_err(|error| self.locate(error, &part))?;
        // Before any cell is locked.
        let paths = self.device.paths_to_report(part.leaves.iter().map(|&leaf| self.leaf_path(leaf)));
        let mut borrowed = Borrowed { leaves, cells: Vec::with_capacity(assigns.len()) };
        // Locking cells in the order of their identities prevents deadlock.
        let mut updated: Vec<_> = assigns.iter().map(|(cell, _)| cell).zip(&part.excerpt.assigns).collect();
        updated.sort_unstable_by_key(|(cell, _)| cell.id());
        for (cell, &(number, _)) in updated {
            let SubgraphLeaf::Leaf(leaf) = part.leaves[number] else { unreachable!("cells are leaves") };
            let Leaf::Cell { version, .. } = self.leaves[leaf] else { unreachable!("cells name cell leaves") };
            borrowed.lend(&self.device, number, cell, Some(version))?;
        }
        let mut bindings = Bindings { leaves: &mut borrowed.leaves, host: &part.host, paths: &paths, fixed: None };
        let results = self.device.run(&prepared, &mut bindings);
        borrowed.give_back(results.is_ok());
        let storages = results.map_err(|error| self.locate(error, &part))?;
        let tensor = |(&value, storage)| Tensor::from_storage(&self.device, self.graph.ty(value), storage);
        Ok(outputs.iter().zip(storages).map(tensor).collect())
    }

    /// [`locate`] in the part that ran.
    fn locate(&self, error: Error, part: &Subgraph<'_>) -> Error {
        let (graph, origins) = (part.excerpt.to_graph(), self.part_origins(part));
        locate(error, &graph, &origins, |leaf| self.leaf_path(part.leaves[leaf]))
    }

    /// The leaf that a value is.
    fn leaf(&self, value: ValueId) -> Option<usize> {
        match self.graph.maker(value).source {
            Source::Leaf(leaf) => Some(leaf),
            _ => None,
        }
    }

    /// The tensor of a leaf. A parameter must still have the version that was recorded.
    fn leaf_tensor(&self, leaf: usize) -> Result<Tensor> {
        match &self.leaves[leaf] {
            Leaf::Input(tensor) => Ok(tensor.clone()),
            Leaf::Declared { .. } => Err(nothing_to_read()),
            Leaf::Cell { cell, version, .. } => {
                if let Some(tensor) = self.substitutes.get(&cell.id()) {
                    return Ok(tensor.clone());
                }
                let state = cell.lock();
                if state.version != *version {
                    drop(state);
                    return Err(stale(cell));
                }
                Ok(state.tensor.clone())
            }
        }
    }
}

/// The error for reading or updating a parameter that changed after the tape recorded it.
pub(super) fn stale(cell: &Cell) -> Error {
    let message = format!(
        "{} was updated after this tape recorded it; record the step again on a new tape (values wanted from this one \
         must be read, or held in a `Var`, before the update)",
        cell.label()
    );
    Error::new(ErrorKind::StaleTape, message)
}

/// Adds to an out-of-memory error the line and operands of its operation. If there are several of that name, it takes
/// the one with the largest tensor. `path` returns the path of a leaf that is a parameter.
pub(super) fn locate(
    error: Error,
    graph: &Graph,
    origins: &[&'static Location<'static>],
    path: impl Fn(usize) -> Option<Arc<str>>,
) -> Error {
    let Some(op) = error.op().filter(|_| error.kind() == ErrorKind::OutOfMemory) else { return error };
    let types = |node: &Node| node.inputs.iter().map(|&x| graph.ty(x)).collect::<Vec<_>>();
    let largest = |node: &Node| types(node).iter().chain(&node.types).map(TensorType::bytes).max();
    let named = |(_, node): &(usize, &Node)| matches!(&node.source, Source::Op(known) if known.name() == op);
    let Some((at, node)) = graph.nodes().iter().enumerate().filter(named).max_by_key(|(_, node)| largest(node)) else {
        return error;
    };
    // A view is named after the parameter behind it.
    let path = |mut x: ValueId| loop {
        match graph.maker(x) {
            Node { source: Source::Op(Op::View(_)), inputs, .. } => x = inputs[0],
            Node { source: Source::Leaf(leaf), .. } => break path(*leaf),
            _ => break None,
        }
    };
    node.inputs.iter().fold(error.at(origins[at]), |error, &x| error.operand(graph.ty(x), path(x)))
}

/// The error for reading a value on a tape whose inputs have no tensors.
fn nothing_to_read() -> Error {
    let message = "a value cannot be read here: the function is only being recorded, and its inputs have no tensors; \
                   return the value as a result instead";
    Error::new(ErrorKind::Argument, message)
}

/// The storages of a run's leaves. A cell that the run updates lends its storage, which is written in place, and gets
/// it back even if the run fails.
pub(super) struct Borrowed<'a> {
    pub(super) leaves: Vec<Storage>,
    pub(super) cells: Vec<(usize, MutexGuard<'a, State>)>,
}

impl<'a> Borrowed<'a> {
    /// Moves a cell's storage into the run, or a copy if the storage is shared. If `version` is given, the cell must
    /// still have it.
    pub(super) fn lend(&mut self, device: &Device, leaf: usize, cell: &'a Cell, version: Option<u64>) -> Result<()> {
        let mut state = cell.lock();
        if version.is_some_and(|version| version != state.version) {
            drop(state);
            return Err(stale(cell));
        }
        drop(std::mem::replace(&mut self.leaves[leaf], Storage::empty()));
        if !state.tensor.storage().is_unique() {
            let copy = device.copy(state.tensor.storage(), state.tensor.ty())?;
            *state.tensor.storage_mut() = copy;
        }
        self.leaves[leaf] = std::mem::replace(state.tensor.storage_mut(), Storage::empty());
        self.cells.push((leaf, state));
        Ok(())
    }
}

impl Borrowed<'_> {
    /// Returns the storages to their cells after the run; `updated` tells whether they have new values.
    pub(super) fn give_back(mut self, updated: bool) {
        if updated {
            self.cells.iter_mut().for_each(|(_, state)| state.version += 1);
        }
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        for (leaf, state) in &mut self.cells {
            *state.tensor.storage_mut() = std::mem::replace(&mut self.leaves[*leaf], Storage::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::functions::CustomOp;
    use crate::{Device, Param, Result, Tape, Tensor, TensorType, Var};

    /// A custom operation whose native kernel panics.
    #[derive(Debug)]
    struct Panics;

    impl CustomOp for Panics {
        fn name(&self) -> &'static str {
            "panics"
        }

        fn key(&self) -> String {
            String::new()
        }

        fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
            Ok(vec![x[0]])
        }

        fn vjp(&self, _x: &[Var], _y: &[Var], _dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
            Ok(vec![None])
        }

        fn cpu(&self, _types: &[TensorType], _x: &[&[f64]], _y: &mut [&mut [f64]]) {
            panic!("a kernel of the user's");
        }

        fn wgsl(&self, _types: &[TensorType]) -> (String, usize) {
            unreachable!("runs on the CPU")
        }
    }

    #[test]
    fn a_panic_during_a_run_gives_parameters_their_storage_back() -> Result<()> {
        let device = Device::cpu();
        let param = Param::new(Tensor::from_slice(&device, [2], &[1.0, 2.0])?);
        let tape = Tape::new(&device);
        let new = tape.param(&param).custom(Panics, &[]);
        let error = tape.update(vec![(Arc::clone(param.cell()), new.clone())]).expect_err("the kernel panics");
        assert!(error.to_string().contains("a kernel of the user's"), "{error}");
        assert_eq!(param.value().to_vec()?, [1.0, 2.0]);
        // The device still works.
        assert_eq!((Tape::new(&device).param(&param) * 2.0).to_vec()?, [2.0, 4.0]);
        Ok(())
    }

    #[test]
    fn a_parameter_becomes_a_part_of_a_larger_value() -> Result<()> {
        let device = Device::cpu();
        let param = Param::new(Tensor::from_slice(&device, [2], &[5.0, 6.0])?);
        let tape = Tape::new(&device);
        let old = tape.param(&param);
        let new = Var::concat(&[&old, &old], 0).square().slice(0, 0..2);
        drop(old);
        tape.update(vec![(Arc::clone(param.cell()), new)])?;
        assert_eq!(param.value().to_vec()?, [25.0, 36.0]);
        Ok(())
    }
}
