//! How much memory a plan takes.

use super::{Place, Plan};

/// The memory that one run of a plan takes, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Memory {
    /// Each slot of the memory that all plans of a device share, largest first: activations, gradients and scratch
    /// memory, those that live at different times in one slot.
    pub slots: Vec<usize>,
    /// What is handed out: values that the caller holds.
    pub outputs: usize,
    /// What ranks of a [world](crate::world) exchange, each exchange for itself. Only on GPUs.
    pub exchanged: usize,
    /// What the caller brings and the plan reads or updates: inputs, parameters, an optimizer's state.
    pub leaves: usize,
}

impl Memory {
    /// The most that a run has at one time, if no other plan made slots larger.
    #[must_use]
    pub fn total(&self) -> usize {
        self.slots.iter().sum::<usize>() + self.outputs + self.exchanged + self.leaves
    }
}

impl Plan {
    pub(crate) fn memory(&self) -> Memory {
        let bytes = |wanted: fn(Place) -> bool| {
            self.storages.iter().filter(|storage| wanted(storage.place)).map(super::StorageInfo::bytes).sum()
        };
        Memory {
            slots: self.slots.clone(),
            outputs: bytes(|place| matches!(place, Place::Output(_))),
            exchanged: bytes(|place| matches!(place, Place::Range { .. })),
            leaves: bytes(|place| matches!(place, Place::Leaf(_))),
        }
    }
}
