//! GPU only: chooses how each step is launched.

use super::{Place, Plan, Preferences, StorageInfo, Work};
use crate::kernel::launch::{Argument, Caps};
use crate::{DType, Result};

/// Chooses the launches of every step: the best variant of each kernel, unless another is preferred.
pub(super) fn launch(plan: &mut Plan, caps: &Caps, preferences: &Preferences) -> Result<()> {
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
                step.offered = variants.iter().map(|variant| variant.name).collect();
                let chosen = variants.swap_remove(preferences.choose(op.name(), &step.offered)?);
                for elements in chosen.scratch {
                    step.scratch.push(plan.storages.len());
                    plan.storages.push(StorageInfo { dtype: DType::F32, elements, place: Place::Slot(usize::MAX) });
                }
                step.variant = chosen.name;
                step.launches = chosen.launches;
            }
        }
    }
    Ok(())
}
