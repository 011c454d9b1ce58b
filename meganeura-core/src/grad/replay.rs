//! Recomputed regions in the backward pass: the sweep records a region again when it reaches it.

use std::collections::HashMap;

use super::sweep::Sweep;
use crate::Result;
use crate::graph::{Node, Operands, Source, ValueId};

impl Sweep<'_> {
    /// Records the region of a node again, the first time the sweep reaches one of its nodes. From then on gradient
    /// rules get the copies in place of the original values.
    ///
    /// The copy reads the region's inputs through a view that waits for the cotangents of the region's results. So the
    /// planner treats the two as different computations, and schedules the copy into the backward pass. Nodes that no
    /// gradient needs get into no plan.
    pub(super) fn enter_region(&mut self, node: usize) -> Result<()> {
        let Some(region) = self.tape.region(node).filter(|&region| self.region != Some(region)) else { return Ok(()) };
        self.region = Some(region);
        let nodes = self.tape.nodes_of(region, node);
        let values: Vec<_> =
            self.tape.with_graph(|graph| graph.nodes()[nodes.clone()].iter().flat_map(Node::outputs).collect());
        values.iter().try_for_each(|&value| self.settle(value))?;
        let awaited: Operands = values.iter().filter_map(|value| self.cotangents.get(value)).copied().collect();
        if awaited.is_empty() {
            return Ok(());
        }
        let mut outer = HashMap::new();
        for index in nodes {
            let step = self.tape.with_graph(|graph| {
                let node = &graph.nodes()[index];
                let is_operation = matches!(node.source, Source::Op(_));
                is_operation.then(|| (node.inputs.clone(), node.outputs().collect::<Operands>()))
            });
            let Some((mut inputs, outputs)) = step else { continue };
            for input in &mut inputs {
                *input = match self.replayed.get(input) {
                    Some(&again) => again,
                    None => *outer.entry(*input).or_insert_with(|| self.await_all(*input, &awaited, index)),
                };
            }
            let first = self.tape.record_again(index, inputs);
            self.replayed.extend((0..).zip(outputs).map(|(offset, value)| (value, ValueId(first.0 + offset))));
        }
        Ok(())
    }

    /// A value from outside a region, for a copy of the region that must wait.
    fn await_all(&self, value: ValueId, awaited: &[ValueId], node: usize) -> ValueId {
        // Random numbers have a seed, host words, as their only operand.
        let is_number = self.tape.with_graph(|graph| match graph.maker(value).source {
            Source::Const(_) => true,
            Source::Host(_) => graph.ty(value).dtype.is_float(),
            Source::Leaf(_) | Source::Op(_) | Source::Converted => false,
        });
        if is_number { value } else { self.tape.after(value, awaited, self.tape.origin_of(node)) }
    }

    /// The value that gradient rules get in place of another: its copy, if its region was recorded again.
    pub(super) fn replayed(&self, value: ValueId) -> ValueId {
        self.replayed.get(&value).copied().unwrap_or(value)
    }
}
