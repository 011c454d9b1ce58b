//! The end of lowering: writes values back into leaves, in place where no later step reads the old contents.

use std::collections::HashMap;

use super::Lowering;
use crate::graph::ValueId;
use crate::kernel::launch::Argument;
use crate::plan::{Operand, Place, Plan, StorageId, Work};

/// The steps that touch each storage.
struct Steps {
    /// The first step that writes it.
    writer: Vec<Option<usize>>,
    /// The number of steps that write it. Several write a leaf that is assigned twice, a result assembled from parts,
    /// and values that ranks exchange in place. Such a storage never moves.
    writers: Vec<usize>,
    readers: Vec<Vec<usize>>,
}

impl Steps {
    fn new(plan: &Plan) -> Self {
        let count = plan.storages.len();
        let mut steps = Self { writer: vec![None; count], writers: vec![0; count], readers: vec![Vec::new(); count] };
        (0..plan.steps.len()).for_each(|at| steps.note(plan, at));
        steps
    }

    fn note(&mut self, plan: &Plan, at: usize) {
        let step = &plan.steps[at];
        step.reads().for_each(|storage| self.readers[storage].push(at));
        for &(storage, _) in &step.outputs {
            self.writer[storage].get_or_insert(at);
            self.writers[storage] += 1;
        }
    }

    /// Substitutes one storage for another in every step.
    fn replace(&mut self, plan: &mut Plan, old: StorageId, new: StorageId) {
        let (readers, writer) = (std::mem::take(&mut self.readers[old]), self.writer[old].take());
        for &at in &readers {
            let inputs = plan.steps[at].inputs.iter_mut();
            inputs.filter(|input| input.storage == old).for_each(|input| input.storage = new);
        }
        if let Some(at) = writer {
            let outputs = plan.steps[at].outputs.iter_mut();
            outputs.filter(|(storage, _)| *storage == old).for_each(|output| output.0 = new);
        }
        self.readers[new].extend(readers);
        self.writers[new] += std::mem::take(&mut self.writers[old]);
        self.writer[new] = self.writer[new].or(writer);
    }
}

impl Lowering<'_> {
    /// Makes values the new contents of leaves.
    pub(super) fn assign(&mut self, assigns: &[(usize, ValueId)]) {
        // All values first: one that is another leaf's old contents must be copied before anything is overwritten.
        let mut operands: Vec<_> = assigns.iter().map(|&(_, value)| self.stored(value)).collect();
        for operand in &mut operands {
            if let Place::Leaf(_) = self.plan.storages[operand.storage].place {
                let storage = self.new_storage(operand.argument.ty, Place::Unplaced);
                self.copy(*operand, storage);
                let argument = Argument::contiguous(operand.argument.ty);
                *operand = Operand { storage, argument };
            }
        }
        let targets: Vec<_> = assigns.iter().map(|&(leaf, value)| self.leaf(leaf, self.graph.ty(value))).collect();
        let mut steps = Steps::new(&self.plan);
        // The new storages of values that are written in place.
        let mut moved: HashMap<StorageId, StorageId> = HashMap::new();
        for (operand, target) in operands.into_iter().zip(targets) {
            let storage = moved.get(&operand.storage).copied().unwrap_or(operand.storage);
            let operand = Operand { storage, ..operand };
            if self.can_write_in_place(&steps, operand, target) {
                steps.replace(&mut self.plan, storage, target);
                moved.insert(storage, target);
                self.plan.storages[storage].elements = 0;
            } else {
                self.copy(operand, target);
                steps.note(&self.plan, self.plan.steps.len() - 1);
            }
        }
    }

    /// `true` if the step that computes `value` may write it directly into `target`: no later step reads the old
    /// contents, and this step reads each old element only to compute the same element.
    fn can_write_in_place(&self, steps: &Steps, value: Operand, target: StorageId) -> bool {
        let Some(maker) = steps.writer[value.storage] else { return false };
        let step = &self.plan.steps[maker];
        let output = step.outputs.iter().position(|(storage, _)| *storage == value.storage);
        let Some(elementwise) = output.and_then(|output| step.elementwise(output)) else { return false };
        // A native kernel writes its own results there first.
        let is_apart = self.programs || matches!(step.work, Work::Pointwise(_));
        let elements = value.argument.ty.shape.elements();
        let whole = |argument: &Argument| argument.layout.is_contiguous() && argument.ty.shape.elements() == elements;
        let harmless = |(k, input): (usize, &Operand)| {
            input.storage != target || (is_apart && elementwise.contains(&k) && whole(&input.argument))
        };
        self.plan.storages[value.storage].place == Place::Unplaced
            && self.plan.storages[value.storage].elements == elements
            && whole(&value.argument)
            && steps.writers[value.storage] == 1
            && step.inputs.iter().enumerate().all(harmless)
            && steps.readers[target].iter().all(|&reader| reader <= maker)
            && steps.writer[target].is_none()
    }
}
