//! Lets each reader of a mean over ranks divide the sum by itself. A mean with two readers, such as a gradient that is
//! clipped, would otherwise be stored beside the sum.

use crate::graph::{Graph, Node, Source, ValueId};
use crate::ops::{Op, Pointwise};

/// Gives each reader of a sum that is multiplied by a constant its own product. Returns the new graph, and the names of
/// the roots in it.
pub(super) fn means(graph: Graph, roots: Vec<ValueId>) -> (Graph, Vec<ValueId>) {
    if !graph.nodes().iter().any(is_sum) {
        return (graph, roots);
    }
    let mut out = Graph::default();
    // For each value, its name in the new graph, or the product to compute anew.
    let mut renamed: Vec<Result<ValueId, Node>> = Vec::with_capacity(graph.values());
    let read = |out: &mut Graph, renamed: &[Result<ValueId, Node>], value: ValueId| match &renamed[value.index()] {
        Ok(value) => *value,
        Err(mean) => out.push(mean.source.clone(), mean.inputs.clone(), mean.types.clone()),
    };
    for node in graph.nodes() {
        let inputs = node.inputs.iter().map(|&input| read(&mut out, &renamed, input)).collect();
        if is_mean(&graph, node) {
            renamed.push(Err(Node { inputs, ..node.clone() }));
            continue;
        }
        let first = out.push(node.source.clone(), inputs, node.types.iter().copied());
        renamed.extend(node.outputs().zip(first.0..).map(|(_, value)| Ok(ValueId(value))));
    }
    let roots = roots.iter().map(|&root| read(&mut out, &renamed, root)).collect();
    (out, roots)
}

fn is_sum(node: &Node) -> bool {
    matches!(&node.source, Source::Op(Op::Kernel(op)) if op.collective().is_some())
}

fn is_mean(graph: &Graph, node: &Node) -> bool {
    let [x, factor] = node.inputs[..] else { return false };
    matches!(node.source, Source::Op(Op::Pointwise(Pointwise::Mul)))
        && is_sum(graph.maker(x))
        && matches!(graph.maker(factor).source, Source::Const(_))
}
