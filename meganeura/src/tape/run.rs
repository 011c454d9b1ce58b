//! Running a tape: what is wanted goes through a plan, with the leaves' tensors, and comes back as tensors.

use std::panic::Location;
use std::sync::{Arc, MutexGuard};

use super::{Leaf, Recording, Tape, Var};
use crate::error::bail;
use crate::graph::{Graph, Node, Source, ValueId};
use crate::ops::Op;
use crate::param::{Cell, State};
use crate::plan::{Bindings, Request};
use crate::tensor::Storage;
use crate::{Device, Error, ErrorKind, Result, Tensor, TensorType};

impl Tape {
    /// The value of `value`, computed now unless it was before. Everything else that the caller holds is computed along.
    pub(crate) fn tensor_of(&self, value: ValueId) -> Result<Tensor> {
        let known = {
            let recording = self.recording.borrow();
            match recording.graph.maker(value).source {
                Source::Leaf(leaf) => Some(match &recording.leaves[leaf] {
                    Leaf::Input(tensor) => tensor.clone(),
                    Leaf::Cell { cell, version, .. } => recording.cell_tensor(cell, *version)?,
                    Leaf::Declared { input, .. } => return Err(no_value(*input)),
                }),
                _ => recording.values.get(&value).cloned(),
            }
        };
        if let Some(tensor) = known {
            return Ok(tensor);
        }
        self.recording.borrow_mut().run(&[value], &[])?;
        Ok(self.recording.borrow().values[&value].clone())
    }

    /// Computes everything that the caller holds, and replaces the value of each cell and of the buffers that were given new
    /// ones while recording, all in one run.
    ///
    /// Takes the new values by name only: held, each would also be handed out as a tensor of its own.
    pub(crate) fn update(&self, updates: Vec<(Arc<Cell>, Var)>) -> Result<()> {
        let mut assigns: Vec<_> =
            updates.into_iter().map(|(cell, new)| Ok((cell, new.id()?))).collect::<Result<_>>()?;
        assigns.extend(self.assigned_values()?);
        self.recording.borrow_mut().run(&[], &assigns)
    }

    /// Computes `value` with other tensors in the place of some leaves, leaving the tape as it is.
    pub(crate) fn evaluate_with(&self, values: &[ValueId], replaced: &[(ValueId, Tensor)]) -> Result<Vec<Tensor>> {
        self.recording.borrow().execute(values, &[], replaced)
    }
}

impl Recording {
    fn run(&mut self, wanted: &[ValueId], assigns: &[(Arc<Cell>, ValueId)]) -> Result<()> {
        let held = (0..self.graph.values()).filter(|&v| self.handles[v].strong_count() > 0);
        #[expect(clippy::cast_possible_truncation, reason = "value numbers are u32")]
        let held = held.map(|v| ValueId(v as u32));
        let is_computed = |v: &ValueId| matches!(self.graph.maker(*v).source, Source::Op(_));
        let mut outputs: Vec<_> = held.filter(is_computed).filter(|v| !self.values.contains_key(v)).collect();
        outputs.extend(wanted.iter().filter(|v| !outputs.contains(v)).copied().collect::<Vec<_>>());
        let tensors = self.execute(&outputs, assigns, &[])?;
        self.values.extend(outputs.into_iter().zip(tensors));
        Ok(())
    }

    fn execute(
        &self,
        outputs: &[ValueId],
        assigns: &[(Arc<Cell>, ValueId)],
        replaced: &[(ValueId, Tensor)],
    ) -> Result<Vec<Tensor>> {
        let assigned: Vec<_> = assigns.iter().map(|(cell, value)| (self.cells[&cell.id()], *value)).collect();
        let mut leaves = Vec::with_capacity(self.leaves.len());
        for leaf in &self.leaves {
            leaves.push(self.leaf_storage(leaf, replaced)?);
        }
        let request = Request { graph: &self.graph, outputs, assigns: &assigned };
        let executable = self.device.plan(&request).map_err(|error| self.locate(error))?;
        // Before any cell is locked.
        let paths = self.device.paths_to_report(self.leaves.iter().map(Leaf::path));
        let mut lent = Lent { leaves, cells: Vec::with_capacity(assigns.len()) };
        // Whoever locks several cells does so in the order of their identities, so that nobody waits in a circle.
        let mut updated: Vec<_> = assigns.iter().zip(&assigned).map(|((cell, _), &(leaf, _))| (leaf, cell)).collect();
        updated.sort_unstable_by_key(|(_, cell)| cell.id());
        for (leaf, cell) in updated {
            lent.lend(&self.device, leaf, cell)?;
        }
        let mut bindings = Bindings { leaves: &mut lent.leaves, host: &self.host, paths: &paths };
        let results = self.device.run(&executable, &mut bindings);
        if results.is_ok() {
            lent.cells.iter_mut().for_each(|(_, state)| state.version += 1);
        }
        drop(lent);
        Ok(outputs
            .iter()
            .zip(results.map_err(|error| self.locate(error))?)
            .map(|(&value, storage)| Tensor::from_storage(&self.device, self.graph.ty(value), storage))
            .collect())
    }

