//! Groups pointwise operations that run together, and orders all steps.
//!
//! Each operation gets a *stage*. An edge between two pointwise operations keeps the stage if it preserves the order of
//! elements; every other edge raises it. Reshapes between the two preserve the order, since a program counts elements
//! and knows no axes. Connected pointwise operations of one stage form a group. A path that leaves a group and returns
//! to it would have raised the stage, so groups never form a cycle, and sorting by stage is a valid order.
//!
//! Pointwise operations (and those without computed operands) are delayed to the stage of their first reader. So a
//! factor that only a gradient needs is recomputed there from values that are kept anyway, instead of being stored
//! during the forward pass.

use std::collections::BTreeMap;

use super::uses::{Bindings, Uses};

/// The most operations in a group. When a forward pass is fused with its backward pass, about half of the group's
/// values are alive in between. That many fit into the registers of a GPU thread (255 on NVIDIA GPUs), and into the
/// second-level cache of a native executor's thread, at a kilobyte each. The limit also bounds the time to plan and
/// compile a group.
const MOST_OPERATIONS: usize = 256;

/// The content of one step: nodes by index, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Item {
    /// Pointwise operations.
    Group(Vec<usize>),
    /// A kernel, with the groups that run inside its launch: to load an operand, and to store its result.
    Kernel { node: usize, load: Vec<usize>, store: Vec<usize> },
    /// A value that is stored anew in another format.
    Convert(usize),
}

impl Item {
    pub(super) fn kernel(node: usize) -> Self {
        Self::Kernel { node, load: Vec::new(), store: Vec::new() }
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = usize> + '_ {
        let (first, second, third): (&[usize], &[usize], &[usize]) = match self {
            Self::Group(nodes) => (nodes, &[], &[]),
            Self::Kernel { node, load, store } => (load, std::slice::from_ref(node), store),
            Self::Convert(node) => (&[], std::slice::from_ref(node), &[]),
        };
        first.iter().chain(second).chain(third).copied()
    }
}

/// The steps that compute the wanted values, in order. No group has more than [`MOST_OPERATIONS`], or binds more than
/// `bindings` buffers: operands, results and the host's words.
pub(super) fn fuse(uses: &Uses<'_>, bindings: usize) -> Vec<Item> {
    let nodes = uses.graph.nodes().len();
    let stages = stages(uses);
    let mut groups = Groups::new(nodes);
    for node in (0..nodes).filter(|&node| uses.is_pointwise(node)) {
        for (maker, fusible) in uses.makers(node) {
            if fusible && stages[maker] == stages[node] {
                groups.join(maker, node);
            }
        }
    }
    let mut members: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
    for node in (0..nodes).filter(|&node| uses.is_computed(node)) {
        members.entry((stages[node], groups.find(node))).or_default().push(node);
    }
    let mut items = Vec::with_capacity(members.len());
    for nodes in members.into_values() {
        if uses.is_pointwise(nodes[0]) {
            items.extend(cut(uses, nodes, bindings).into_iter().map(Item::Group));
        } else {
            items.extend(nodes.into_iter().map(Item::kernel));
        }
    }
    items
}

fn stages(uses: &Uses<'_>) -> Vec<usize> {
    let nodes = uses.graph.nodes();
    let computed = || (0..nodes.len()).filter(|&node| uses.is_computed(node));
    let mut stage = vec![0; nodes.len()];
    let mut computed_operands = vec![false; nodes.len()];
    // A node comes after the nodes that it waits for, as it does after its operands.
    let before = |node: usize| uses.makers(node).chain(uses.awaited(node).map(|maker| (maker, false)));
    for node in computed() {
        for (maker, fusible) in before(node) {
            stage[node] = stage[node].max(stage[maker] + usize::from(!fusible));
            computed_operands[node] = true;
        }
    }
    // The last stage in which each node's readers allow it; `None` without readers.
    let mut latest: Vec<Option<usize>> = vec![None; nodes.len()];
    for node in computed().collect::<Vec<_>>().into_iter().rev() {
        let pinned = nodes[node].outputs().any(|value| uses.is_wanted(value));
        let movable = !pinned && (uses.is_pointwise(node) || !computed_operands[node]);
        if let (true, Some(latest)) = (movable, latest[node]) {
            stage[node] = latest;
        }
        for (maker, fusible) in before(node) {
            // A node without operands may have readers in stage 0 only if it is in that stage itself.
            let allowed = stage[node] - usize::from(!fusible);
            latest[maker] = Some(latest[maker].map_or(allowed, |latest| latest.min(allowed)));
        }
    }
    stage
}

