//! Keys of the plan cache: the structure that a plan was made for, compared with new ones without copying them.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::Request;
use crate::TensorType;
use crate::graph::{Graph, Node, Source, ValueId};

/// The structure that a plan was made for.
pub(crate) struct Key {
    graph: Graph,
    outputs: Vec<ValueId>,
    assigns: Vec<(usize, ValueId)>,
    /// `true` if the plan runs once for each version of its leaves.
    pub(crate) once: bool,
}

impl Key {
    /// The number of nodes in its graph.
    pub(crate) fn nodes(&self) -> usize {
        self.graph.nodes().len()
    }

    /// A hash of the operations without their attributes, and of types without their extents. It is the same for all
    /// shapes that a function is called with.
    pub(crate) fn outline(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        for Node { source, inputs, types, .. } in self.graph.nodes() {
            std::mem::discriminant(source).hash(&mut hash);
            match source {
                Source::Op(op) => op.name().hash(&mut hash),
                Source::Leaf(number) | Source::Host(number) => number.hash(&mut hash),
                Source::Const(_) | Source::Converted => {}
            }
            inputs.hash(&mut hash);
            types.iter().for_each(|ty| (ty.dtype, ty.shape.rank()).hash(&mut hash));
        }
        (&self.outputs, &self.assigns).hash(&mut hash);
        hash.finish()
    }

    /// An estimate of the host memory that it takes: it counts nodes, which hold their short lists themselves.
    pub(crate) fn host_bytes(&self) -> usize {
        self.graph.nodes().len() * (size_of::<Node>() + size_of::<usize>())
    }

    pub(crate) fn request(&self) -> Request<'_> {
        Request { graph: &self.graph, outputs: &self.outputs, assigns: &self.assigns }
    }
}

/// A part of a graph with its wanted values: some of the nodes, in order, and some of the values as leaves. Values,
/// leaves and host words are renumbered from 0, so equal parts of different graphs are equal.
///
/// A step's graph has thousands of nodes. So an excerpt is compared with keys in place; only a new key copies it.
pub(crate) struct Excerpt<'a> {
    graph: &'a Graph,
    entries: Vec<Entry>,
    /// For each value of the graph, its name in the excerpt, if it is in it.
    names: Vec<Option<ValueId>>,
    /// The next name.
    next: ValueId,
    pub(crate) outputs: Vec<ValueId>,
    pub(crate) assigns: Vec<(usize, ValueId)>,
    pub(crate) once: bool,
}

/// A node of an excerpt.
#[derive(Clone, Copy)]
enum Entry {
    /// A node of the graph.
    Node(usize),
    /// A node of the graph, renumbered: a leaf, or host words.
    Numbered(usize, usize),
    /// A value of the graph, as a leaf of this number.
    Leaf(ValueId, usize),
}

impl<'a> Excerpt<'a> {
    /// An empty excerpt.
    pub(crate) fn new(graph: &'a Graph) -> Self {
        let names = vec![None; graph.values()];
        let entries = Vec::with_capacity(graph.nodes().len());
        Self { graph, entries, names, next: ValueId(0), outputs: Vec::new(), assigns: Vec::new(), once: false }
    }

    /// Appends a node of the graph. A leaf, or host words, gets `number`.
    pub(crate) fn push(&mut self, node: usize, number: Option<usize>) {
        self.entries.push(number.map_or(Entry::Node(node), |number| Entry::Numbered(node, number)));
        for value in self.graph.nodes()[node].outputs() {
            self.name(value);
        }
    }

    /// Appends a value of the graph as a leaf of this number.
    pub(crate) fn push_leaf(&mut self, value: ValueId, number: usize) {
        self.entries.push(Entry::Leaf(value, number));
        self.name(value);
    }

    fn name(&mut self, value: ValueId) {
        self.names[value.index()] = Some(self.next);
        self.next.0 += 1;
    }

    /// The name in the excerpt of a value that it contains.
    pub(crate) fn named(&self, value: ValueId) -> ValueId {
        self.names[value.index()].expect("a value of the excerpt")
    }

