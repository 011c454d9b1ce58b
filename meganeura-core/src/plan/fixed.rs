//! The values of a graph that depend on fixed leaves and numbers alone: a function that runs again and again computes
//! them once.

use std::collections::HashSet;

use crate::Layout;
use crate::graph::{Graph, Node, Source, ValueId};
use crate::ops::Op;

/// The most elements of a kept value, beyond those of the leaves that it is computed from: a mask of 512×512.
const MOST: usize = 1 << 18;

/// The values to compute once, in the order of the graph. All else that `roots` need is computed from them, from leaves
/// and from numbers. `is_fixed` tells whether a leaf is the same in every run.
///
/// These are the values between what is fixed and what is not. Values that take much more memory than the leaves that
/// they are computed from, such as a vector that is broadcast and scaled, are computed in every run.
pub(crate) fn kept_values(graph: &Graph, roots: &[ValueId], is_fixed: impl Fn(usize) -> bool) -> Vec<ValueId> {
    let mut fixed: Vec<bool> = Vec::with_capacity(graph.nodes().len());
    for node in graph.nodes() {
        fixed.push(match &node.source {
            Source::Leaf(leaf) => is_fixed(*leaf),
            Source::Host(_) | Source::Const(_) => true,
            Source::Op(op) => !op.varies() && node.inputs.iter().all(|&x| fixed[graph.maker_index(x)]),
            Source::Converted => false,
        });
    }
    let mut frontier = Frontier { graph, kept: HashSet::new(), seen: HashSet::new(), open: Vec::new() };
    let mut needed = vec![false; graph.nodes().len()];
    for &root in roots {
        needed[graph.maker_index(root)] = true;
        if fixed[graph.maker_index(root)] {
            frontier.open.push((root, Reader::Memory));
        }
    }
    for (at, node) in graph.nodes().iter().enumerate().rev() {
        if needed[at] && !fixed[at] {
            node.read().iter().for_each(|&x| needed[graph.maker_index(x)] = true);
            frontier.open_operands(node, |x| fixed[graph.maker_index(x)]);
        }
    }
    let mut kept: Vec<_> = frontier.kept().into_iter().collect();
    kept.sort_unstable();
    kept
}

/// The way in which a value is read.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Reader {
    /// In any layout, or as a number.
    Program,
    /// From memory, in any layout.
    Strided,
    /// From contiguous memory.
    Memory,
}

/// The fixed values that are read every time.
struct Frontier<'a> {
    graph: &'a Graph,
    kept: HashSet<ValueId>,
    seen: HashSet<(ValueId, Reader)>,
    /// Those to look at.
    open: Vec<(ValueId, Reader)>,
}

