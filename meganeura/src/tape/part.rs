//! The part of a recording that one run computes: what is wanted, back to leaves and to values that are known.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::Arc;

use super::Recording;
use crate::Tensor;
use crate::graph::{Node, Source, ValueId};
use crate::host::HostWord;
use crate::plan::Excerpt;

/// An excerpt of the recording, in its order: two passes of the same structure are the same to the device, whatever
/// else is on their tapes.
pub(super) struct Part<'a> {
    pub(super) excerpt: Excerpt<'a>,
    pub(super) leaves: Vec<PartLeaf>,
    pub(super) host: Vec<HostWord>,
    /// The number that each of these words has in the recording.
    pub(super) words: Vec<usize>,
}

/// Where the tensor of a part's leaf comes from.
#[derive(Clone, Copy)]
pub(super) enum PartLeaf {
    /// A leaf of the recording.
    Leaf(usize),
    /// A value of the recording that an earlier run computed.
    Known(ValueId),
}

impl Part<'_> {
    /// The number of a new leaf.
    fn leaf(&mut self, leaf: PartLeaf) -> usize {
        self.leaves.push(leaf);
        self.leaves.len() - 1
    }
}

impl Recording {
    /// The part that computes `outputs`, and the values that leaves of the recording are to become. `known` values are
    /// leaves of it.
    pub(super) fn part(
        &self,
        outputs: &[ValueId],
        assigns: &[(usize, ValueId)],
        known: &HashMap<ValueId, Tensor>,
    ) -> Part<'_> {
        let roots = || outputs.iter().chain(assigns.iter().map(|(_, value)| value)).copied();
        let mut is_known = vec![false; self.graph.values()];
        known.keys().for_each(|value| is_known[value.index()] = true);
        let wanted = self.wanted(roots(), &is_known);
        let mut part =
            Part { excerpt: Excerpt::new(&self.graph), leaves: Vec::new(), host: Vec::new(), words: Vec::new() };
        // By leaf of the recording.
        let mut numbers: Vec<Option<usize>> = vec![None; self.leaves.len()];
        let end = roots().map(|root| self.graph.maker_index(root) + 1).max().unwrap_or(0);
        for (at, node) in self.graph.nodes()[..end].iter().enumerate() {
            if node.outputs().any(|value| wanted[value.index()] && !is_known[value.index()]) {
                let number = match &node.source {
                    Source::Leaf(leaf) => {
                        numbers[*leaf] = Some(part.leaf(PartLeaf::Leaf(*leaf)));
                        numbers[*leaf]
                    }
                    Source::Host(at) => {
                        let (first, words) = (part.host.len(), self.words(*at, node));
                        part.host.extend_from_slice(words);
                        part.words.extend(*at..*at + words.len());
                        Some(first)
                    }
                    Source::Const(_) | Source::Op(_) => None,
                };
                part.excerpt.push(at, number);
            }
            for value in node.outputs().filter(|value| wanted[value.index()] && is_known[value.index()]) {
                let number = part.leaf(PartLeaf::Known(value));
                part.excerpt.push_leaf(value, number);
            }
        }
        part.excerpt.outputs = outputs.iter().map(|&value| part.excerpt.named(value)).collect();
        for &(leaf, value) in assigns {
            let number = numbers[leaf].unwrap_or_else(|| part.leaf(PartLeaf::Leaf(leaf)));
            part.excerpt.assigns.push((number, part.excerpt.named(value)));
        }
        part
    }

    /// The words of the host that a node of [`Source::Host`] is.
    pub(super) fn words(&self, at: usize, node: &Node) -> &[HostWord] {
        &self.host[at..at + node.types[0].shape.elements()]
    }

    /// For each value, whether `roots` need it.
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

    /// Where a leaf of a part stands in its model, if it is a parameter that knows.
    pub(super) fn leaf_path(&self, leaf: PartLeaf) -> Option<Arc<str>> {
        match leaf {
            PartLeaf::Leaf(leaf) => self.leaves[leaf].path(),
            PartLeaf::Known(_) => None,
        }
    }

    /// The caller's line behind each node of a part.
    pub(super) fn part_origins(&self, part: &Part<'_>) -> Vec<&'static Location<'static>> {
        part.excerpt.nodes().map(|node| self.origins[node]).collect()
    }
}
