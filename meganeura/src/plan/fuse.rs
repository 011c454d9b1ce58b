//! Second pass: decides which pointwise operations run together, and the order of everything.
//!
//! Each operation gets a *stage*. An edge between two pointwise operations of one shape keeps the stage, every other edge
//! raises it. Connected pointwise operations of one stage and shape form a group: a way out of a group and back would have
//! raised the stage, so groups never depend on each other in a circle, and sorting by stage is a valid order.
//!
//! Pointwise operations (and those without computed operands) wait for the stage of their first reader. So a factor that
//! only a gradient needs is recomputed there from what was kept anyway, rather than stored during the forward pass.

use std::collections::BTreeMap;

use crate::graph::{Graph, Source, ValueId};
use crate::ops::Op;

/// Buffers one shader may bind, by WebGPU's default limit: operands, results and the host's words.
const MAX_BINDINGS: usize = 8;

/// What runs as one step: nodes by index, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Item {
    Kernel(usize),
    Group(Vec<usize>),
}

/// A value behind views: the value that has memory of its own, and whether there was no view between.
pub(super) fn root(graph: &Graph, mut value: ValueId) -> (ValueId, bool) {
    let mut direct = true;
    while let Source::Op(Op::View(_)) = graph.maker(value).source {
        value = graph.maker(value).inputs[0];
        direct = false;
    }
    (value, direct)
}

fn is_pointwise(graph: &Graph, node: usize) -> bool {
    matches!(graph.nodes()[node].source, Source::Op(Op::Pointwise(_)))
}

/// The computed operands of a node: the node that makes each, and whether the two could be fused.
fn edges(graph: &Graph, node: usize) -> impl Iterator<Item = (usize, bool)> + '_ {
    graph.nodes()[node].inputs.iter().filter_map(move |&input| {
        let (value, direct) = root(graph, input);
        let maker = graph.maker_index(value);
        let fusible = direct
            && is_pointwise(graph, maker)
            && is_pointwise(graph, node)
            && graph.ty(value) == graph.nodes()[node].types[0];
        matches!(graph.nodes()[maker].source, Source::Op(_)).then_some((maker, fusible))
    })
}

/// The steps that compute `roots`, in order.
pub(super) fn fuse(graph: &Graph, roots: &[ValueId]) -> Vec<Item> {
    let works = |node: usize| matches!(graph.nodes()[node].source, Source::Op(Op::Pointwise(_) | Op::Kernel(_)));
    let stages = stages(graph, roots);
    let mut groups = Groups::new(graph.nodes().len());
    for node in (0..graph.nodes().len()).filter(|&node| is_pointwise(graph, node)) {
        for (maker, fusible) in edges(graph, node) {
            if fusible && stages[maker] == stages[node] {
                groups.join(maker, node);
            }
        }
    }
    let mut members: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
    for node in (0..graph.nodes().len()).filter(|&node| works(node)) {
        members.entry((stages[node], groups.find(node))).or_default().push(node);
    }
    let mut items = Vec::with_capacity(members.len());
    for nodes in members.into_values() {
        if is_pointwise(graph, nodes[0]) {
            items.extend(cut(graph, roots, nodes).into_iter().map(Item::Group));
        } else {
            items.extend(nodes.into_iter().map(Item::Kernel));
        }
    }
    items
}

fn stages(graph: &Graph, roots: &[ValueId]) -> Vec<usize> {
    let nodes = graph.nodes();
    let mut pinned = vec![false; nodes.len()];
    for &value in roots {
        pinned[graph.maker_index(root(graph, value).0)] = true;
    }
    let mut stage = vec![0; nodes.len()];
    let mut computed_operands = vec![false; nodes.len()];
    let works = |node: usize| matches!(nodes[node].source, Source::Op(Op::Pointwise(_) | Op::Kernel(_)));
    for node in (0..nodes.len()).filter(|&node| works(node)) {
        for (maker, fusible) in edges(graph, node) {
            stage[node] = stage[node].max(stage[maker] + usize::from(!fusible));
            computed_operands[node] = true;
        }
    }
    let mut latest = vec![usize::MAX; nodes.len()];
    for node in (0..nodes.len()).rev().filter(|&node| works(node)) {
        let movable = !pinned[node] && (is_pointwise(graph, node) || !computed_operands[node]);
        if movable && latest[node] != usize::MAX {
            stage[node] = latest[node];
        }
        for (maker, fusible) in edges(graph, node) {
            // A node without operands may have readers in stage 0 only if it is there itself.
            latest[maker] = latest[maker].min(stage[node] - usize::from(!fusible));
        }
    }
    stage
}

/// Splits a group, in order, where it would bind too many buffers.
fn cut(graph: &Graph, roots: &[ValueId], nodes: Vec<usize>) -> Vec<Vec<usize>> {
    // A part of a group may bind more than the whole, whose later nodes read what would have to be stored.
    if bindings(graph, roots, &nodes) <= MAX_BINDINGS {
        return vec![nodes];
    }
    let mut parts = Vec::new();
    let mut part: Vec<usize> = Vec::new();
    for node in nodes {
        part.push(node);
        if bindings(graph, roots, &part) > MAX_BINDINGS && part.len() > 1 {
            part.pop();
            parts.push(std::mem::replace(&mut part, vec![node]));
        }
    }
    parts.push(part);
    parts
}

