//! Tapes as text. Golden tests compare this text.

use std::fmt;

use super::{Leaf, Tape};
use crate::graph::Source;

impl fmt::Debug for Tape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let recording = self.recording.borrow();
        write!(f, "Tape({} nodes on {})", recording.graph.nodes().len(), recording.device)
    }
}

/// The recorded graph, one line per node; parameters are shown with their paths.
impl fmt::Display for Tape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let recording = self.recording.borrow();
        for node in recording.graph.nodes() {
            let Source::Leaf(leaf) = node.source else {
                writeln!(f, "{node}")?;
                continue;
            };
            match &recording.leaves[leaf] {
                Leaf::Input(_) | Leaf::Declared { .. } => writeln!(f, "{node}  # input")?,
                Leaf::Cell { cell, .. } => {
                    let path = cell.path();
                    writeln!(f, "{node}  # {}", path.as_deref().unwrap_or("cell"))?;
                }
            }
        }
        Ok(())
    }
}
