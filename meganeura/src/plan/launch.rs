//! GPU only: chooses how each step is launched.

use super::{KernelWork, Place, Plan, Step, StorageInfo, Work};
use crate::kernel::launch::{Argument, Binding, Caps, Variant};
use crate::{DType, Layout};

/// Chooses the launches of every step. `variant` asks for another than the best, the last where there are fewer.
pub(super) fn launch(plan: &mut Plan, caps: &Caps, variant: usize) {
    for step in &mut plan.steps {
        match &step.work {
            Work::Pointwise(program) => step.launches = vec![program.launch(step)],
            Work::Kernel(kernel) => {
                let chosen = choose(kernel, step, caps, variant);
                for elements in chosen.scratch {
                    step.scratch.push(plan.storages.len());
                    plan.storages.push(StorageInfo { dtype: DType::F32, elements, place: Place::Slot(usize::MAX) });
                }
                (step.variant, step.launches) = (chosen.name, chosen.launches);
            }
        }
    }
}

/// A variant of a kernel, with its operands and results as the step counts them, and what the plan merged into it.
fn choose(kernel: &KernelWork, step: &Step, caps: &Caps, variant: usize) -> Variant {
    let mut arguments: Vec<Argument> = step.inputs.iter().map(|input| input.argument).collect();
    if let Some(load) = &kernel.load {
        let argument = Argument { ty: load.ty, layout: Layout::contiguous(load.ty.shape) };
        arguments.insert(load.operand, argument);
    }
    arguments.truncate(kernel.operands);
    let mut variants = kernel.op.variants(&arguments, &kernel.types, caps);
    let mut chosen = variants.swap_remove(variant.min(variants.len() - 1));
    for launch in &mut chosen.launches {
        for binding in &mut launch.bindings {
            if let Binding::Input(k) = binding {
                *k = kernel.operand(*k);
            }
        }
        kernel.complete(step, launch);
        let merged = kernel.load.is_some() || kernel.store.is_some();
        debug_assert!(!merged || launch.bindings.len() <= caps.bindings, "{:?} binds too many buffers", kernel.op);
    }
    let loads = chosen.launches.iter().find_map(|launch| launch.loads);
    debug_assert!(kernel.load.as_ref().is_none_or(|load| loads == Some(load.operand)), "{:?}", kernel.op);
    let stores = chosen.launches.iter().filter(|launch| launch.stores).count();
    debug_assert_eq!(stores, usize::from(kernel.op.stores()), "{:?} {}", kernel.op, chosen.name);
    chosen
}
