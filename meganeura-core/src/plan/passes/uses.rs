//! The readers of each value, looked up through views. Collected once for a graph, so that later passes need not
//! search.

use std::collections::{HashMap, HashSet};

use crate::Layout;
use crate::graph::{Graph, Source, ValueId};
use crate::ops::Op;

/// A value with its views removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Origin {
    /// The value that has memory of its own.
    pub(super) value: ValueId,
    /// `true` if the views, if any, preserve the order of elements: element number `i` of both is the same. Reshapes
    /// do.
    pub(super) in_order: bool,
}

/// One use of a value as an operand of an operation that is not a view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Read {
    pub(super) node: usize,
    pub(super) operand: usize,
    /// Like [`Origin::in_order`].
    pub(super) in_order: bool,
}

pub(super) struct Uses<'a> {
    pub(super) graph: &'a Graph,
    /// Indexed by value.
    origins: Vec<Origin>,
    /// Indexed by value. Views have no readers; the values behind them do.
    readers: Vec<Vec<Read>>,
    /// Indexed by value, behind views: `true` if the value is wanted outside the graph.
    wanted: Vec<bool>,
    /// For each view that waits, the values that its readers wait for, other than the one that it shows.
    awaited: HashMap<ValueId, Vec<ValueId>>,
    /// For each value behind views, the nodes that wait for it without reading it.
    waiting: HashMap<ValueId, Vec<usize>>,
}

impl<'a> Uses<'a> {
    /// `roots` are the wanted values.
    pub(super) fn new(graph: &'a Graph, roots: &[ValueId]) -> Self {
        let mut layouts: Vec<Option<Layout>> = Vec::with_capacity(graph.values());
        let mut origins: Vec<Origin> = Vec::with_capacity(graph.values());
        let mut readers: Vec<Vec<Read>> = vec![Vec::new(); graph.values()];
        let (mut awaited, mut waiting): (HashMap<ValueId, Vec<ValueId>>, HashMap<_, Vec<_>>) = Default::default();
        for (at, node) in graph.nodes().iter().enumerate() {
            if let Source::Op(Op::View(view)) = &node.source {
                let from = node.inputs[0].index();
                let layout = layouts[from].and_then(|layout| view.layout(&layout));
                let value = origins[from].value;
                let whole = node.types[0].shape.elements() == graph.ty(value).shape.elements();
                origins.push(Origin { value, in_order: whole && layout.is_some_and(|layout| layout.is_contiguous()) });
                layouts.push(layout);
                let (behind, others) = node.inputs.split_first().expect("a view of something");
                let others = others.iter().map(|other| origins[other.index()].value);
                let all: Vec<_> = awaited.get(behind).into_iter().flatten().copied().chain(others).collect();
                if !all.is_empty() {
                    awaited.insert(node.first, all);
                }
                continue;
            }
            for (operand, value) in node.inputs.iter().enumerate() {
                for &awaited in awaited.get(value).into_iter().flatten() {
                    waiting.entry(awaited).or_default().push(at);
                }
                let Origin { value, in_order } = origins[value.index()];
                readers[value.index()].push(Read { node: at, operand, in_order });
            }
            for (value, ty) in node.outputs().zip(&node.types) {
                origins.push(Origin { value, in_order: true });
                layouts.push(Some(Layout::contiguous(ty.shape)));
            }
        }
        let mut wanted = vec![false; graph.values()];
        roots.iter().for_each(|root| wanted[origins[root.index()].value.index()] = true);
        Self { graph, origins, readers, wanted, awaited, waiting }
    }

    pub(super) fn origin(&self, value: ValueId) -> Origin {
        self.origins[value.index()]
    }

    /// The layout of a value, given that of the memory behind its views.
    pub(super) fn view_of(&self, value: ValueId, behind: Layout) -> Option<Layout> {
        let (mut views, mut at) = (Vec::new(), value);
        while let Source::Op(Op::View(view)) = &self.graph.maker(at).source {
            views.push(view);
            at = self.graph.maker(at).inputs[0];
        }
        views.into_iter().rev().try_fold(behind, |layout, view| view.layout(&layout))
    }

