//! Names the operation whose memory could not be allocated.

use super::{Input, Plan, Step, StorageId, Work};
use crate::ops::Primitive;
use crate::{Error, TensorType};

impl Step {
    /// The operation that computes result `k`; `None` if the result is a copy.
    fn op(&self, k: usize) -> Option<&'static str> {
        match &self.work {
            Work::Kernel(kernel) => Some(kernel.op.name()),
            Work::Pointwise(program) => match program.results[k] {
                Input::Result(at) => Some(program.instructions[at].0.name()),
                _ => None,
            },
        }
    }

    /// Adds the step's operation to an error.
    pub(crate) fn explain(&self, error: Error) -> Error {
        in_op(self.op(0), error)
    }
}

impl Plan {
    /// Adds to an error the operation whose storage could not be allocated, and the role of that storage.
    pub(crate) fn explain(&self, storage: StorageId, error: Error) -> Error {
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

    /// Like [`Plan::blame`], for the largest storage in a shared slot.
    #[cfg(feature = "gpu")]
    pub(crate) fn blame_slot(&self, rank: usize, error: Error) -> Error {
        let inside = (0..self.storages.len()).filter(|&s| self.storages[s].place == super::Place::Slot(rank));
        match inside.max_by_key(|&s| self.storages[s].bytes()) {
            Some(storage) => self.explain(storage, error),
            None => error,
        }
    }

    fn reader(&self, storage: StorageId) -> Option<&'static str> {
        self.steps.iter().find(|step| step.reads().any(|read| read == storage)).and_then(|step| step.op(0))
    }
}

fn copied(ty: TensorType) -> String {
    format!("a contiguous copy {ty}")
}

fn in_op(op: Option<&'static str>, error: Error) -> Error {
    match op {
        Some(op) => error.in_op(op),
        None => error,
    }
}
