//! Plans: the executable form of a graph. This folder has the data; `passes/` makes a plan from a graph.
//!
//! A plan is pure data and holds no device. It knows operations by their families: pointwise rows are fused, views
//! become layouts, and kernels list the variants of their launches. The only operation that it names is the exchange
//! between ranks.

mod affine;
mod dot;
mod dump;
mod epilogue;
mod explain;
mod fixed;
mod key;
mod launch_info;
mod memory;
mod merged;
mod padded;
mod passes;
mod pointwise;
mod preferences;

pub(crate) use affine::Part;
pub(crate) use fixed::kept_values;
pub(crate) use key::{Excerpt, Key};
pub use memory::Memory;
pub(crate) use pointwise::{Input, Program};
pub use preferences::KernelChoice;
pub(crate) use preferences::Preferences;

use std::ops::Range;

use crate::graph::{Graph, ValueId};
use crate::kernel::launch::{Argument, Binding, Caps, Format, Launch};
use crate::ops::{CollectiveOp, KernelOp};
use crate::{DType, Layout, TensorType};

/// The request for a plan: values to hand out, and leaves with their new values.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) outputs: &'a [ValueId],
    pub(crate) assigns: &'a [(usize, ValueId)],
}

/// The target of lowering.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target<'a> {
    /// The native executor: a step is one call.
    Cpu,
    #[cfg_attr(not(any(feature = "gpu", test)), expect(dead_code, reason = "only the wgpu executor asks for launches"))]
    /// A GPU: a step is one or more launches, by the best of several variants unless another is preferred.
    Gpu { caps: Caps, preferences: &'a Preferences },
}

/// The one way to compute an operation on the CPU.
const NATIVE: &str = "native";

/// The index of the storage that holds an operand or a result.
pub(crate) type StorageId = usize;

/// An operand of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Operand {
    pub(crate) storage: StorageId,
    pub(crate) argument: Argument,
}

/// The computation of a step.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Pointwise(Program),
    Kernel(Box<KernelWork>),
}

/// A kernel, with the programs that run inside its launch. The step's operands are the kernel's, without the one that a
/// program loads, followed by those of the programs.
#[derive(Clone, Debug)]
pub(crate) struct KernelWork {
    pub(crate) op: KernelOp,
    /// The number of the operation's operands, including one that a program loads.
    pub(crate) operands: usize,
    /// The types of the operation's results. The epilogue's first result takes the place of result 0; its others follow
    /// the operation's. An epilogue of all results has theirs among its own, and those are the step's.
    pub(crate) types: Vec<TensorType>,
    /// Whether anything reads the operation's results.
    pub(crate) read: Vec<bool>,
    pub(crate) load: Option<Load>,
    pub(crate) store: Option<Program>,
    /// The index of the first operand of `store`.
    pub(crate) elementwise: usize,
}

/// The operand of a kernel that a program computes while the kernel runs.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) operand: usize,
    pub(crate) argument: Argument,
    pub(crate) program: Program,
}

impl KernelWork {
    /// The step's index of the operation's operand `k`, which is in memory.
    pub(crate) fn operand(&self, k: usize) -> usize {
        k - usize::from(self.load.as_ref().is_some_and(|load| load.operand < k))
    }

    /// The step's index of result `k` of `store`.
    pub(crate) fn stored(&self, k: usize) -> usize {
        if k == 0 || self.op.stores_all() { k } else { self.types.len() + k - 1 }
    }

    /// The result of `store` that is the step's result `output`; `None` if the kernel itself stores that.
    fn result(&self, output: usize) -> Option<usize> {
        let results = self.store.as_ref()?.results.len();
        (0..results).find(|&k| self.stored(k) == output)
    }
}

/// A unit of work: one call of the native executor, or a few launches of a GPU.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) work: Work,
    pub(crate) inputs: Vec<Operand>,
    pub(crate) outputs: Vec<(StorageId, TensorType)>,
    /// Scratch memory of the launches of this step, or left behind by those of an earlier one.
    pub(crate) scratch: Vec<StorageId>,
    /// The chosen variant's name; empty for fused steps, and on the CPU.
    pub(crate) variant: &'static str,
    /// The variants to choose from, best first.
    pub(crate) offered: Vec<&'static str>,
    pub(crate) launches: Vec<Launch>,
    /// The bindings that begin within a storage, and the element where. The layouts of such operands, and the places of
    /// such results, count from there.
    pub(crate) binding_offsets: Vec<(Binding, usize)>,
}

