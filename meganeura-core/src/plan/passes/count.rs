//! Limits on the number of elements of operands, and on the memory of a run. A view, or a value computed while it is
//! loaded, may have more elements than fit in any memory, and more than 32 bits can count. Values in memory are checked
//! where it is allocated.

use crate::plan::{Place, Plan, Step, StorageInfo, Target, Work};
use crate::{Error, ErrorKind, Result, TensorType};

/// The most elements that a GPU kernel counts, in 32 bits: a million less, because loops run past the end.
const COUNTED: usize = u32::MAX as usize - (1 << 20);

/// Refuses a plan with a kernel that would count past its limit.
pub(super) fn expect_countable(plan: &Plan, target: Target<'_>) -> Result<()> {
    let most = match target {
        // A tape refuses values with more elements than it can count.
        Target::Cpu => return Ok(()),
        Target::Gpu { .. } => COUNTED,
    };
    for step in &plan.steps {
        let Work::Kernel(kernel) = &step.work else { continue };
        if let Some(ty) = unstored(plan, step).find(|ty| ty.shape.elements() > most) {
            let message =
                format!("an operand {ty} has more than the {most} elements that kernels of this device can index");
            return Err(Error::new(ErrorKind::OutOfMemory, message).in_op(kernel.op.name()));
        }
    }
    Ok(())
}

/// Refuses a plan whose memory no number of bytes can express: a single value would fail where it is allocated, but
/// sums of several are computed before.
pub(super) fn expect_addressable(plan: &Plan) -> Result<()> {
    let own = |storage: &&StorageInfo| matches!(storage.place, Place::Leaf(_) | Place::Output(_) | Place::Range { .. });
    let bytes = plan.storages.iter().filter(own).map(StorageInfo::bytes).chain(plan.slots.iter().copied());
    let total: u128 = bytes.map(|bytes| bytes as u128).sum();
    if total <= usize::MAX as u128 {
        return Ok(());
    }
    let error = Error::new(ErrorKind::OutOfMemory, format!("no room for the {total} bytes of all values together"));
    let largest = (0..plan.storages.len()).max_by_key(|&storage| plan.storages[storage].bytes());
    Err(largest.map_or(error.clone(), |storage| plan.explain(storage, error)))
}

/// The types of operands that have more elements than their memory, and of values that a kernel computes as it loads
/// them.
fn unstored<'a>(plan: &'a Plan, step: &'a Step) -> impl Iterator<Item = TensorType> + 'a {
    let loaded = match &step.work {
        Work::Kernel(kernel) => kernel.load.as_ref().map(|load| load.argument.ty),
        Work::Pointwise(_) => None,
    };
    let views =
        step.inputs.iter().filter(|input| plan.storages[input.storage].elements < input.argument.ty.shape.elements());
    views.map(|input| input.argument.ty).chain(loaded)
}
