//! GPU only: what ranks exchange lies side by side, in a range for each exchange. A later exchange of values of the same sizes gets the range of an
//! earlier one, if nobody reads that any more: gradients give way to the parameters that are made from them.

use super::{Plan, Step, StorageId};
use crate::kernel::launch::Argument;
use crate::ops::Exchange;

/// Puts the results of exchanges where those of earlier ones lie, where that is possible.
pub(super) fn reuse(plan: &mut Plan) {
    let meetings: Vec<_> = (0..plan.steps.len()).filter(|&at| plan.steps[at].meets().is_some()).collect();
    for (number, &later) in meetings.iter().enumerate() {
        let free = meetings[..number].iter().find(|&&earlier| is_free(plan, earlier, later));
        let Some(&earlier) = free else { continue };
        let pairs: Vec<_> = results(plan, earlier).into_iter().zip(results(plan, later)).collect();
        for (place, storage) in pairs {
            replace(plan, storage, place);
        }
    }
}

fn results(plan: &Plan, at: usize) -> Vec<StorageId> {
    plan.steps[at].outputs.iter().map(|&(storage, _)| storage).collect()
}

/// Whether the values of one meeting may lie where those of an earlier one do.
fn is_free(plan: &Plan, earlier: usize, later: usize) -> bool {
    let steps = [&plan.steps[earlier], &plan.steps[later]];
    let [Some(first), Some(second)] = steps.map(Step::meets) else { return false };
    let types = steps.map(|step| step.outputs.iter().map(|&(_, ty)| ty).collect::<Vec<_>>());
    let is_alike = |first: &Exchange, second: &Exchange| {
        first.world == second.world && first.collective.is_arranged_as(&second.collective)
    };
    if !is_alike(first, second) || types[0] != types[1] {
        return false;
    }
    let pairs = results(plan, earlier).into_iter().zip(results(plan, later));
    pairs.into_iter().all(|(place, storage)| {
        let is_unplaced = |storage: StorageId| plan.storages[storage].place == super::lower::UNPLACED;
        let touches =
            |storage: StorageId| move |step: &Step| step.reads().chain(step.writes()).any(|touched| touched == storage);
        let last = plan.steps.iter().rposition(touches(place));
        let begin = plan.steps.iter().position(touches(storage));
        let (Some(last), Some(begin)) = (last, begin) else { return false };
        let follows = last < begin || (last == begin && is_in_place(&plan.steps[begin], place, storage));
        place != storage && is_unplaced(place) && is_unplaced(storage) && follows
    })
}

/// Whether a step reads `place` only element by element for those of its result `storage`.
fn is_in_place(step: &Step, place: StorageId, storage: StorageId) -> bool {
    let output = step.outputs.iter().position(|&(output, _)| output == storage);
    let Some((output, elementwise)) = output.and_then(|output| Some((output, step.elementwise(output)?))) else {
        return false;
    };
    let elements = step.outputs[output].1.shape.elements();
    let whole = |argument: &Argument| argument.layout.is_contiguous() && argument.ty.shape.elements() == elements;
    let is_harmless = |(k, input): (usize, &super::Operand)| {
        input.storage != place || (elementwise.contains(&k) && whole(&input.argument))
    };
    step.writes().all(|written| written != place) && step.inputs.iter().enumerate().all(is_harmless)
}

/// Puts one storage in the place of another in every step.
fn replace(plan: &mut Plan, old: StorageId, new: StorageId) {
    for step in &mut plan.steps {
        step.inputs.iter_mut().filter(|input| input.storage == old).for_each(|input| input.storage = new);
        step.outputs.iter_mut().filter(|(storage, _)| *storage == old).for_each(|output| output.0 = new);
    }
    plan.storages[old].elements = 0;
}