impl Step {
    /// The element of its storage at which a binding begins.
    pub(crate) fn binding_offset(&self, binding: Binding) -> usize {
        self.binding_offsets
            .iter()
            .find(|(binding_offsets, _)| *binding_offsets == binding)
            .map_or(0, |&(_, begin)| begin)
    }

    /// The place of result `output` in its storage, if it is stored into a part of that.
    pub(crate) fn place_mut(&mut self, output: usize) -> Option<&mut Layout> {
        match &mut self.work {
            Work::Pointwise(program) => program.places[output].as_mut(),
            Work::Kernel(kernel) => {
                let k = kernel.result(output)?;
                kernel.store.as_mut()?.places[k].as_mut()
            }
        }
    }

    /// The operands of which result `output` needs only element `i` for its own element `i`, and reads it before that
    /// is written; `None` if the step stores the result in another way.
    pub(crate) fn elementwise(&self, output: usize) -> Option<Range<usize>> {
        match &self.work {
            Work::Pointwise(_) => Some(0..self.inputs.len()),
            Work::Kernel(kernel) => kernel.result(output).map(|_| kernel.elementwise..self.inputs.len()),
        }
    }

    /// The exchange between ranks in this step, if it is one: the executor passes in its operands, and takes the
    /// results.
    pub(crate) fn collective(&self) -> Option<&CollectiveOp> {
        match &self.work {
            Work::Kernel(kernel) => kernel.op.collective(),
            Work::Pointwise(_) => None,
        }
    }

    /// `true` if result `output` is stored into a part of its storage.
    pub(crate) fn stores_part(&self, output: usize) -> bool {
        match &self.work {
            Work::Pointwise(program) => program.places[output].is_some(),
            Work::Kernel(kernel) => {
                let stored = kernel.store.as_ref().zip(kernel.result(output));
                stored.is_some_and(|(program, k)| program.places[k].is_some())
            }
        }
    }

    /// The storages of this step's operands, including those that it updates in place.
    pub(crate) fn reads(&self) -> impl Iterator<Item = StorageId> + '_ {
        self.inputs.iter().map(|input| input.storage)
    }

    pub(crate) fn writes(&self) -> impl Iterator<Item = StorageId> + '_ {
        self.outputs.iter().map(|&(storage, _)| storage).chain(self.scratch.iter().copied())
    }
}

/// The origin of a storage's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// The caller's tensor.
    Leaf(usize),
    /// The block of small numbers that the host sends.
    Host,
    /// New memory, handed to the caller.
    Output(usize),
    /// Nowhere yet: the last pass puts the storage into a slot. One that no step touches stays nowhere.
    Unplaced,
    /// Memory of the device, shared by storages that live at different times.
    Slot(usize),
    /// Value `value` in the range that ranks exchange in collective `collective`. Only on GPUs.
    Range { collective: usize, value: usize },
}

/// A piece of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StorageInfo {
    pub(crate) dtype: DType,
    pub(crate) format: Format,
    /// Its elements, with padding.
    pub(crate) elements: usize,
    pub(crate) place: Place,
}

impl StorageInfo {
    pub(crate) fn element_bytes(&self) -> usize {
        self.format.element_bytes(self.dtype)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.elements.saturating_mul(self.element_bytes())
    }
}

/// A computation that is ready to run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    pub(crate) storages: Vec<StorageInfo>,
    /// Bytes of each shared slot, largest first.
    pub(crate) slots: Vec<usize>,
    /// The storage of each wanted value.
    pub(crate) outputs: Vec<StorageId>,
    /// `true` if it runs once for each version of its leaves.
    pub(crate) once: bool,
}

impl Plan {
    /// The launches of one run; a step without any, native or an exchange, counts as one.
    pub(crate) fn launches(&self) -> usize {
        self.steps.iter().map(|step| step.launches.len().max(1)).sum()
    }

    /// The variants and the choice for each kernel. The CPU has a single one.
    pub(crate) fn choices(&self) -> impl Iterator<Item = KernelChoice> + '_ {
        self.steps.iter().enumerate().filter_map(|(step, Step { work, variant, offered, .. })| match work {
            Work::Kernel(kernel) if offered.is_empty() => {
                Some(KernelChoice { step, op: kernel.op.name(), variant: NATIVE, offered: vec![NATIVE] })
            }
            Work::Kernel(kernel) => {
                Some(KernelChoice { step, op: kernel.op.name(), variant, offered: offered.clone() })
            }
            Work::Pointwise(_) => None,
        })
    }

    /// Bytes of the shared slots.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.slots.iter().sum()
    }
}