    /// `true` if a value has at least half of the elements behind its views.
    pub(super) fn shows_most(&self, value: ValueId) -> bool {
        let elements = |value: ValueId| self.graph.ty(value).shape.elements();
        elements(value) >= elements(self.origin(value).value) / 2
    }

    /// The readers of a value that is not a view.
    pub(super) fn readers(&self, value: ValueId) -> &[Read] {
        &self.readers[value.index()]
    }

    pub(super) fn is_wanted(&self, value: ValueId) -> bool {
        self.wanted[value.index()]
    }

    /// `true` if nodes outside `part`, a sorted list, need a value.
    pub(super) fn is_read_outside(&self, value: ValueId, part: &[usize]) -> bool {
        self.is_wanted(value) || self.readers(value).iter().any(|read| part.binary_search(&read.node).is_err())
    }

    pub(super) fn is_pointwise(&self, node: usize) -> bool {
        matches!(self.graph.nodes()[node].source, Source::Op(Op::Pointwise(_)))
    }

    /// `true` if a step computes the node: it is not a leaf, number or view.
    pub(super) fn is_computed(&self, node: usize) -> bool {
        matches!(self.graph.nodes()[node].source, Source::Op(Op::Pointwise(_) | Op::Kernel(_)))
    }

    /// The nodes that compute the operands of a node, each with `true` if both could be in one pointwise program.
    pub(super) fn makers(&self, node: usize) -> impl Iterator<Item = (usize, bool)> + '_ {
        self.graph.nodes()[node].inputs.iter().filter_map(move |&input| {
            let Origin { value, in_order } = self.origin(input);
            let maker = self.graph.maker_index(value);
            let fusible = in_order && self.is_pointwise(maker) && self.is_pointwise(node);
            self.is_computed(maker).then_some((maker, fusible))
        })
    }

    /// The nodes that a node waits for without reading their results.
    pub(super) fn awaited(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        let values =
            self.graph.nodes()[node].inputs.iter().flat_map(|input| self.awaited.get(input).into_iter().flatten());
        values.map(|&value| self.graph.maker_index(value)).filter(|&maker| self.is_computed(maker))
    }

    /// The nodes that wait for a value, which is not a view, without reading it.
    pub(super) fn waiting(&self, value: ValueId) -> &[usize] {
        self.waiting.get(&value).map_or(&[], Vec::as_slice)
    }

    /// The number of buffers that the nodes `part`, a sorted list, bind when they run together. The memory of `except`
    /// does not count.
    pub(super) fn bindings(&self, part: &[usize], except: &[ValueId]) -> usize {
        let mut bindings = Bindings::new(self, except);
        part.iter().for_each(|&node| bindings.add(node));
        bindings.count()
    }

    /// The nodes of a group, in order, whose values are needed outside it.
    pub(super) fn results(&self, part: &[usize]) -> Vec<usize> {
        let first = |node: usize| self.graph.nodes()[node].first;
        part.iter().copied().filter(|&node| self.is_read_outside(first(node), part)).collect()
    }
}

/// The buffers that a growing list of pointwise nodes binds when they run together: operands computed elsewhere, the
/// host's words, and results needed elsewhere.
pub(super) struct Bindings<'a> {
    uses: &'a Uses<'a>,
    /// Values that the nodes read from no buffer.
    except: &'a [ValueId],
    operands: HashSet<ValueId>,
    host: bool,
    /// For each node, the number of uses of its result outside the list, including those by nodes that join later; no
    /// entry without uses.
    needed: HashMap<usize, usize>,
}

impl<'a> Bindings<'a> {
    pub(super) fn new(uses: &'a Uses<'a>, except: &'a [ValueId]) -> Self {
        Self { uses, except, operands: HashSet::new(), host: false, needed: HashMap::new() }
    }

