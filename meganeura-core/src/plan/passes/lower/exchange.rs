//! Lowering of exchanges between ranks.

use super::Lowering;
use crate::graph::Node;
use crate::plan::passes::uses::Origin;
use crate::plan::{Operand, Place};

impl Lowering<'_> {
    /// Lets ranks exchange values in place, if no other step reads them there. GPUs only; a native kernel has separate
    /// results.
    pub(super) fn exchange_in_place(&mut self, node: &Node, inputs: &[Operand]) {
        if !self.programs {
            return;
        }
        for ((&value, input), result) in node.inputs.iter().zip(inputs).zip(node.outputs()) {
            let Origin { value, in_order } = self.uses.origin(value);
            let info = self.plan.storages[input.storage];
            let is_own = self.uses.is_computed(self.graph.maker_index(value))
                && self.storage.get(&value) == Some(&input.storage);
            let is_whole = info.elements == self.graph.ty(value).shape.elements();
            let is_only = is_whole && self.uses.readers(value).len() == 1 && !self.uses.is_wanted(value);
            if is_own && is_only && in_order && info.place == Place::Unplaced && info.format == self.formats.of(result)
            {
                self.storage.insert(result, input.storage);
            }
        }
    }
}
