//! GPU only: chooses how each step is launched.

use super::{Place, Plan, StorageInfo, Work};
use crate::DType;
use crate::kernel::launch::{Argument, Caps};

/// Chooses the launches of every step. `variant` asks for another than the best, the last where there are fewer.
pub(super) fn launch(plan: &mut Plan, caps: &Caps, variant: usize) {
    for step in &mut plan.steps {
        match &step.work {
            Work::Pointwise(program) => {
                let operands: Vec<_> = step.inputs.iter().map(|input| input.argument).collect();
                let dtypes: Vec<_> = step.outputs.iter().map(|(_, ty)| ty.dtype).collect();
                let in_place: Vec<_> = step
                    .inputs
                    .iter()
                    .map(|input| step.outputs.iter().position(|(storage, _)| *storage == input.storage))
                    .collect();
                step.launches = vec![program.launch(&operands, &dtypes, &in_place)];
            }
            Work::Kernel(op) => {
                let arguments: Vec<Argument> = step.inputs.iter().map(|input| input.argument).collect();
                let types: Vec<_> = step.outputs.iter().map(|&(_, ty)| ty).collect();
                let mut variants = op.variants(&arguments, &types, caps);
                let chosen = variants.swap_remove(variant.min(variants.len() - 1));
                for elements in chosen.scratch {
                    step.scratch.push(plan.storages.len());
                    plan.storages.push(StorageInfo { dtype: DType::F32, elements, place: Place::Slot(usize::MAX) });
                }
                step.variant = chosen.name;
                step.launches = chosen.launches;
            }
        }
    }
}