    /// The graph node behind each node of the excerpt.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = usize> + '_ {
        self.entries.iter().map(|entry| match *entry {
            Entry::Node(node) | Entry::Numbered(node, _) => node,
            Entry::Leaf(value, _) => self.graph.maker_index(value),
        })
    }

    /// The source, the operands in the graph's names, and the types of each node.
    fn described(&self) -> impl Iterator<Item = (Cow<'a, Source>, &'a [ValueId], &'a [TensorType])> + '_ {
        self.entries.iter().map(|entry| match *entry {
            Entry::Node(node) => {
                let Node { source, inputs, types, .. } = &self.graph.nodes()[node];
                (Cow::Borrowed(source), &inputs[..], &types[..])
            }
            Entry::Numbered(node, number) => {
                let Node { source, types, .. } = &self.graph.nodes()[node];
                let source = match source {
                    Source::Leaf(_) => Source::Leaf(number),
                    Source::Host(_) => Source::Host(number),
                    Source::Const(_) | Source::Op(_) | Source::Converted => unreachable!("these have no numbers"),
                };
                (Cow::Owned(source), &[][..], &types[..])
            }
            Entry::Leaf(value, number) => {
                let node = self.graph.maker(value);
                let at = value.index() - node.first.index();
                (Cow::Owned(Source::Leaf(number)), &[][..], &node.types[at..=at])
            }
        })
    }

    /// The excerpt copied into a graph of its own.
    pub(crate) fn to_graph(&self) -> Graph {
        let mut graph = Graph::default();
        for (source, inputs, types) in self.described() {
            let inputs = inputs.iter().map(|&input| self.named(input));
            graph.push(source.into_owned(), inputs, types.iter().copied());
        }
        graph
    }

    pub(crate) fn to_key(&self) -> Key {
        let (outputs, assigns) = (self.outputs.clone(), self.assigns.clone());
        Key { graph: self.to_graph(), outputs, assigns, once: self.once }
    }

    /// A hash of the types and the wanted values, which tells most excerpts apart.
    pub(crate) fn digest(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        self.described().for_each(|(_, _, types)| types.hash(&mut hash));
        (&self.outputs, &self.assigns).hash(&mut hash);
        hash.finish()
    }

    pub(crate) fn is(&self, key: &Key) -> bool {
        let nodes = key.graph.nodes();
        self.once == key.once
            && self.outputs == key.outputs
            && self.assigns == key.assigns
            && self.entries.len() == nodes.len()
            && self.described().zip(nodes).all(|((source, inputs, types), node)| {
                let inputs = inputs.iter().map(|&input| self.named(input));
                *source == node.source && inputs.eq(node.inputs.iter().copied()) && *types == *node.types
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Pointwise;
    use crate::{DType, Shape};

    /// `exp(a) + b`, after `before` other nodes.
    fn graph(before: usize) -> (Graph, [ValueId; 4]) {
        let ty = TensorType::new(DType::F32, Shape::from([2]));
        let mut graph = Graph::default();
        for leaf in 0..before {
            graph.push(Source::Leaf(leaf), [], [ty]);
        }
        let a = graph.push(Source::Leaf(before), [], [ty]);
        let exp = graph.push(Source::Op(Pointwise::Exp.into()), [a], [ty]);
        let b = graph.push(Source::Host(before), [], [ty]);
        let sum = graph.push(Source::Op(Pointwise::Add.into()), [exp, b], [ty]);
        (graph, [a, exp, b, sum])
    }

    fn whole<'a>(graph: &'a Graph, values: &[ValueId; 4]) -> Excerpt<'a> {
        let mut excerpt = Excerpt::new(graph);
        for (value, number) in values.iter().zip([Some(0), None, Some(0), None]) {
            excerpt.push(graph.maker_index(*value), number);
        }
        excerpt.outputs = vec![excerpt.named(values[3])];
        excerpt
    }

    #[test]
    fn equal_parts_of_different_graphs_are_equal() {
        let ((one, values), (other, others)) = (graph(0), graph(3));
        let (one, other) = (whole(&one, &values), whole(&other, &others));
        assert!(other.is(&one.to_key()) && one.is(&other.to_key()));
        assert_eq!(one.to_graph(), other.to_graph());
        assert_eq!(other.to_graph().to_string().lines().last(), Some("%3 = add(%1, %2) : f32[2]"));
    }

    #[test]
    fn different_excerpts_have_different_keys() {
        let (graph, [a, exp, b, sum]) = graph(2);
        let key = whole(&graph, &[a, exp, b, sum]).to_key();
        let mut cut = Excerpt::new(&graph);
        cut.push_leaf(exp, 0);
        cut.push(graph.maker_index(b), Some(0));
        cut.push(graph.maker_index(sum), None);
        cut.outputs = vec![cut.named(sum)];
        assert_eq!(cut.to_graph().to_string().lines().last(), Some("%2 = add(%0, %1) : f32[2]"));
        assert_eq!(cut.nodes().collect::<Vec<_>>(), [exp, b, sum].map(|value| graph.maker_index(value)));
        let (mut outputs, mut assigns, mut leaf) =
            (whole(&graph, &[a, exp, b, sum]), whole(&graph, &[a, exp, b, sum]), whole(&graph, &[a, exp, b, sum]));
        outputs.outputs.push(outputs.named(exp));
        assigns.assigns.push((0, assigns.named(sum)));
        leaf.entries[0] = Entry::Numbered(graph.maker_index(a), 1);
        for other in [cut, outputs, assigns, leaf] {
            assert!(!other.is(&key));
        }
    }
}