/// Splits a group, in order, where it would be too long or bind too many buffers.
fn cut(uses: &Uses<'_>, nodes: Vec<usize>, most: usize) -> Vec<Vec<usize>> {
    // A part of a group may bind more buffers than the whole, since later nodes read values that would have to be
    // stored.
    if nodes.len() <= MOST_OPERATIONS && uses.bindings(&nodes, &[]) <= most {
        return vec![nodes];
    }
    let mut parts = Vec::new();
    let mut part: Vec<usize> = Vec::new();
    let mut bindings = Bindings::new(uses, &[]);
    for node in nodes {
        bindings.add(node);
        if (bindings.count() > most && !part.is_empty()) || part.len() == MOST_OPERATIONS {
            parts.push(std::mem::take(&mut part));
            bindings = Bindings::new(uses, &[]);
            bindings.add(node);
        }
        part.push(node);
    }
    parts.push(part);
    parts
}

/// A union-find over node indices.
struct Groups(Vec<usize>);

impl Groups {
    fn new(nodes: usize) -> Self {
        Self((0..nodes).collect())
    }

    fn find(&mut self, mut node: usize) -> usize {
        while self.0[node] != node {
            // Path halving, for the next call.
            self.0[node] = self.0[self.0[node]];
            node = self.0[node];
        }
        node
    }

