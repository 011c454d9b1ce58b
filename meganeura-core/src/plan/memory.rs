//! Memory use of a plan.

use super::{KernelWork, Place, Plan, Program, Step, StorageInfo, Work};
use crate::kernel::launch::Launch;

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
    /// Values that a compiled function computes once, and keeps from call to call.
    pub kept: usize,
    /// The caller's tensors that the plan reads or updates: inputs, parameters, an optimizer's state.
    pub leaves: usize,
}

/// The bytes of the small lists in a step, such as its operands, and in a launch, such as its defines; as measured.
const OF_STEP: usize = 1408;
const OF_LAUNCH: usize = 512;

impl Memory {
    /// The peak memory of a run, unless another plan has made slots larger.
    #[must_use]
    pub fn total(&self) -> usize {
        self.slots.iter().sum::<usize>() + self.outputs + self.exchanged + self.kept + self.leaves
    }
}

impl Plan {
    /// An estimate of the host memory that the plan itself takes: it counts steps, programs and launches, each with the
    /// small lists in it.
    pub(crate) fn host_bytes(&self) -> usize {
        let program = |program: &Program| size_of::<Program>() + 96 * program.instructions.len();
        let step = |step: &Step| {
            let work = match &step.work {
                Work::Pointwise(own) => program(own),
                Work::Kernel(own) => size_of::<KernelWork>() + own.store.as_ref().map_or(0, program),
            };
            size_of::<Step>() + OF_STEP + work + (size_of::<Launch>() + OF_LAUNCH) * step.launches.len()
        };
        self.steps.iter().map(step).sum::<usize>() + size_of::<StorageInfo>() * self.storages.len()
    }

    /// The numbers of the leaves that are read or updated, with their bytes.
    pub(crate) fn leaf_bytes(&self) -> impl Iterator<Item = (usize, usize)> {
        self.storages.iter().filter_map(|storage| match storage.place {
            Place::Leaf(leaf) => Some((leaf, storage.bytes())),
            _ => None,
        })
    }

    pub(crate) fn memory(&self) -> Memory {
        let bytes = |wanted: fn(Place) -> bool| {
            self.storages.iter().filter(|storage| wanted(storage.place)).map(StorageInfo::bytes).sum()
        };
        Memory {
            slots: self.slots.clone(),
            outputs: bytes(|place| matches!(place, Place::Output(_))),
            exchanged: bytes(|place| matches!(place, Place::Range { .. })),
            kept: 0,
            leaves: self.leaf_bytes().map(|(_, bytes)| bytes).sum(),
        }
    }
}
