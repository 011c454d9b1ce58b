//! Lets each reader of a mean over ranks divide the sum by itself. A mean with two readers, such as a gradient that is
//! clipped, would otherwise be stored beside the sum.

use std::collections::HashMap;

use crate::graph::{Graph, Node, Operands, Source, ValueId};
use crate::ops::{Op, Pointwise};

/// Gives each reader of a sum that is multiplied by a constant its own product. Returns the new graph, and the names of
/// the roots in it.
pub(super) fn means(graph: Graph, roots: Vec<ValueId>) -> (Graph, Vec<ValueId>) {
    if !graph.nodes().iter().any(is_sum) {
        return (graph, roots);
    }
    let mut out = Graph::default();
    let mut renamed: Vec<ValueId> = Vec::with_capacity(graph.values());
    // The products that each reader computes anew, by value.
    let mut means: HashMap<ValueId, Node> = HashMap::new();
    let read = |out: &mut Graph, renamed: &[ValueId], means: &HashMap<ValueId, Node>, value: ValueId| {
        let Some(mean) = means.get(&value) else { return renamed[value.index()] };
        out.push(mean.source.clone(), mean.inputs.clone(), mean.types.clone())
    };
    for node in graph.nodes() {
        let inputs: Operands = node.inputs.iter().map(|&input| read(&mut out, &renamed, &means, input)).collect();
        if is_mean(&graph, node) {
            renamed.push(inputs[0]);
            means.insert(node.first, Node { inputs, ..node.clone() });
            continue;
        }
        let first = out.push(node.source.clone(), inputs, node.types.iter().copied());
        renamed.extend((first.0..).zip(node.outputs()).map(|(value, _)| ValueId(value)));
    }
    let roots = roots.iter().map(|&root| read(&mut out, &renamed, &means, root)).collect();
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