fn bindings(graph: &Graph, roots: &[ValueId], part: &[usize]) -> usize {
    let mut outside: Vec<ValueId> = Vec::new();
    let mut host = false;
    for &input in part.iter().flat_map(|&node| &graph.nodes()[node].inputs) {
        let (value, _) = root(graph, input);
        match graph.maker(value).source {
            Source::Const(_) => {}
            Source::Host(_) => host = true,
            _ if part.contains(&graph.maker_index(value)) => {}
            _ => outside.push(input),
        }
    }
    outside.sort_unstable();
    outside.dedup();
    outside.len() + usize::from(host) + part.iter().filter(|&&node| is_read_outside(graph, roots, node, part)).count()
}

/// Whether a pointwise node's value is needed by others than `part`.
pub(super) fn is_read_outside(graph: &Graph, roots: &[ValueId], node: usize, part: &[usize]) -> bool {
    let value = graph.nodes()[node].first;
    let reads = |reader: &usize| graph.nodes()[*reader].inputs.contains(&value);
    roots.contains(&value) || (node + 1..graph.nodes().len()).any(|reader| reads(&reader) && !part.contains(&reader))
}

/// A union-find over node indices.
struct Groups(Vec<usize>);

impl Groups {
    fn new(nodes: usize) -> Self {
        Self((0..nodes).collect())
    }

    fn find(&mut self, node: usize) -> usize {
        if self.0[node] != node {
            self.0[node] = self.find(self.0[node]);
        }
        self.0[node]
    }

    /// The earlier node stands for the group.
    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.find(a), self.find(b));
        self.0[a.max(b)] = a.min(b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{Pointwise, View};
    use crate::{DType, Shape, TensorType};

    const TY: TensorType = TensorType::new(DType::F32, Shape::SCALAR);

    fn op(graph: &mut Graph, op: impl Into<Op>, inputs: &[ValueId], dims: &[usize]) -> ValueId {
        graph.push(Source::Op(op.into()), inputs.to_vec(), vec![TY.with_shape(Shape::new(dims))])
    }

    fn leaf(graph: &mut Graph, k: usize, dims: &[usize]) -> ValueId {
        graph.push(Source::Leaf(k), vec![], vec![TY.with_shape(Shape::new(dims))])
    }

    #[test]
    fn a_chain_is_one_group() {
        let mut g = Graph::default();
        let x = leaf(&mut g, 0, &[4]);
        let a = op(&mut g, Pointwise::Exp, &[x], &[4]);
        let b = op(&mut g, Pointwise::Tanh, &[a], &[4]);
        let c = op(&mut g, Pointwise::Add, &[b, x], &[4]);
        assert_eq!(fuse(&g, &[c]), [Item::Group(vec![1, 2, 3])]);
    }

    #[test]
    fn a_detour_separates_groups() {
        // c needs a directly and through a transposition: a must be stored before c starts.
        let mut g = Graph::default();
        let x = leaf(&mut g, 0, &[2, 2]);
        let a = op(&mut g, Pointwise::Exp, &[x], &[2, 2]);
        let t = op(&mut g, View::Permute(vec![1, 0]), &[a], &[2, 2]);
        let c = op(&mut g, Pointwise::Add, &[a, t], &[2, 2]);
        assert_eq!(fuse(&g, &[c]), [Item::Group(vec![1]), Item::Group(vec![3])]);
    }

    #[test]
    fn what_only_a_late_reader_needs_waits_for_it() {
        // cos(x) is read only by the last product, whose other operand went through a broadcast.
        let mut g = Graph::default();
        let x = leaf(&mut g, 0, &[4, 4]);
        let cos = op(&mut g, Pointwise::Cos, &[x], &[4, 4]);
        let y = leaf(&mut g, 1, &[4]);
        let exp = op(&mut g, Pointwise::Exp, &[y], &[4]);
        let wide = op(&mut g, View::Expand(Shape::from([4, 4])), &[exp], &[4, 4]);
        let dx = op(&mut g, Pointwise::Mul, &[wide, cos], &[4, 4]);
        assert_eq!(fuse(&g, &[dx]), [Item::Group(vec![3]), Item::Group(vec![1, 5])]);
    }

    #[test]
    fn groups_respect_the_binding_limit() {
        let mut g = Graph::default();
        let leaves: Vec<_> = (0..12).map(|k| leaf(&mut g, k, &[4])).collect();
        let sum = leaves.iter().skip(1).fold(leaves[0], |sum, &x| op(&mut g, Pointwise::Add, &[sum, x], &[4]));
        let items = fuse(&g, &[sum]);
        assert_eq!(items.len(), 2);
        for item in items {
            let Item::Group(part) = item else { panic!("only groups here") };
            assert!(bindings(&g, &[sum], &part) <= MAX_BINDINGS);
        }
    }
}
