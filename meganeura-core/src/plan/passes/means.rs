//! Lets each reader of a mean over ranks divide the sum itself. A mean with two readers, such as a gradient that is
//! clipped, would otherwise be stored beside the sum.

use std::collections::HashMap;

use crate::graph::{Graph, Node, Operands, Source, ValueId};
use crate::ops::{Op, Pointwise};

/// Gives each pointwise reader of a sum that is multiplied by a constant its own product; other readers share one.
/// Returns the new graph, and the names of the roots in it.
pub(super) fn means(graph: Graph, roots: Vec<ValueId>) -> (Graph, Vec<ValueId>) {
    if !graph.nodes().iter().any(is_sum) {
        return (graph, roots);
    }
    let mut out = Graph::default();
    // A product has a name once it is shared.
    let mut renamed: Vec<Option<ValueId>> = Vec::with_capacity(graph.values());
    let mut means: HashMap<ValueId, Node> = HashMap::new();
    let read = |out: &mut Graph, renamed: &mut [Option<ValueId>], mean: Option<&Node>, value: ValueId, shares: bool| {
        let name = &mut renamed[value.index()];
        match (mean, *name) {
            (Some(mean), known) if known.is_none() || !shares => {
                let product = out.push(mean.source.clone(), mean.inputs.clone(), mean.types.clone());
                if shares {
                    *name = Some(product);
                }
                product
            }
            (_, known) => known.expect("operands come first"),
        }
    };
    for node in graph.nodes() {
        let shares = !matches!(node.source, Source::Op(Op::Pointwise(_)));
        let read = |&input: &ValueId| read(&mut out, &mut renamed, means.get(&input), input, shares);
        let inputs: Operands = node.inputs.iter().map(read).collect();
        if is_mean(&graph, node) {
            renamed.push(None);
            means.insert(node.first, Node { inputs, ..node.clone() });
            continue;
        }
        let first = out.push(node.source.clone(), inputs, node.types.iter().copied());
        renamed.extend((first.0..).zip(node.outputs()).map(|(value, _)| Some(ValueId(value))));
    }
    let read = |&root: &ValueId| read(&mut out, &mut renamed, means.get(&root), root, true);
    let roots = roots.iter().map(read).collect();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Exact;
    use crate::ops::{CollectiveOp, View};
    use crate::world::{Collective, World};
    use crate::{DType, Shape, TensorType};

    #[test]
    fn pointwise_readers_have_products_of_their_own() {
        let ty = |dims: &[usize]| TensorType::new(DType::F32, Shape::new(dims));
        let mut g = Graph::default();
        let op = |g: &mut Graph, op: Op, inputs: &[ValueId], dims: &[usize]| {
            g.push(Source::Op(op), inputs.iter().copied(), [ty(dims)])
        };
        let x = g.push(Source::Leaf(0), [], [ty(&[2, 3])]);
        let half = g.push(Source::Const(Exact(0.5)), [], [ty(&[2, 3])]);
        let all = CollectiveOp { world: World::of_two(), collective: Collective::AllReduce, rounded: false };
        let sum = op(&mut g, all.into(), &[x], &[2, 3]);
        let mean = op(&mut g, Pointwise::Mul.into(), &[sum, half], &[2, 3]);
        let other = op(&mut g, Pointwise::Mul.into(), &[x, half], &[2, 3]);
        let readers = [Pointwise::Exp, Pointwise::Tanh].map(|reader| op(&mut g, reader.into(), &[mean], &[2, 3]));
        let views = [&[3, 2][..], &[6]].map(|dims| {
            let view = View::Reshape(Shape::new(dims));
            op(&mut g, view.into(), &[mean], dims)
        });
        let roots = [&readers[..], &views, &[mean, other]].concat();
        let (out, found) = means(g.clone(), roots.clone());
        let products =
            |g: &Graph| g.nodes().iter().filter(|node| node.source == Source::Op(Pointwise::Mul.into())).count();
        // Two for the pointwise readers, one that the views and the caller share, and the one of no sum.
        assert_eq!((products(&g), products(&out)), (2, 4));
        let types = |g: &Graph, values: &[ValueId]| values.iter().map(|&value| g.ty(value)).collect::<Vec<_>>();
        assert_eq!(types(&g, &roots), types(&out, &found));
        let read = |value: ValueId| out.maker(value).inputs[0];
        assert_eq!([read(found[2]), read(found[3])], [found[4]; 2]);
        assert_ne!(read(found[0]), read(found[1]));
    }
}
