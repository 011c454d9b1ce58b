//! Tapes as Graphviz drawings.

use super::{Leaf, Tape};
use crate::dot::{Dot, Look};
use crate::graph::{Exact, Source};
use crate::ops::Op;

impl Tape {
    /// The recorded graph in Graphviz's language, for `dot -Tsvg tape.dot > tape.svg`.
    ///
    /// Boxes are operations, with their names and the types of their results. Ellipses are inputs, and parameters with
    /// their paths.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let net = Linear::new(4, 2).init(&device, 42)?;
    /// let tape = Tape::new(&device);
    /// let y = net.forward(&tape.input(&Tensor::zeros(&device, [3, 4])?));
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let file = folder.path().join("tape.dot");
    /// # #[cfg(any())]
    /// std::fs::write("tape.dot", tape.to_dot()).unwrap();
    /// # std::fs::write(file, tape.to_dot()).unwrap();
    /// assert!(tape.to_dot().contains("matmul\\nf32[3, 2]"));
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    pub fn to_dot(&self) -> String {
        let recording = self.recording.borrow();
        let mut dot = Dot::new("tape");
        for (number, node) in recording.graph.nodes().iter().enumerate() {
            let (look, name) = match &node.source {
                Source::Leaf(leaf) => {
                    let name = match &recording.leaves[*leaf] {
                        Leaf::Cell { cell, .. } => {
                            cell.path().map_or_else(|| "cell".to_owned(), |path| path.to_string())
                        }
                        Leaf::Input(_) | Leaf::Declared { .. } => "input".to_owned(),
                    };
                    (Look::Data, name)
                }
                Source::Host(_) => (Look::Minor, "host scalar".to_owned()),
                Source::Const(Exact(value)) => (Look::Minor, value.to_string()),
                Source::Op(op @ Op::View(_)) => (Look::Minor, op.name().to_owned()),
                Source::Op(op) => (Look::Work, op.name().to_owned()),
                Source::Converted => (Look::Minor, "convert".to_owned()),
            };
            let lines = std::iter::once(name).chain(node.types.iter().map(ToString::to_string));
            dot.node(&format!("n{number}"), look, &lines.collect::<Vec<_>>());
            for &operand in &node.inputs {
                dot.edge(&format!("n{}", recording.graph.maker_index(operand)), &format!("n{number}"), "");
            }
        }
        dot.finish()
    }
}
