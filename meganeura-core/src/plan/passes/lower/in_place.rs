//! Results in the memory of operands that no later step reads. GPUs only; a native kernel has separate results.

use super::Lowering;
use crate::graph::{Node, ValueId};
use crate::kernel::launch::Format;
use crate::ops::KernelOp;
use crate::plan::passes::uses::Origin;
use crate::plan::{Operand, Place, StorageId};

impl Lowering<'_> {
    /// Lets ranks exchange values in place, if no other step reads them there.
    pub(super) fn exchange_in_place(&mut self, node: &Node, inputs: &[Operand]) {
        if !self.programs {
            return;
        }
        for ((&value, input), result) in node.inputs.iter().zip(inputs).zip(node.outputs()) {
            let is_only = self.uses.readers(self.uses.origin(value).value).len() == 1;
            if is_only && self.is_free(value, input.storage, self.formats.of(result)) {
                self.storage.insert(result, input.storage);
            }
        }
    }

    /// Lets a kernel's first result take the memory of an operand that it may overwrite, if this step is the last that
    /// reads it.
    pub(super) fn overwrite(&mut self, node: &Node, op: &KernelOp, inputs: &[Operand], result: ValueId) {
        let Some(operand) = op.overwrites().filter(|_| self.programs) else { return };
        let (value, storage) = (node.inputs[operand], inputs[operand].storage);
        let mut readers = self.uses.readers(self.uses.origin(value).value).iter();
        let is_last = readers.all(|read| self.lowered[read.node]);
        let holds_one = self.storage.values().filter(|&&other| other == storage).count() == 1;
        let reads_once = inputs.iter().filter(|input| input.storage == storage).count() == 1;
        let is_new = !self.storage.contains_key(&result) && !self.uses.is_wanted(result);
        let is_new = is_new && self.graph.ty(result).dtype == self.plan.storages[storage].dtype;
        if is_last && holds_one && reads_once && is_new && self.is_free(value, storage, self.formats.of(result)) {
            self.storage.insert(result, storage);
            // Copies are of what was there.
            self.copies.retain(|(copied, _), _| *copied != storage);
        }
    }

    /// `true` if an operand is all of a value that a step computed into memory of its own, in this format, and that the
    /// caller does not want.
    fn is_free(&self, operand: ValueId, storage: StorageId, format: Format) -> bool {
        let Origin { value, in_order } = self.uses.origin(operand);
        let info = self.plan.storages[storage];
        let is_own = self.uses.is_computed(self.graph.maker_index(value)) && self.storage.get(&value) == Some(&storage);
        let is_whole = info.elements == format.stored(self.graph.ty(value).shape.elements());
        let is_unwanted = !self.uses.is_wanted(value) && info.place == Place::Unplaced;
        is_own && is_whole && in_order && is_unwanted && info.format == format
    }
}

#[cfg(test)]
mod tests {
    use crate::kernel::launch::{Binding, Caps};
    use crate::plan::{Plan, Preferences, Request, Target};
    use crate::{Device, Result, Tape, Tensor, Var};

    /// The plan for values that `f` computes from logits and their gradient; and whether the gradient takes the place
    /// of the logits.
    fn planned(f: impl Fn(&Var, &Var) -> Vec<Var>) -> Result<(Plan, bool)> {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let (x, w) = (tape.input(&Tensor::zeros(&device, [6, 4])?), tape.input(&Tensor::zeros(&device, [4, 5])?));
        let logits = x.matmul(&w);
        let loss = logits.cross_entropy(&Tensor::indices(&device, [6], &[3; 6])?);
        let gradient = tape.backward(&loss)?.of(&logits).expect("the loss depends on it");
        let outputs = f(&logits, &gradient).iter().map(Var::id).collect::<Result<Vec<_>>>()?;
        let target = Target::Gpu { caps: Caps::DISCRETE, preferences: &Preferences::default() };
        let plan = tape.with_graph(|graph| Plan::new(&Request { graph, outputs: &outputs, assigns: &[] }, target))?;
        let step = plan.steps.iter().find(|step| step.launches.iter().any(|l| l.kernel == "cross_entropy_grad"));
        let step = step.expect("one computes the gradient");
        let is_in_place = step.inputs[0].storage == step.outputs[0].0;
        let binds = step.launches[0].bindings.contains(&Binding::Input(0));
        assert_ne!(binds, is_in_place, "one buffer is bound once: {plan}");
        Ok((plan, is_in_place))
    }

    #[test]
    fn a_gradient_takes_the_place_of_logits_that_are_read_no_more() -> Result<()> {
        let (plan, is_in_place) = planned(|_, gradient| vec![gradient.t().matmul(gradient)])?;
        assert!(is_in_place, "{plan}");
        // They are read before.
        let (plan, is_in_place) = planned(|logits, gradient| {
            let largest = logits.max_over(&[1]).reshape([6, 1]);
            vec![(gradient * largest).t().matmul(gradient)]
        })?;
        assert!(is_in_place, "{plan}");
        Ok(())
    }

    #[test]
    fn logits_that_are_read_later_or_wanted_keep_their_place() -> Result<()> {
        let later = |logits: &Var, gradient: &Var| vec![gradient.t().matmul(logits)];
        let merged = |logits: &Var, gradient: &Var| vec![(gradient * logits).cumsum(1)];
        let wanted = |logits: &Var, gradient: &Var| vec![gradient.cumsum(1), logits.clone()];
        let handed_out = |_: &Var, gradient: &Var| vec![gradient.clone()];
        for f in [later, merged, wanted, handed_out] {
            let (plan, is_in_place) = planned(f)?;
            assert!(!is_in_place, "{plan}");
        }
        Ok(())
    }
}
