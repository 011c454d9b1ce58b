//! Memory use of a plan.

use super::{Place, Plan};

/// The memory that one run of a plan takes, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Memory {
    /// The slots of the memory that all plans of a device share, largest first. They hold activations, gradients and
    /// scratch memory; values with disjoint lifetimes share a slot.
    pub slots: Vec<usize>,
    /// Values that are handed out because the caller holds them.
    pub outputs: usize,
    /// Values that ranks of a [world](crate::world) exchange, each exchange on its own. Only on GPUs.
    pub exchanged: usize,
    /// The caller's tensors that the plan reads or updates: inputs, parameters, an optimizer's state.
    pub leaves: usize,
}

impl Memory {
    /// The peak memory of a run, unless another plan has made slots larger.
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
