//! The values that ranks may exchange as bf16.

use std::collections::HashSet;

use crate::graph::{Source, ValueId};
use crate::ops::Op;
use crate::plan::passes::fuse::Item;
use crate::plan::passes::uses::{Origin, Uses};

/// The values of which a sum over ranks may be rounded, except those in `kept`.
pub(super) fn values(uses: &Uses<'_>, items: &[Item], kept: &HashSet<ValueId>) -> HashSet<ValueId> {
    let of_item = |item: &Item| match item {
        Item::Kernel { node, .. } => sums(uses, *node),
        Item::Group(_) | Item::Convert(_) => Vec::new(),
    };
    items.iter().flat_map(of_item).map(|(value, _)| value).filter(|value| !kept.contains(value)).collect()
}

/// If a node computes sums over ranks that may be rounded, the values that it adds up, each with its sum. Those that
/// the caller wants, before or after, are not among them.
pub(super) fn sums(uses: &Uses<'_>, node: usize) -> Vec<(ValueId, ValueId)> {
    let node = &uses.graph.nodes()[node];
    let Source::Op(Op::Kernel(op)) = &node.source else { return Vec::new() };
    if op.collective().is_none_or(|exchange| !exchange.rounded) {
        return Vec::new();
    }
    let may = |(&input, sum): (&ValueId, ValueId)| {
        let Origin { value, in_order } = uses.origin(input);
        (in_order && !uses.is_wanted(value) && !uses.is_wanted(sum)).then_some((value, sum))
    };
    node.inputs.iter().zip(node.outputs()).filter_map(may).collect()
}
