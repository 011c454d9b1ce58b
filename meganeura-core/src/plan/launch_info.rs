//! Descriptions of a plan's launches, for profiling.

use super::{Place, Plan, Step, StorageId, StorageInfo, Work};
use crate::TensorType;
use crate::kernel::launch::Binding;

/// A launch of a run; on the CPU, a step of the plan.
pub(crate) struct LaunchInfo {
    pub(crate) step: usize,
    pub(crate) op: &'static str,
    pub(crate) kernel: &'static str,
    pub(crate) variant: &'static str,
    /// The type of its step's first result.
    pub(crate) result: TensorType,
    /// The bytes that it reads and writes, each counted once.
    pub(crate) bytes: usize,
    /// The leaves that its step reads or updates.
    pub(crate) leaves: Vec<usize>,
}

impl Plan {
    /// The launches of a run, in order.
    pub(crate) fn launch_infos(&self) -> impl Iterator<Item = LaunchInfo> + '_ {
        self.steps.iter().enumerate().flat_map(move |(at, step)| {
            let op = match &step.work {
                Work::Pointwise(_) => "pointwise",
                Work::Kernel(kernel) => kernel.op.name(),
            };
            let launched = move |kernel, bytes| {
                let leaves = self.leaves(step);
                LaunchInfo { step: at, op, kernel, variant: step.variant, result: step.outputs[0].1, bytes, leaves }
            };
            let native = step.launches.is_empty().then(|| {
                let inputs = (0..step.inputs.len()).map(Binding::Input);
                launched(op, self.traffic(step, inputs.chain((0..step.outputs.len()).map(Binding::Output))))
            });
            let launches = step.launches.iter();
            let launches = launches.map(move |launch| {
                // Launches that begin within their operands share these.
                let sharers = if launch.begins.is_empty() { 1 } else { step.launches.len() };
                launched(launch.kernel, self.traffic(step, launch.bindings.iter().copied()) / sharers)
            });
            native.into_iter().chain(launches)
        })
    }

    fn traffic(&self, step: &Step, bindings: impl Iterator<Item = Binding>) -> usize {
        // A broadcast operand counts no more bytes than the memory behind it.
        let shown = |storage: StorageId, ty: TensorType| {
            let whole = self.storages[storage];
            StorageInfo { elements: ty.shape.elements(), ..whole }.bytes().min(whole.bytes())
        };
        let bytes = |binding| match binding {
            Binding::Input(k) => shown(step.inputs[k].storage, step.inputs[k].argument.ty),
            Binding::Output(k) => shown(step.outputs[k].0, step.outputs[k].1),
            Binding::Scratch(k) => self.storages[step.scratch[k]].bytes(),
            Binding::Host => 0,
        };
        bindings.map(bytes).sum()
    }

    fn leaves(&self, step: &Step) -> Vec<usize> {
        let mut leaves: Vec<_> = step
            .reads()
            .chain(step.writes())
            .filter_map(|storage| match self.storages[storage].place {
                Place::Leaf(leaf) => Some(leaf),
                _ => None,
            })
            .collect();
        leaves.sort_unstable();
        leaves.dedup();
        leaves
    }
}
