//! Lowering of operations that only join their operands, such as a concatenation. Where possible, the program that
//! computes an operand stores it directly into its part of the result. Other operands are copied. GPUs only; native
//! programs store whole results.

use std::collections::HashMap;

use super::Lowering;
use crate::Layout;
use crate::graph::{Graph, Node, Source, ValueId};
use crate::kernel::launch::Format;
use crate::ops::Op;
use crate::plan::passes::format::Formats;
use crate::plan::passes::uses::{Origin, Uses};
use crate::plan::{Input, Program, Work};

/// The most buffers of a launch that copies. Drivers permit up to a million, but one did not compile a kernel with a
/// thousand within a minute.
const MOST: usize = 32;

/// Values that can be stored into a part of another. Their only reader joins its operands, and its result has their
/// format. For each value, that result and the value's place in it.
pub(super) fn parts(uses: &Uses<'_>, formats: &Formats) -> HashMap<ValueId, (ValueId, Layout)> {
    let mut parts = HashMap::new();
    for node in uses.graph.nodes() {
        let Some(layouts) = assembled(uses.graph, node, formats) else { continue };
        // The value that a program stores, perhaps reshaped, and its place.
        let placed = |(&value, layout): (&ValueId, Layout)| {
            let Origin { value: origin, in_order } = uses.origin(value);
            let alike = match (formats.of(origin), formats.of(node.first)) {
                (part, whole @ (Format::Full | Format::Bf16)) => part == whole,
                // The value's own channels must be innermost, not those of an image that it was reshaped from.
                (part, _) => origin == value && Format::images(uses.graph.ty(value).shape) == Some(part),
            };
            let is_own = in_order && uses.is_computed(uses.graph.maker_index(origin));
            let may = is_own && alike && !uses.is_wanted(origin) && uses.readers(origin).len() == 1;
            let layout = if origin == value { layout } else { layout.reshape(uses.graph.ty(origin).shape)? };
            may.then_some((origin, (node.first, layout)))
        };
        // `assign.rs` may move a wanted result into a leaf, and expects one writer of each storage.
        if !uses.is_wanted(node.first) {
            parts.extend(node.inputs.iter().zip(layouts).filter_map(placed));
        }
    }
    parts
}

/// The places of a node's operands in its result, if it only joins them.
fn assembled(graph: &Graph, node: &Node, formats: &Formats) -> Option<Vec<Layout>> {
    let Source::Op(Op::Kernel(op)) = &node.source else { return None };
    let shapes: Vec<_> = node.inputs.iter().map(|&input| graph.ty(input).shape).collect();
    op.parts(&shapes, formats.of(node.first))
}

impl Lowering<'_> {
    /// Redirects a program's results that are parts of other values into those values. Several results may go into one.
    pub(super) fn store_parts(&mut self, program: &mut Program, results: &[ValueId]) {
        for (value, place) in results.iter().zip(&mut program.places) {
            let Some(&(whole, layout)) = self.parts.get(value) else { continue };
            let (storage, _) = self.result(whole);
            self.storage.insert(*value, storage);
            *place = Some(layout);
        }
    }

    /// Joins the operands of a node that does nothing else: copies those that are not yet stored in its result. One
    /// launch copies operands of one shape, as many as it can bind. `false` if the node does more.
    pub(super) fn assemble(&mut self, node: &Node) -> bool {
        let assembled = self.bindings.and_then(|most| Some((most, assembled(self.graph, node, self.formats)?)));
        let Some((most, layouts)) = assembled else { return false };
        let most = most.min(MOST) - 1;
        let (storage, _) = self.result(node.first);
        let origin = |value: ValueId| self.uses.origin(value).value;
        let left = node.inputs.iter().zip(layouts);
        let left = left.filter(|(value, _)| self.storage.get(&origin(**value)) != Some(&storage));
        let left: Vec<_> = left.map(|(&value, layout)| (self.graph.ty(value), value, layout)).collect();
        for alike in left.chunk_by(|(one, ..), (other, ..)| one == other).flat_map(|alike| alike.chunks(most)) {
            let (ty, format) = (alike[0].0, self.formats.of(node.first));
            let order = match format {
                Format::Full | Format::Bf16 => format,
                _ => Format::images(ty.shape).unwrap_or_default(),
            };
            let operand = |&(_, value, _): &(_, ValueId, _)| self.lines(value).unwrap_or_else(|| self.stored(value));
            let operands: Vec<_> = alike.iter().map(operand).collect();
            let copies = Program {
                order,
                results: (0..alike.len()).map(Input::Operand).collect(),
                formats: vec![format; alike.len()],
                places: alike.iter().map(|(.., layout)| Some(*layout)).collect(),
                ..Program::copy(ty.shape, Input::Operand(0))
            };
            self.step(Work::Pointwise(copies), operands, vec![(storage, ty); alike.len()]);
        }
        true
    }
}
