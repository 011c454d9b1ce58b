//! The structure of a computation: nodes, their operands and types. Pure data, without values or devices.
//!
//! A tape records into a graph; a plan is made from a graph and cached under it. Two steps with equal graphs share a
//! plan, so a graph must not contain anything that changes from step to step: the caller's numbers are [`Source::Host`]
//! slots.

use std::fmt;
use std::hash::Hash;

use smallvec::SmallVec;

use crate::TensorType;
pub use crate::ops::Exact;
use crate::ops::{Op, Types};

/// The name of a value in a graph: one output of one node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub(crate) u32);

impl ValueId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Debug for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// The source of a node's values.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// Tensor number `.0` from the caller: an input, a parameter, an optimizer's state.
    Leaf(usize),
    /// Words from number `.0` on in the block of small numbers that the host sends with each run, such as a learning
    /// rate or a seed.
    Host(usize),
    /// A constant that fills the value.
    Const(Exact),
    /// An operation on other values.
    Op(Op),
    /// The operand, stored anew in a format of its own. Only the graphs of plans have this.
    Converted,
}

/// The operands of a node. Few nodes have more than four.
pub(crate) type Operands = SmallVec<[ValueId; 4]>;

/// One step of a computation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Node {
    pub source: Source,
    pub inputs: Operands,
    /// Output `k` of this node is value `first + k`.
    pub(crate) first: ValueId,
    pub types: Types,
}

impl Node {
    /// The operands whose values it needs; for a view, only the value that it shows.
    pub(crate) fn read(&self) -> &[ValueId] {
        match self.source {
            Source::Op(Op::View(_)) => &self.inputs[..1],
            _ => &self.inputs,
        }
    }

    pub fn outputs(&self) -> impl Iterator<Item = ValueId> + use<> {
        let first = self.first.0;
        (first..first + u32::try_from(self.types.len()).expect("nodes have few outputs")).map(ValueId)
    }
}

/// Nodes in topological order, operands first.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Graph {
    nodes: Vec<Node>,
    /// For each value, the node that computes it.
    makers: Vec<u32>,
}

impl Graph {
    /// Appends a node; its operands must be in the graph. Returns its first value.
    pub(crate) fn push(
        &mut self,
        source: Source,
        inputs: impl IntoIterator<Item = ValueId>,
        types: impl IntoIterator<Item = TensorType>,
    ) -> ValueId {
        let (inputs, types): (Operands, Types) = (inputs.into_iter().collect(), types.into_iter().collect());
        debug_assert!(inputs.iter().all(|v| v.index() < self.makers.len()), "operands come first");
        let first = ValueId(u32::try_from(self.makers.len()).expect("fewer than 2^32 values"));
        let maker = u32::try_from(self.nodes.len()).expect("fewer than 2^32 nodes");
        self.makers.extend(types.iter().map(|_| maker));
        self.nodes.push(Node { source, inputs, first, types });
        first
    }

    /// The nodes, for building another graph.
    pub(crate) fn into_nodes(self) -> Vec<Node> {
        self.nodes
    }

    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub fn values(&self) -> usize {
        self.makers.len()
    }

    /// The index of the node that computes a value.
    pub fn maker_index(&self, value: ValueId) -> usize {
        self.makers[value.index()] as usize
    }

    pub fn maker(&self, value: ValueId) -> &Node {
        &self.nodes[self.maker_index(value)]
    }

    pub fn ty(&self, value: ValueId) -> TensorType {
        let node = self.maker(value);
        node.types[value.index() - node.first.index()]
    }
}

impl fmt::Display for Node {
    /// `%7 = conv2d { attributes }(%1, %4) : f32[64, 16, 8, 8]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outputs: Vec<_> = self.outputs().map(|v| format!("{v:?}")).collect();
        let inputs: Vec<_> = self.inputs.iter().map(|v| format!("{v:?}")).collect();
        let types: Vec<_> = self.types.iter().map(ToString::to_string).collect();
        write!(f, "{} = ", outputs.join(", "))?;
        match &self.source {
            Source::Leaf(k) => write!(f, "leaf {k}")?,
            Source::Host(k) => write!(f, "host {k}")?,
            Source::Const(Exact(value)) => write!(f, "const {value}")?,
            Source::Op(op) => write!(f, "{op}({})", inputs.join(", "))?,
            Source::Converted => write!(f, "convert({})", inputs.join(", "))?,
        }
        write!(f, " : {}", types.join(", "))
    }
}

impl fmt::Display for Graph {
    /// One line a node.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.nodes.iter().try_for_each(|node| writeln!(f, "{node}"))
    }
}
