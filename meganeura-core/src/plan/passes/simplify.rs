//! Removes dead nodes, folds constants, drops operations without effect, and merges equal ones.

use std::collections::HashMap;

use crate::Layout;
use crate::graph::{Exact, Graph, Node, Operands, Source, ValueId};
use crate::ops::{Op, Types, View};

/// Simplifies the computation of `roots`; returns the new graph, and the names of the roots in it.
pub(super) fn simplify(graph: &Graph, roots: &[ValueId]) -> (Graph, Vec<ValueId>) {
    let live = live_nodes(graph, roots);
    let mut out = Graph::default();
    let mut renamed: Vec<Option<ValueId>> = vec![None; graph.values()];
    let mut seen: HashMap<(Source, Operands, Types), ValueId> = HashMap::new();
    for (node, _) in graph.nodes().iter().zip(&live).filter(|(_, live)| **live) {
        // A removed node need not be waited for.
        let inputs: Operands = node.inputs.iter().filter_map(|v| renamed[v.index()]).collect();
        if let Some(same) = without_effect(&out, node, &inputs) {
            renamed[node.first.index()] = Some(same);
            continue;
        }
        let (source, inputs) = match folded(&out, node, &inputs) {
            Some(value) => (Source::Const(Exact(value)), Operands::new()),
            None => (node.source.clone(), inputs),
        };
        let first = *seen
            .entry((source, inputs, node.types.clone()))
            .or_insert_with_key(|(source, inputs, types)| out.push(source.clone(), inputs.clone(), types.clone()));
        for (offset, value) in (0..).zip(node.outputs()) {
            renamed[value.index()] = Some(ValueId(first.0 + offset));
        }
    }
    let roots = roots.iter().map(|v| renamed[v.index()].expect("roots are live")).collect();
    (out, roots)
}

fn live_nodes(graph: &Graph, roots: &[ValueId]) -> Vec<bool> {
    let mut live = vec![false; graph.nodes().len()];
    for &root in roots {
        live[graph.maker_index(root)] = true;
    }
    for index in (0..live.len()).rev().collect::<Vec<_>>() {
        if live[index] {
            for &input in graph.nodes()[index].read() {
                live[graph.maker_index(input)] = true;
            }
        }
    }
    live
}

fn constant(graph: &Graph, value: ValueId) -> Option<f64> {
    match graph.maker(value).source {
        Source::Const(Exact(value)) => Some(value),
        _ => None,
    }
}

/// The operand that a node's result is identical to.
fn without_effect(graph: &Graph, node: &Node, inputs: &[ValueId]) -> Option<ValueId> {
    match &node.source {
        // Merging a recomputed value with its original would keep the original instead.
        Source::Op(Op::View(View::After)) => constant(graph, inputs[0]).map(|_| inputs[0]),
        Source::Op(Op::View(view)) => {
            let layout = Layout::contiguous(graph.ty(inputs[0]).shape);
            (view.layout(&layout) == Some(layout)).then_some(inputs[0])
        }
        Source::Op(Op::Pointwise(op)) => {
            let constants: Vec<_> = inputs.iter().map(|&v| constant(graph, v)).collect();
            op.neutral(&constants).map(|operand| inputs[operand])
        }
        _ => None,
    }
}

/// The number that fills a node's result, if it is known at planning time. Infinities and NaN are not folded: the
/// device's own arithmetic gives them.
fn folded(graph: &Graph, node: &Node, inputs: &[ValueId]) -> Option<f64> {
    let constants: Vec<_> = inputs.iter().map(|&v| constant(graph, v)).collect::<Option<_>>()?;
    match &node.source {
        Source::Op(Op::View(_)) => Some(constants[0]),
        Source::Op(Op::Pointwise(op)) => {
            let operands: Vec<_> = constants.iter().map(std::slice::from_ref).collect();
            let mut result = [0.0];
            op.eval::<f64, pulp::Scalar>(&operands, &mut result);
            result[0].is_finite().then_some(result[0])
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Pointwise;
    use crate::{DType, Shape, TensorType};

    fn ty(dims: &[usize]) -> TensorType {
        TensorType::new(DType::F32, Shape::new(dims))
    }

    #[test]
    fn folds_drops_and_merges() {
        let mut graph = Graph::default();
        let x = graph.push(Source::Leaf(0), [], [ty(&[2, 3])]);
        let unused = graph.push(Source::Op(Pointwise::Exp.into()), [x], [ty(&[2, 3])]);
        let half = graph.push(Source::Const(Exact(0.5)), [], [ty(&[])]);
        let one = graph.push(Source::Op(Pointwise::Add.into()), [half, half], [ty(&[])]);
        let ones = graph.push(Source::Op(View::Expand(Shape::from([2, 3])).into()), [one], [ty(&[2, 3])]);
        let same = graph.push(Source::Op(Pointwise::Mul.into()), [x, ones], [ty(&[2, 3])]);
        let a = graph.push(Source::Op(Pointwise::Tanh.into()), [same], [ty(&[2, 3])]);
        let b = graph.push(Source::Op(Pointwise::Tanh.into()), [x], [ty(&[2, 3])]);
        let sum = graph.push(Source::Op(Pointwise::Add.into()), [a, b], [ty(&[2, 3])]);
        let (out, roots) = simplify(&graph, &[sum]);
        assert!(unused < half);
        let names: Vec<_> = out.to_string().lines().map(str::to_owned).collect();
        // Folding leaves unused constants behind, which cost nothing.
        assert!(names[1..4].iter().all(|line| line.contains(" = const ")), "{out}");
        assert_eq!(names[4..], ["%4 = tanh(%0) : f32[2, 3]", "%5 = add(%4, %4) : f32[2, 3]"]);
        assert_eq!(roots, [ValueId(5)]);
    }

    #[test]
    fn recomputed_values_are_not_merged() {
        let mut graph = Graph::default();
        let x = graph.push(Source::Leaf(0), [], [ty(&[2])]);
        let a = graph.push(Source::Op(Pointwise::Tanh.into()), [x], [ty(&[2])]);
        let late = graph.push(Source::Op(View::After.into()), [x, a], [ty(&[2])]);
        let b = graph.push(Source::Op(Pointwise::Tanh.into()), [late], [ty(&[2])]);
        let (out, roots) = simplify(&graph, &[a, b]);
        assert_ne!(roots[0], roots[1], "{out}");
        // Here the value that it waits for is not an output.
        let (out, roots) = simplify(&graph, &[b]);
        assert_eq!((roots.len(), out.to_string().matches("tanh").count()), (1, 1), "{out}");
        let constant = graph.push(Source::Const(Exact(0.5)), [], [ty(&[2])]);
        let late = graph.push(Source::Op(View::After.into()), [constant, a], [ty(&[2])]);
        let (out, roots) = simplify(&graph, &[late]);
        assert!(matches!(out.maker(roots[0]).source, Source::Const(_)), "{out}");
    }

    #[test]
    fn infinite_results_are_not_folded() {
        let mut graph = Graph::default();
        let zero = graph.push(Source::Const(Exact(0.0)), [], [ty(&[])]);
        let log = graph.push(Source::Op(Pointwise::Log.into()), [zero], [ty(&[])]);
        let (out, roots) = simplify(&graph, &[log]);
        assert!(matches!(out.maker(roots[0]).source, Source::Op(_)));
    }
}