    /// Adds a node that comes after all previous ones.
    pub(super) fn add(&mut self, node: usize) {
        let Uses { graph, .. } = self.uses;
        for &input in &graph.nodes()[node].inputs {
            let value = self.uses.origin(input).value;
            let maker = graph.maker_index(value);
            match graph.nodes()[maker].source {
                Source::Const(_) => {}
                Source::Host(_) => self.host = true,
                _ if self.except.contains(&value) => {}
                _ => match self.needed.get_mut(&maker) {
                    // One of them is this node.
                    Some(1) => _ = self.needed.remove(&maker),
                    Some(count) => *count -= 1,
                    None => _ = self.operands.insert(input),
                },
            }
        }
        let value = graph.nodes()[node].first;
        let count = self.uses.readers(value).len() + usize::from(self.uses.is_wanted(value));
        if count > 0 {
            self.needed.insert(node, count);
        }
    }

    pub(super) fn count(&self) -> usize {
        self.operands.len() + usize::from(self.host) + self.needed.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{Pointwise, View};
    use crate::{DType, Shape, TensorType};

    #[test]
    fn views_that_keep_the_order_are_seen_through() {
        let ty = |dims: &[usize]| TensorType::new(DType::F32, Shape::new(dims));
        let mut g = Graph::default();
        let x = g.push(Source::Leaf(0), [], [ty(&[2, 3])]);
        let mut view = |view: View, of, dims: &[usize]| g.push(Source::Op(view.into()), [of], [ty(dims)]);
        let flat = view(View::Reshape(Shape::from([6])), x, &[6]);
        let tall = view(View::Expand(Shape::from([1, 6])), flat, &[1, 6]);
        let part = view(View::Slice { axis: 0, start: 0, len: 1 }, x, &[1, 3]);
        let turned = view(View::Permute(vec![1, 0]), x, &[3, 2]);
        let back = view(View::Permute(vec![1, 0]), turned, &[2, 3]);
        let sum = g.push(Source::Op(Pointwise::Add.into()), [turned, turned], [ty(&[3, 2])]);
        let uses = Uses::new(&g, &[sum, tall]);
        let in_order = |value| (uses.origin(value).value, uses.origin(value).in_order);
        assert_eq!([flat, tall, back].map(in_order), [(x, true); 3]);
        assert_eq!([part, turned].map(in_order), [(x, false); 2]);
        assert_eq!(uses.readers(x).len(), 2);
        assert!(uses.is_wanted(x) && uses.is_wanted(sum) && uses.readers(sum).is_empty());
    }

    #[test]
    fn readers_of_a_waiting_view_come_after_all_that_it_waits_for() {
        let ty = TensorType::new(DType::F32, Shape::from([2]));
        let mut g = Graph::default();
        let x = g.push(Source::Leaf(0), [], [ty]);
        let exp = g.push(Source::Op(Pointwise::Exp.into()), [x], [ty]);
        let tanh = g.push(Source::Op(Pointwise::Tanh.into()), [x], [ty]);
        let late = g.push(Source::Op(View::After.into()), [exp, tanh], [ty]);
        let flat = g.push(Source::Op(View::Reshape(Shape::from([1, 2])).into()), [late], [ty.with_shape([1, 2])]);
        let last = g.push(Source::Op(Pointwise::Exp.into()), [flat], [ty.with_shape([1, 2])]);
        let uses = Uses::new(&g, &[last]);
        let makers: Vec<_> = uses.makers(g.maker_index(last)).collect();
        assert_eq!(makers, [(g.maker_index(exp), true)]);
        assert_eq!(uses.awaited(g.maker_index(last)).collect::<Vec<_>>(), [g.maker_index(tanh)]);
        assert_eq!((uses.readers(tanh), uses.waiting(tanh)), (&[][..], &[g.maker_index(last)][..]));
    }
}
