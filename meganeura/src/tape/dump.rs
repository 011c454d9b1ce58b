//! Tapes as text. Golden tests compare this text.

use std::fmt;

use super::{Leaf, Tape};

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
        for line in recording.graph.to_string().lines() {
            let leaf = line.split_once(" = leaf ").and_then(|(_, rest)| rest.split(' ').next()?.parse::<usize>().ok());
            match leaf.map(|leaf| &recording.leaves[leaf]) {
                Some(Leaf::Input(_) | Leaf::Declared { .. }) => writeln!(f, "{line}  # input")?,
                Some(Leaf::Cell { cell, .. }) => {
                    let path = cell.path();
                    writeln!(f, "{line}  # {}", path.as_deref().unwrap_or("cell"))?;
                }
                None => writeln!(f, "{line}")?,
            }
        }
        Ok(())
    }
}