impl Frontier<'_> {
    /// Opens the operands of a node for which `is_fixed` holds.
    fn open_operands(&mut self, node: &Node, is_fixed: impl Fn(ValueId) -> bool) {
        for (k, &x) in node.read().iter().enumerate().filter(|(_, x)| is_fixed(**x)) {
            let reader = match &node.source {
                Source::Op(Op::Kernel(op)) if op.reads_strided(k) => Reader::Strided,
                Source::Op(Op::Kernel(_)) => Reader::Memory,
                _ => Reader::Program,
            };
            self.open.push((x, reader));
        }
    }

    /// The values to keep: those on the frontier, or what they are computed from.
    fn kept(mut self) -> HashSet<ValueId> {
        while let Some((value, reader)) = self.open.pop() {
            if !self.seen.insert((value, reader)) {
                continue;
            }
            let (behind, is_contiguous) = self.behind(value);
            let is_copied = is_contiguous.is_none_or(|is_contiguous| reader == Reader::Memory && !is_contiguous);
            let copy = Some(value).filter(|_| is_copied);
            let candidates = match &self.graph.maker(behind).source {
                // Kernels read words as they are, and other numbers from memory.
                Source::Host(_) if !self.graph.ty(behind).dtype.is_float() => [None, None],
                Source::Host(_) | Source::Const(_) => [Some(value).filter(|_| reader != Reader::Program), None],
                Source::Leaf(_) => [copy, None],
                Source::Op(_) | Source::Converted => [copy, Some(behind)],
            };
            match candidates.into_iter().flatten().find(|&candidate| self.is_worth(candidate, reader)) {
                Some(candidate) => drop(self.kept.insert(candidate)),
                None => self.open_operands(self.graph.maker(behind), |_| true),
            }
        }
        self.kept
    }

    /// The value behind views, and whether the view of its memory is contiguous; `None` if layouts cannot express it.
    fn behind(&self, value: ValueId) -> (ValueId, Option<bool>) {
        let (mut views, mut behind) = (Vec::new(), value);
        while let Source::Op(Op::View(view)) = &self.graph.maker(behind).source {
            views.push(view);
            behind = self.graph.maker(behind).inputs[0];
        }
        let whole = Layout::contiguous(self.graph.ty(behind).shape);
        let layout = views.into_iter().rev().try_fold(whole, |layout, view| view.layout(&layout));
        (behind, layout.map(|layout| layout.is_contiguous()))
    }

    /// `true` if a value takes work, and not much more memory than the leaves behind it.
    fn is_worth(&self, value: ValueId, reader: Reader) -> bool {
        let (mut seen, mut open) = (HashSet::new(), vec![self.graph.maker_index(value)]);
        // Arithmetic of numbers is part of the programs that read it.
        let (mut elements, mut takes_work) = (0_usize, reader != Reader::Program);
        while let Some(at) = open.pop() {
            if seen.insert(at) {
                let node = &self.graph.nodes()[at];
                if let Source::Leaf(_) = node.source {
                    elements = elements.saturating_add(node.types[0].shape.elements());
                }
                takes_work |= matches!(node.source, Source::Leaf(_) | Source::Op(Op::Kernel(_)));
                open.extend(node.read().iter().map(|&x| self.graph.maker_index(x)));
            }
        }
        takes_work && self.graph.ty(value).shape.elements() <= elements.saturating_add(MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Exact;
    use crate::ops::reduce::{Fold, Reduce};
    use crate::ops::{Pointwise, View};
    use crate::{DType, Shape, TensorType};

    /// Leaf 0 is the input, all others are fixed.
    fn kept(graph: &Graph, roots: &[ValueId]) -> Vec<ValueId> {
        kept_values(graph, roots, |leaf| leaf > 0)
    }

    fn ty(dims: &[usize]) -> TensorType {
        TensorType::new(DType::F32, Shape::new(dims))
    }

    fn op(graph: &mut Graph, op: impl Into<Op>, inputs: &[ValueId], dims: &[usize]) -> ValueId {
        graph.push(Source::Op(op.into()), inputs.iter().copied(), [ty(dims)])
    }

    #[test]
    fn what_lies_between_weights_and_inputs_is_kept() {
        let g = &mut Graph::default();
        let [x, w] = [0, 1].map(|leaf| g.push(Source::Leaf(leaf), [], [ty(&[2, 3])]));
        let exp = op(g, Pointwise::Exp, &[w], &[2, 3]);
        let scale = op(g, Pointwise::Mul, &[exp, w], &[2, 3]);
        let (unread, y) = (op(g, Pointwise::Exp, &[scale], &[2, 3]), op(g, Pointwise::Mul, &[x, scale], &[2, 3]));
        let tanh = op(g, Pointwise::Tanh, &[y], &[2, 3]);
        assert_eq!(kept(g, &[tanh]), [scale]);
        assert_eq!(kept(g, &[tanh, unread, w, x]), [scale, unread], "wanted values are handed out");
        let both = op(g, Pointwise::Add, &[tanh, exp], &[2, 3]);
        assert_eq!(kept(g, &[both]), [exp, scale]);
    }

    #[test]
    fn views_and_numbers_cost_nothing() {
        let g = &mut Graph::default();
        let [x, w] = [0, 1].map(|leaf| g.push(Source::Leaf(leaf), [], [ty(&[3, 2])]));
        let [host, constant] = [Source::Host(0), Source::Const(Exact(2.0))].map(|source| g.push(source, [], [ty(&[])]));
        let number = op(g, Pointwise::Mul, &[host, constant], &[]);
        let number = op(g, View::Expand(Shape::from([3, 2])), &[number], &[3, 2]);
        let turned = op(g, View::Permute(vec![1, 0]), &[w], &[2, 3]);
        let scaled = op(g, Pointwise::Mul, &[x, number], &[3, 2]);
        let read = op(g, View::Permute(vec![1, 0]), &[scaled], &[2, 3]);
        let sum = op(g, Pointwise::Add, &[read, turned], &[2, 3]);
        assert_eq!(kept(g, &[sum]), []);
        // No layout expresses this view.
        let flat = op(g, View::Reshape(Shape::from([6])), &[turned], &[6]);
        let of_sum = op(g, View::Reshape(Shape::from([6])), &[sum], &[6]);
        let sum = op(g, Pointwise::Add, &[of_sum, flat], &[6]);
        assert_eq!(kept(g, &[sum]), [flat]);
    }

    #[test]
    fn what_is_broadcast_is_not_kept() {
        let g = &mut Graph::default();
        let large = [MOST, 4];
        let (x, w) = (g.push(Source::Leaf(0), [], [ty(&large)]), g.push(Source::Leaf(1), [], [ty(&[4])]));
        let exp = op(g, Pointwise::Exp, &[w], &[4]);
        let expanded = op(g, View::Expand(Shape::new(&large)), &[exp], &large);
        let root = op(g, Pointwise::Sqrt, &[expanded], &large);
        let y = op(g, Pointwise::Mul, &[x, root], &large);
        assert_eq!(kept(g, &[y]), [exp]);
        // Its sum is small.
        let sum = op(g, Reduce { fold: Fold::Sum, axes: vec![0] }, &[root], &[1, 4]);
        let expanded = op(g, View::Expand(Shape::new(&large)), &[sum], &large);
        let y = op(g, Pointwise::Mul, &[x, expanded], &large);
        assert_eq!(kept(g, &[y]), [sum]);
    }
}