    /// As the function of this name.
    pub(super) fn locate(&self, error: Error) -> Error {
        locate(error, &self.graph, &self.origins, |leaf| self.leaves[leaf].path())
    }

    fn leaf_storage(&self, leaf: &Leaf, replaced: &[(ValueId, Tensor)]) -> Result<Storage> {
        match leaf {
            Leaf::Input(tensor) => {
                let of_this = |value: &ValueId| match self.graph.maker(*value).source {
                    Source::Leaf(k) => std::ptr::eq(&raw const self.leaves[k], leaf),
                    _ => false,
                };
                let tensor = replaced.iter().find(|(value, _)| of_this(value)).map_or(tensor, |(_, tensor)| tensor);
                Ok(tensor.storage().clone())
            }
            Leaf::Declared { input, .. } => Err(no_value(*input)),
            Leaf::Cell { cell, version, value } => {
                if let Some((_, tensor)) = replaced.iter().find(|(v, _)| v == value) {
                    return Ok(tensor.storage().clone());
                }
                Ok(self.cell_tensor(cell, *version)?.storage().clone())
            }
        }
    }

    /// The value of a parameter, which must be the one that was recorded.
    fn cell_tensor(&self, cell: &Cell, version: u64) -> Result<Tensor> {
        if let Some(tensor) = self.substitutes.get(&cell.id()) {
            return Ok(tensor.clone());
        }
        let state = cell.lock();
        if state.version != version {
            drop(state);
            let name = cell.path().map_or_else(|| "a parameter".to_owned(), |path| format!("parameter {path}"));
            bail!(
                StaleTape,
                "{name} was updated after this tape recorded it; record the step again on a new tape \
                 (values wanted from this one must be read, or held in a `Var`, before the update)"
            );
        }
        Ok(state.tensor.clone())
    }
}

/// An error for want of memory with the line and the operands of the operation that wanted it: of those of that name the one with the
/// largest tensor. `path` names the parameter that a leaf is.
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
    // A view is named by the parameter that it shows.
    let path = |mut x: ValueId| loop {
        match graph.maker(x) {
            Node { source: Source::Op(Op::View(_)), inputs, .. } => x = inputs[0],
            Node { source: Source::Leaf(leaf), .. } => break path(*leaf),
            _ => break None,
        }
    };
    node.inputs.iter().fold(error.at(origins[at]), |error, &x| error.operand(graph.ty(x), path(x)))
}

/// That somebody reads what depends on an input that is not there yet.
fn no_value(input: usize) -> Error {
    let message =
        format!("input {input} has no value while the function is compiled: nothing that depends on it can be read");
    Error::new(ErrorKind::Argument, message)
}

/// The storages of a run's leaves. Cells that the run updates lend theirs, so that it can be written in place, and get it back
/// however the run ends.
struct Lent<'a> {
    leaves: Vec<Storage>,
    cells: Vec<(usize, MutexGuard<'a, State>)>,
}

impl<'a> Lent<'a> {
    /// Moves a cell's storage into the run: a copy of it, if somebody else sees the storage too.
    fn lend(&mut self, device: &Device, leaf: usize, cell: &'a Cell) -> Result<()> {
        let mut state = cell.lock();
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

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        for (leaf, state) in &mut self.cells {
            *state.tensor.storage_mut() = std::mem::replace(&mut self.leaves[*leaf], Storage::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use crate::ops::CustomOp;
    use crate::{Device, Param, Result, Tape, Tensor, TensorType, Var};

    /// Its native kernel panics, as a user's may.
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
        let run = AssertUnwindSafe(|| tape.update(vec![(Arc::clone(param.cell()), new.clone())]));
        assert!(catch_unwind(run).is_err());
        assert_eq!(param.value().to_vec()?, [1.0, 2.0]);
        // And the device still works.
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
