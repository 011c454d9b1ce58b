//! GPU only: chooses how each step is launched.

use super::{KernelWork, Place, Plan, Preferences, Step, StorageInfo, Work};
use crate::kernel::launch::{Argument, Binding, Caps, Variant};
use crate::{DType, Layout, Result};

/// Chooses the launches of every step: the best variant of each kernel, unless another is preferred.
pub(super) fn launch(plan: &mut Plan, caps: &Caps, preferences: &Preferences) -> Result<()> {
    for step in &mut plan.steps {
        match &step.work {
            Work::Pointwise(program) => step.launches = vec![program.launch(step)],
            Work::Kernel(kernel) => {
                let mut variants = variants(kernel, step, caps);
                let holds = |variant: &Variant| {
                    variant.scratch.iter().all(|elements| elements.saturating_mul(4) <= caps.buffer)
                };
                if variants.iter().any(holds) {
                    variants.retain(holds);
                }
                let merged = kernel.load.is_some() || kernel.store.is_some();
                if merged {
                    // Merging reckons with operands and results; launches that read scratch memory as well bind more.
                    variants.retain(|variant| {
                        variant.launches.iter().all(|launch| kernel.bindings(step, launch) <= caps.bindings)
                    });
                }
                step.offered = variants.iter().map(|variant| variant.name).collect();
                let mut chosen = variants.swap_remove(preferences.choose(kernel.op.name(), &step.offered)?);
                let stores = chosen.launches.iter().filter(|launch| launch.stores).count();
                debug_assert_eq!(stores, usize::from(kernel.op.stores()), "{:?} {}", kernel.op, chosen.name);
                for launch in &mut chosen.launches {
                    for binding in &mut launch.bindings {
                        if let Binding::Input(k) = binding {
                            *k = kernel.operand(*k);
                        }
                    }
                    kernel.complete(step, launch);
                    debug_assert!(!merged || launch.bindings.len() <= caps.bindings, "{:?} binds too many", kernel.op);
                }
                let loads = chosen.launches.iter().find_map(|launch| launch.loads);
                debug_assert!(kernel.load.as_ref().is_none_or(|load| loads == Some(load.operand)), "{:?}", kernel.op);
                for elements in chosen.scratch {
                    step.scratch.push(plan.storages.len());
                    plan.storages.push(StorageInfo { dtype: DType::F32, elements, place: Place::Slot(usize::MAX) });
                }
                (step.variant, step.launches) = (chosen.name, chosen.launches);
            }
        }
    }
    Ok(())
}

/// The ways to compute a kernel, with operands and results as the operation counts them.
fn variants(kernel: &KernelWork, step: &Step, caps: &Caps) -> Vec<Variant> {
    let mut arguments: Vec<Argument> = step.inputs.iter().map(|input| input.argument).collect();
    if let Some(load) = &kernel.load {
        let argument = Argument { ty: load.ty, layout: Layout::contiguous(load.ty.shape) };
        arguments.insert(load.operand, argument);
    }
    arguments.truncate(kernel.operands);
    kernel.op.variants(&arguments, &kernel.types, caps)
}
