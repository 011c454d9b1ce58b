//! Plans: what a device runs, made from a graph by a few passes, each with tests of its own.
//!
//! ```text
//! graph ─ simplify ─ fuse ─ merge, format (GPU only) ─ lower ─ exchanges ─ launches (GPU only) ─ share (GPU only) ─ place ─▶ Plan
//! ```
//!
//! A plan is pure data and holds no device. It knows operations only by their families: pointwise rows are fused, views
//! vanish into layouts, and kernels are asked for the ways to launch them.

mod assign;
mod blame;
mod choose;
mod count;
mod dot;
mod dump;
mod exchanges;
mod format;
mod fuse;
mod key;
mod launch;
mod launched;
mod lower;
mod memory;
mod merge;
mod merged;
mod parts;
mod place;
mod pointwise;
mod share;
mod simplify;
mod uses;

pub use choose::KernelChoice;
pub(crate) use choose::Preferences;
pub(crate) use key::{Excerpt, Key};
pub use memory::Memory;
pub(crate) use pointwise::{Input, Program};

use std::ops::Range;
use std::sync::Arc;

use crate::graph::{Graph, ValueId};
use crate::kernel::launch::{Argument, Caps, Format, Launch};
use crate::ops::{Exchange, KernelOp};
use crate::tensor::Storage;
use crate::{DType, Result, TensorType};

/// What a plan is wanted for: values to hand out, and leaves whose contents become other values.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) outputs: &'a [ValueId],
    pub(crate) assigns: &'a [(usize, ValueId)],
}

/// What steps are lowered to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target<'a> {
    /// The native executor runs a step as one call.
    Cpu,
    #[cfg_attr(not(feature = "gpu"), expect(dead_code, reason = "only the wgpu executor asks for launches"))]
    /// A GPU runs a step as launches, the best of several ways unless another is preferred.
    Gpu { caps: Caps, preferences: &'a Preferences },
}

/// Buffers that a step of the native executor touches at most: few enough for a block of each to stay in the first
/// cache.
const MOST_BUFFERS: usize = 8;

/// The one way to compute an operation on the CPU.
const NATIVE: &str = "native";

/// A small number that the host sends along with each run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum HostWord {
    Float(f64),
    Word(u32),
}

impl HostWord {
    /// The word as kernels that read bits see it.
    #[expect(clippy::cast_possible_truncation, reason = "words are 32 bits; native programs read the full number")]
    pub(crate) fn bits(self) -> u32 {
        match self {
            Self::Float(x) => (x as f32).to_bits(),
            Self::Word(x) => x,
        }
    }
}

/// What of the runs of a device is timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Profiling {
    /// Nothing. A run costs no more than without this.
    #[default]
    Off,
    /// Each run as a whole, undisturbed.
    Runs,
    /// Each launch. A GPU ends one before it starts the next, which costs a few microseconds each.
    Launches,
}

/// The memory of one run: a storage for each leaf, in the graph's numbering, and the host's words.
pub(crate) struct Bindings<'a> {
    pub(crate) leaves: &'a mut Vec<Storage>,
    pub(crate) host: &'a [HostWord],
    /// What the leaves are called, where that is wanted: see [`Plan::launched`].
    pub(crate) paths: &'a [Option<Arc<str>>],
}

/// Which memory an operand or a result is in.
pub(crate) type StorageId = usize;

/// An operand of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Operand {
    pub(crate) storage: StorageId,
    pub(crate) argument: Argument,
}

/// What a step computes.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Pointwise(Program),
    Kernel(Box<KernelWork>),
}

/// A kernel, with the programs that run inside of its launch. The step's operands are the kernel's, but the one that is
/// loaded through a program, then those of the programs.
#[derive(Clone, Debug)]
pub(crate) struct KernelWork {
    pub(crate) op: KernelOp,
    /// The number of the operation's operands, that which is loaded through a program included.
    pub(crate) operands: usize,
    /// The operation's results. The program that stores gives the step's result 0, and those after the operation's.
    pub(crate) types: Vec<TensorType>,
    pub(crate) load: Option<Load>,
    pub(crate) store: Option<Program>,
    /// Where the operands of `store` begin.
    pub(crate) elementwise: usize,
}

/// The operand of a kernel that a program makes while the kernel runs.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) operand: usize,
    pub(crate) argument: Argument,
    pub(crate) program: Program,
}

impl KernelWork {
    /// The number that the step gives to operand `k` of the operation, which is in memory.
    pub(crate) fn operand(&self, k: usize) -> usize {
        k - usize::from(self.load.as_ref().is_some_and(|load| load.operand < k))
    }

    /// The number that the step gives to result `k` of `store`.
    pub(crate) fn stored(&self, k: usize) -> usize {
        if k == 0 { 0 } else { self.types.len() + k - 1 }
    }
}

