//! A function recorded like a [compiled](super::compile) one, for conversion to a form other than a plan.

use std::panic::Location;
use std::sync::Arc;

use super::signature::{Inputs, Outputs};
use super::subgraph::SubgraphLeaf;
use super::{Leaf, Tape};
use crate::error::here;
use crate::graph::{Graph, ValueId};
use crate::host::HostWord;
use crate::param::Cell;
use crate::{Device, Result, Tensor, TensorType};

/// A recorded function, reduced to the nodes that its results depend on.
#[derive(Debug)]
pub struct Trace {
    pub graph: Graph,
    /// The caller's line behind each node.
    pub origins: Vec<&'static Location<'static>>,
    /// The leaves of the graph, by number.
    pub leaves: Vec<TraceLeaf>,
    /// The host words of the graph, by number.
    pub host: Vec<HostWord>,
    pub outputs: Vec<ValueId>,
}

/// The source of a leaf's numbers.
#[derive(Debug)]
pub enum TraceLeaf {
    /// This input.
    Input(usize),
    /// A tensor that the function captures.
    Tensor(Tensor),
    /// A parameter or a buffer.
    Cell(Arc<Cell>),
}

impl Trace {
    /// Records a function of inputs with these types, which may differ from those declared in `inputs`.
    #[track_caller]
    #[doc(hidden)]
    pub fn record<I: Inputs, O: Outputs>(
        device: &Device,
        inputs: &I,
        types: &[TensorType],
        function: impl FnOnce(&I::Vars) -> O,
    ) -> Result<Self> {
        let tape = Tape::inference(device);
        let outputs = function(&inputs.vars(&mut tape.declare_all(types)?.into_iter())).vars()?;
        here(|| {
            let wanted = outputs.iter().map(|y| tape.own(y)).collect::<Result<Vec<_>>>()?;
            let recording = tape.recording.borrow();
            let part = recording.part(&wanted, &[], []);
            let leaf = |leaf: &SubgraphLeaf| match *leaf {
                SubgraphLeaf::Leaf(leaf) => match &recording.leaves[leaf] {
                    Leaf::Input(tensor) => TraceLeaf::Tensor(tensor.clone()),
                    Leaf::Cell { cell, .. } => TraceLeaf::Cell(Arc::clone(cell)),
                    Leaf::Declared { input, .. } => TraceLeaf::Input(*input),
                },
                SubgraphLeaf::Known(_) => unreachable!("nothing is known"),
            };
            Ok(Self {
                graph: part.excerpt.to_graph(),
                origins: recording.part_origins(&part),
                leaves: part.leaves.iter().map(leaf).collect(),
                host: part.host.clone(),
                outputs: part.excerpt.outputs.clone(),
            })
        })
    }
}
