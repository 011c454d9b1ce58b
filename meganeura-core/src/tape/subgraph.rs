//! The part of a recording that one run computes: from the wanted values back to leaves and known values.

use std::panic::Location;
use std::sync::Arc;

use super::TapeState;
use crate::graph::{Node, Source, ValueId};
use crate::host::HostWord;
use crate::plan::Excerpt;

/// An excerpt of the recording, in its order. Passes with the same structure share a plan, even if the rest of their
/// tapes differs.
pub(super) struct Subgraph<'a> {
    pub(super) excerpt: Excerpt<'a>,
    pub(super) leaves: Vec<SubgraphLeaf>,
    pub(super) host: Vec<HostWord>,
    /// For each of these words, its number in the recording.
    pub(super) words: Vec<usize>,
}

/// The source of the tensor of a part's leaf.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SubgraphLeaf {
    /// A leaf of the recording.
    Leaf(usize),
    /// A value of the recording that an earlier run computed.
    Known(ValueId),
}

impl Subgraph<'_> {
    /// Adds a leaf and returns its number.
    fn leaf(&mut self, leaf: SubgraphLeaf) -> usize {
        self.leaves.push(leaf);
        self.leaves.len() - 1
    }
}

impl TapeState {
    /// The part that computes `outputs` and the new values of leaves. Known values become leaves.
    pub(super) fn part(
        &self,
        outputs: &[ValueId],
        assigns: &[(usize, ValueId)],
        known: impl IntoIterator<Item = ValueId>,
    ) -> Subgraph<'_> {
        let roots = || outputs.iter().chain(assigns.iter().map(|(_, value)| value)).copied();
        let mut is_known = vec![false; self.graph.values()];
        known.into_iter().for_each(|value| is_known[value.index()] = true);
        let wanted = self.wanted(roots(), &is_known);
        let mut part =
            Subgraph { excerpt: Excerpt::new(&self.graph), leaves: Vec::new(), host: Vec::new(), words: Vec::new() };
        // Indexed by leaf of the recording.
        let mut numbers: Vec<Option<usize>> = vec![None; self.leaves.len()];
        let end = roots().map(|root| self.graph.maker_index(root) + 1).max().unwrap_or(0);
        for (at, node) in self.graph.nodes()[..end].iter().enumerate() {
            if node.outputs().any(|value| wanted[value.index()] && !is_known[value.index()]) {
                let number = match &node.source {
                    Source::Leaf(leaf) => {
                        numbers[*leaf] = Some(part.leaf(SubgraphLeaf::Leaf(*leaf)));
                        numbers[*leaf]
                    }
                    Source::Host(at) => {
                        let (first, words) = (part.host.len(), self.words(*at, node));
                        part.host.extend_from_slice(words);
                        part.words.extend(*at..*at + words.len());
                        Some(first)
                    }
                    Source::Const(_) | Source::Op(_) | Source::Converted => None,
                };
                part.excerpt.push(at, number);
            }
            for value in node.outputs().filter(|value| wanted[value.index()] && is_known[value.index()]) {
                let number = part.leaf(SubgraphLeaf::Known(value));
                part.excerpt.push_leaf(value, number);
            }
        }
        part.excerpt.outputs = outputs.iter().map(|&value| part.excerpt.named(value)).collect();
        for &(leaf, value) in assigns {
            let number = numbers[leaf].unwrap_or_else(|| part.leaf(SubgraphLeaf::Leaf(leaf)));
            part.excerpt.assigns.push((number, part.excerpt.named(value)));
        }
        part
    }

    /// The host words of a [`Source::Host`] node.
    pub(super) fn words(&self, at: usize, node: &Node) -> &[HostWord] {
        &self.host[at..at + node.types[0].shape.elements()]
    }

    /// For each value, `true` if `roots` need it.
    fn wanted(&self, roots: impl Iterator<Item = ValueId>, is_known: &[bool]) -> Vec<bool> {
        let mut wanted = vec![false; self.graph.values()];
        roots.for_each(|root| wanted[root.index()] = true);
        for node in self.graph.nodes().iter().rev() {
            if node.outputs().any(|value| wanted[value.index()] && !is_known[value.index()]) {
                node.inputs.iter().for_each(|input| wanted[input.index()] = true);
            }
        }
        wanted
    }

    /// A leaf's path in its model, if it is a parameter or buffer that has one.
    pub(super) fn leaf_path(&self, leaf: SubgraphLeaf) -> Option<Arc<str>> {
        match leaf {
            SubgraphLeaf::Leaf(leaf) => self.leaves[leaf].path(),
            SubgraphLeaf::Known(_) => None,
        }
    }

    /// The caller's line behind each node of a part.
    pub(super) fn part_origins(&self, part: &Subgraph<'_>) -> Vec<&'static Location<'static>> {
        part.excerpt.nodes().map(|node| self.origins[node]).collect()
    }
}