/// One unit of work of the native executor, a few launches of a GPU.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) work: Work,
    pub(crate) inputs: Vec<Operand>,
    pub(crate) outputs: Vec<(StorageId, TensorType)>,
    /// Memory of the launches of this step alone, or what those of an earlier one have left in theirs.
    pub(crate) scratch: Vec<StorageId>,
    /// The chosen variant's name; empty for fused steps, and on the CPU.
    pub(crate) variant: &'static str,
    /// The ways that there are, best first.
    pub(crate) offered: Vec<&'static str>,
    pub(crate) launches: Vec<Launch>,
}

impl Step {
    /// The operands of which result `output` needs element `i` alone for its own element `i`, and reads it before that
    /// is written; `None` if the step stores the result in another way.
    pub(crate) fn elementwise(&self, output: usize) -> Option<Range<usize>> {
        match &self.work {
            Work::Pointwise(_) => Some(0..self.inputs.len()),
            Work::Kernel(kernel) => {
                let results = kernel.store.as_ref()?.results.len();
                (0..results).any(|k| kernel.stored(k) == output).then_some(kernel.elementwise..self.inputs.len())
            }
        }
    }

    /// What ranks meet for in this step: the executor brings them its operands, and takes the results.
    pub(crate) fn meets(&self) -> Option<&Exchange> {
        match &self.work {
            Work::Kernel(kernel) => kernel.op.meets(),
            Work::Pointwise(_) => None,
        }
    }

    /// Whether result `output` is stored into a part of its storage.
    pub(crate) fn stores_part(&self, output: usize) -> bool {
        match &self.work {
            Work::Pointwise(program) => program.places[output].is_some(),
            Work::Kernel(kernel) => {
                let places = kernel.store.iter().flat_map(|program| &program.places);
                places.enumerate().any(|(k, place)| place.is_some() && kernel.stored(k) == output)
            }
        }
    }

    /// The storages that this step reads but does not write.
    pub(crate) fn reads(&self) -> impl Iterator<Item = StorageId> + '_ {
        self.inputs.iter().map(|input| input.storage)
    }

    pub(crate) fn writes(&self) -> impl Iterator<Item = StorageId> + '_ {
        self.outputs.iter().map(|&(storage, _)| storage).chain(self.scratch.iter().copied())
    }
}

/// Where a storage's memory comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// The caller's tensor.
    Leaf(usize),
    /// The block of small numbers that the host sends.
    Host,
    /// New memory that the caller gets.
    Output(usize),
    /// Memory of the device, shared by storages that live at different times.
    Slot(usize),
    /// Value `value` of the range that ranks exchange in meeting `meeting`. Only on GPUs.
    Range { meeting: usize, value: usize },
}

/// A piece of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StorageInfo {
    pub(crate) dtype: DType,
    pub(crate) format: Format,
    pub(crate) elements: usize,
    pub(crate) place: Place,
}

impl StorageInfo {
    pub(crate) fn bytes(&self) -> usize {
        let bytes = match self.format {
            Format::Full => self.dtype.bytes(),
            Format::Half(_) => 2,
        };
        self.elements.saturating_mul(bytes)
    }
}

/// A computation, ready to run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    pub(crate) storages: Vec<StorageInfo>,
    /// Bytes of each shared slot, largest first.
    pub(crate) slots: Vec<usize>,
    /// The storage of each wanted value.
    pub(crate) outputs: Vec<StorageId>,
}

impl Plan {
    pub(crate) fn new(request: &Request<'_>, mut target: Target<'_>) -> Result<Self> {
        if let Target::Gpu { caps, preferences } = &mut target {
            caps.half |= preferences.halves;
        }
        let roots: Vec<_> =
            request.outputs.iter().chain(request.assigns.iter().map(|(_, value)| value)).copied().collect();
        let (graph, roots) = simplify::simplify(request.graph, &roots);
        let (outputs, assigned) = roots.split_at(request.outputs.len());
        let assigns: Vec<_> = request.assigns.iter().map(|&(leaf, _)| leaf).zip(assigned.iter().copied()).collect();
        let uses = uses::Uses::new(&graph, &roots);
        let (bindings, merges) = match target {
            Target::Cpu => (MOST_BUFFERS, false),
            Target::Gpu { caps, preferences } => (caps.bindings, !preferences.apart),
        };
        let mut schedule = fuse::fuse(&uses, bindings);
        if merges {
            schedule = merge::merge(&uses, schedule, bindings);
        }
        let formats = match target {
            Target::Cpu => format::Formats::full(&uses, &schedule),
            Target::Gpu { caps, preferences } => {
                format::Formats::new(&uses, &schedule, assigned, &caps, preferences.halves)
            }
        };
        let mut plan = lower::lower(&uses, &schedule, &formats, outputs, &assigns, merges);
        exchanges::join(&mut plan);
        count::expect_countable(&plan, target)?;
        if let Target::Gpu { caps, preferences } = target {
            exchanges::reuse(&mut plan);
            launch::launch(&mut plan, &caps, preferences)?;
            share::share(&mut plan);
        }
        place::place(&mut plan, target);
        Ok(plan)
    }

    /// Launches of one run: steps on the CPU.
    pub(crate) fn launches(&self) -> usize {
        self.steps.iter().map(|step| step.launches.len().max(1)).sum()
    }

    /// How each kernel is computed. On the CPU there is one way.
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