    /// The earlier node represents the group.
    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.find(a), self.find(b));
        self.0[a.max(b)] = a.min(b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Graph, Source, ValueId};
    use crate::ops::{Op, Pointwise, View};
    use crate::{DType, Shape, TensorType};

    const TY: TensorType = TensorType::new(DType::F32, Shape::SCALAR);

    fn op(graph: &mut Graph, op: impl Into<Op>, inputs: &[ValueId], dims: &[usize]) -> ValueId {
        graph.push(Source::Op(op.into()), inputs.iter().copied(), [TY.with_shape(Shape::new(dims))])
    }

    fn leaf(graph: &mut Graph, k: usize, dims: &[usize]) -> ValueId {
        graph.push(Source::Leaf(k), [], [TY.with_shape(Shape::new(dims))])
    }

    #[test]
    fn a_chain_is_one_group() {
        let mut g = Graph::default();
        let x = leaf(&mut g, 0, &[4]);
        let a = op(&mut g, Pointwise::Exp, &[x], &[4]);
        let b = op(&mut g, Pointwise::Tanh, &[a], &[4]);
        let c = op(&mut g, Pointwise::Add, &[b, x], &[4]);
        assert_eq!(fuse(&Uses::new(&g, &[c]), 8), [Item::Group(vec![1, 2, 3])]);
    }

    #[test]
    fn a_detour_separates_groups() {
        // c needs a directly and through a transposition: a must be stored before c starts.
        let mut g = Graph::default();
        let x = leaf(&mut g, 0, &[2, 2]);
        let a = op(&mut g, Pointwise::Exp, &[x], &[2, 2]);
        let t = op(&mut g, View::Permute(vec![1, 0]), &[a], &[2, 2]);
        let c = op(&mut g, Pointwise::Add, &[a, t], &[2, 2]);
        assert_eq!(fuse(&Uses::new(&g, &[c]), 8), [Item::Group(vec![1]), Item::Group(vec![3])]);
    }

    #[test]
    fn values_of_a_late_reader_are_computed_with_it() {
        // cos(x) is read only by the last product, whose other operand goes through a broadcast.
        let mut g = Graph::default();
        let x = leaf(&mut g, 0, &[4, 4]);
        let cos = op(&mut g, Pointwise::Cos, &[x], &[4, 4]);
        let y = leaf(&mut g, 1, &[4]);
        let exp = op(&mut g, Pointwise::Exp, &[y], &[4]);
        let wide = op(&mut g, View::Expand(Shape::from([4, 4])), &[exp], &[4, 4]);
        let dx = op(&mut g, Pointwise::Mul, &[wide, cos], &[4, 4]);
        assert_eq!(fuse(&Uses::new(&g, &[dx]), 8), [Item::Group(vec![3]), Item::Group(vec![1, 5])]);
    }

    #[test]
    fn values_come_after_those_that_they_wait_for() {
        let mut g = Graph::default();
        let x = leaf(&mut g, 0, &[2, 2]);
        let exp = op(&mut g, Pointwise::Exp, &[x], &[2, 2]);
        let turned = op(&mut g, View::Permute(vec![1, 0]), &[exp], &[2, 2]);
        let tanh = op(&mut g, Pointwise::Tanh, &[turned], &[2, 2]);
        let late = op(&mut g, View::After, &[x, tanh], &[2, 2]);
        let flat = op(&mut g, View::Reshape(Shape::from([4])), &[late], &[4]);
        let again = op(&mut g, Pointwise::Exp, &[flat], &[4]);
        assert_eq!(fuse(&Uses::new(&g, &[tanh, again]), 8), [1, 3, 6].map(|node| Item::Group(vec![node])));
    }

    #[test]
    fn a_reshape_separates_nothing() {
        let mut g = Graph::default();
        let x = leaf(&mut g, 0, &[2, 6]);
        let a = op(&mut g, Pointwise::Exp, &[x], &[2, 6]);
        let b = op(&mut g, View::Reshape(Shape::from([2, 3, 2])), &[a], &[2, 3, 2]);
        let c = op(&mut g, Pointwise::Tanh, &[b], &[2, 3, 2]);
        let d = op(&mut g, View::Reshape(Shape::from([2, 6])), &[c], &[2, 6]);
        let e = op(&mut g, Pointwise::Add, &[a, d], &[2, 6]);
        assert_eq!(fuse(&Uses::new(&g, &[e]), 8), [Item::Group(vec![1, 3, 5])]);
    }

    #[test]
    fn groups_respect_the_binding_limit() {
        let mut g = Graph::default();
        let leaves: Vec<_> = (0..12).map(|k| leaf(&mut g, k, &[4])).collect();
        let sum = leaves.iter().skip(1).fold(leaves[0], |sum, &x| op(&mut g, Pointwise::Add, &[sum, x], &[4]));
        let items = fuse(&Uses::new(&g, &[sum]), 8);
        assert_eq!(items.len(), 2);
        for item in items {
            let Item::Group(part) = item else { panic!("only groups here") };
            assert!(Uses::new(&g, &[sum]).bindings(&part, &[]) <= 8);
        }
    }
    #[test]
    fn bindings_are_counted_as_groups_grow() {
        // Two parallel chains, one of them read again at the end, and a value that is an output.
        let mut g = Graph::default();
        let (x, y) = (leaf(&mut g, 0, &[4]), leaf(&mut g, 1, &[4]));
        let a = op(&mut g, Pointwise::Exp, &[x], &[4]);
        let b = op(&mut g, Pointwise::Mul, &[y, y], &[4]);
        let c = op(&mut g, Pointwise::Add, &[a, a], &[4]);
        let d = op(&mut g, Pointwise::Mul, &[c, b], &[4]);
        let e = op(&mut g, Pointwise::Add, &[d, a], &[4]);
        let uses = Uses::new(&g, &[c, e]);
        let counts: Vec<_> = (1..=5).map(|count| uses.bindings(&[2, 3, 4, 5, 6][..count], &[])).collect();
        // Reads → stores: x → a; x, y → a, b; x, y → a, b, c; x, y → a, c, d; x, y → c, e.
        assert_eq!(counts, [2, 4, 5, 5, 4]);
        assert_eq!(uses.bindings(&[4, 5], &[a]), 3);
    }

    #[test]
    fn long_groups_are_cut_where_nothing_else_would() {
        let mut g = Graph::default();
        let x = leaf(&mut g, 0, &[4]);
        let y = (0..MOST_OPERATIONS).fold(x, |x, _| op(&mut g, Pointwise::Exp, &[x], &[4]));
        let whole = || Item::Group((1..=MOST_OPERATIONS).collect());
        assert_eq!(fuse(&Uses::new(&g, &[y]), 8), [whole()]);
        let z = op(&mut g, Pointwise::Exp, &[y], &[4]);
        assert_eq!(fuse(&Uses::new(&g, &[z]), 8), [whole(), Item::Group(vec![MOST_OPERATIONS + 1])]);
    }

    #[test]
    fn groups_are_found_without_recursion_however_they_were_joined() {
        // Each join adds the previous group to an earlier one.
        const LENGTH: usize = 1_000_000;
        let mut groups = Groups::new(LENGTH);
        (1..LENGTH).rev().for_each(|node| groups.join(node, node - 1));
        assert_eq!(groups.find(LENGTH - 1), 0);
    }
}
