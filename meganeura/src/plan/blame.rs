//! Whose memory it is that a device has no room for.

use super::{Input, Plan, Step, StorageId, Work};
use crate::ops::Primitive;
use crate::{Error, TensorType};

impl Step {
    /// The operation that gives result `k`; none if that is a copy of something.
    fn op(&self, k: usize) -> Option<&'static str> {
        match &self.work {
            Work::Kernel(kernel) => Some(kernel.op.name()),
            Work::Pointwise(program) => match program.results[k] {
                Input::Result(at) => Some(program.instructions[at].0.name()),
                _ => None,
            },
        }
    }

    /// The error with the operation that the step is of.
    pub(crate) fn blame(&self, error: Error) -> Error {
        in_op(self.op(0), error)
    }
}

impl Plan {
    /// The error with the operation whose storage could not be had, and what that storage is to it.
    pub(crate) fn blame(&self, storage: StorageId, error: Error) -> Error {
        for step in &self.steps {
            if step.scratch.contains(&storage) {
                return in_op(step.op(0), error.context("its scratch memory"));
            }
            let Some(k) = step.outputs.iter().position(|&(output, _)| output == storage) else { continue };
            let ty = step.outputs[k].1;
            return match step.op(k) {
                Some(op) if step.stores_part(k) => error.context("the tensor that its result is a part of").in_op(op),
                Some(op) => error.context(format!("its result {ty}")).in_op(op),
                None => in_op(self.reader(storage), error.context(copied(ty))),
            };
        }
        error
    }

    /// As [`Plan::blame`], of the largest storage in a shared slot.
    #[cfg(feature = "gpu")]
    pub(crate) fn blame_slot(&self, rank: usize, error: Error) -> Error {
        let inside = (0..self.storages.len()).filter(|&s| self.storages[s].place == super::Place::Slot(rank));
        match inside.max_by_key(|&s| self.storages[s].bytes()) {
            Some(storage) => self.blame(storage, error),
            None => error,
        }
    }

    fn reader(&self, storage: StorageId) -> Option<&'static str> {
        self.steps.iter().find(|step| step.reads().any(|read| read == storage)).and_then(|step| step.op(0))
    }
}

fn copied(ty: TensorType) -> String {
    format!("a copy {ty} without gaps")
}

fn in_op(op: Option<&'static str>, error: Error) -> Error {
    match op {
        Some(op) => error.in_op(op),
        None => error,
    }
}
