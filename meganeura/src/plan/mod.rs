//! Plans: what a device runs, made from a graph by a few passes, each with tests of its own.
//!
//! ```text
//! graph ─ simplify ─ fuse ─ lower ─ launches (GPU only) ─ place ─▶ Plan
//! ```
//!
//! A plan is pure data and holds no device. It knows operations only by their families: pointwise rows are fused, views
//! vanish into layouts, and kernels are asked for the ways to launch them.

mod blame;
mod dump;
mod fuse;
mod launch;
mod lower;
mod place;
mod pointwise;
mod simplify;

pub(crate) use pointwise::{Input, Program};

use crate::graph::{Graph, ValueId};
use crate::kernel::launch::{Argument, Caps, Launch};
use crate::ops::KernelOp;
use crate::tensor::Storage;
use crate::{DType, TensorType};

/// What a plan is wanted for: values to hand out, and leaves whose contents become other values.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) outputs: &'a [ValueId],
    pub(crate) assigns: &'a [(usize, ValueId)],
}

/// A request kept as the key of the plan that was made for it.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Key {
    graph: Graph,
    outputs: Vec<ValueId>,
    assigns: Vec<(usize, ValueId)>,
}

impl From<&Request<'_>> for Key {
    fn from(request: &Request<'_>) -> Self {
        Self { graph: request.graph.clone(), outputs: request.outputs.to_vec(), assigns: request.assigns.to_vec() }
    }
}

impl Key {
    pub(crate) fn matches(&self, request: &Request<'_>) -> bool {
        self.outputs == request.outputs && self.assigns == request.assigns && self.graph == *request.graph
    }
}

/// What steps are lowered to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// The native executor runs a step as one call.
    Cpu,
    #[cfg_attr(not(feature = "gpu"), expect(dead_code, reason = "only the wgpu executor asks for launches"))]
    /// A GPU runs a step as launches; tests ask for a particular variant of each kernel (the last where there are fewer).
    Gpu { caps: Caps, variant: usize },
}

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

/// The memory of one run: a storage for each leaf, in the graph's numbering, and the host's words.
pub(crate) struct Bindings<'a> {
    pub(crate) leaves: &'a mut [Storage],
    pub(crate) host: &'a [HostWord],
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
    Kernel(KernelOp),
}

/// One unit of work of the native executor, a few launches of a GPU.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) work: Work,
    pub(crate) inputs: Vec<Operand>,
    pub(crate) outputs: Vec<(StorageId, TensorType)>,
    /// Memory that only the launches of this step use.
    pub(crate) scratch: Vec<StorageId>,
    pub(crate) launches: Vec<Launch>,
}

impl Step {
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
}

/// A piece of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StorageInfo {
    pub(crate) dtype: DType,
    pub(crate) elements: usize,
    pub(crate) place: Place,
}

impl StorageInfo {
    pub(crate) fn bytes(&self) -> usize {
        self.elements.saturating_mul(self.dtype.bytes())
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
    pub(crate) fn new(request: &Request<'_>, target: Target) -> Self {
        let roots: Vec<_> =
            request.outputs.iter().chain(request.assigns.iter().map(|(_, value)| value)).copied().collect();
        let (graph, roots) = simplify::simplify(request.graph, &roots);
        let (outputs, assigned) = roots.split_at(request.outputs.len());
        let assigns: Vec<_> = request.assigns.iter().map(|&(leaf, _)| leaf).zip(assigned.iter().copied()).collect();
        let schedule = fuse::fuse(&graph, &roots);
        let mut plan = lower::lower(&graph, &schedule, outputs, &assigns);
        if let Target::Gpu { caps, variant } = target {
            launch::launch(&mut plan, &caps, variant);
        }
        place::place(&mut plan);
        plan
    }

    /// Launches of one run: steps on the CPU.
    pub(crate) fn launches(&self) -> usize {
        self.steps.iter().map(|step| step.launches.len().max(1)).sum()
    }

    /// Bytes of the shared slots.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.slots.iter().sum()
    }
}
