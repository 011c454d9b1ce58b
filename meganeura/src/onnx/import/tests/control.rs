//! Graphs inside nodes, functions, and nodes in any order.

use super::{Graph, Value, assert_close};
use crate::onnx::import::Model;
use crate::onnx::proto::element::{BOOL, FLOAT, INT64};
use crate::onnx::proto::{self, attribute};
use crate::{Device, ErrorKind, Result};

/// A branch that multiplies `x` by its own constant `c`.
fn times(factor: f64, result: &str) -> Graph {
    Graph::new(21).constant("c", FLOAT, &[], &[factor]).node("Mul", &["x", "c"], &[result], &[]).output(result, FLOAT)
}

/// `x` times 2 or −3, by the condition `on`.
fn branch() -> Graph {
    let branches =
        [("then_branch", Value::Graph(times(2.0, "twice"))), ("else_branch", Value::Graph(times(-3.0, "other")))];
    Graph::new(21).input("x", FLOAT, &[2]).output("y", FLOAT).node("If", &["on"], &["y"], &branches)
}

#[test]
fn branches_have_constants_of_their_own() -> Result<()> {
    for (truth, expected) in [(1.0, [2.0, -4.0]), (0.0, [-3.0, 6.0])] {
        let known = branch().constant("on", BOOL, &[], &[truth]);
        assert_close(&known.numbers(&[&[1.0, -2.0]])?, &expected, "known");
        let read = branch().input("on", BOOL, &[]);
        assert_close(&read.numbers(&[&[1.0, -2.0], &[truth]])?, &expected, "read");
        // Compiled, both sides are computed.
        let model = Model::from_bytes(&Device::cpu(), &read.bytes())?;
        let inputs = [crate::Tensor::from_slice(&Device::cpu(), [2], &[1.0, -2.0])?];
        let on = crate::Tensor::from_bools(&Device::cpu(), crate::Shape::SCALAR, &[truth != 0.0])?;
        let y = model.compile()?.call(&[&inputs[0], &on])?;
        assert_close(&y[0].to_f64_vec()?, &expected, "compiled");
    }
    Ok(())
}

/// `sum ← sum + x·k` for `k` from 0, with all sums as a second result, while the sum is less than a bound.
fn summing() -> Graph {
    let body = Graph::new(21)
        .input("k", INT64, &[])
        .input("on", BOOL, &[])
        .input("sum", FLOAT, &[2])
        .constant("bound", FLOAT, &[], &[20.0])
        .node("CastLike", &["k", "x"], &["factor"], &[])
        .node("Mul", &["x", "factor"], &["part"], &[])
        .node("Add", &["sum", "part"], &["next"], &[])
        .node("ReduceMax", &["next"], &["peak"], &[("keepdims", Value::Int(0))])
        .node("Less", &["peak", "bound"], &["more"], &[])
        .output("more", BOOL)
        .output("next", FLOAT)
        .output("next", FLOAT);
    let body = [("body", Value::Graph(body))];
    Graph::new(21)
        .input("x", FLOAT, &[2])
        .output("last", FLOAT)
        .output("all", FLOAT)
        .constant("zeros", FLOAT, &[2], &[0.0, 0.0])
        .node("Loop", &["count", "", "zeros"], &["last", "all"], &body)
}

#[test]
fn loops_go_on_while_their_condition_holds() -> Result<()> {
    let counted = |count: f64| summing().constant("count", INT64, &[], &[count]);
    let results = counted(3.0).run(&[&[1.0, 2.0]])?;
    assert_close(&results[0].1, &[3.0, 6.0], "three steps");
    assert_eq!(results[1].0.dims(), [3, 2]);
    assert_close(&results[1].1, &[0.0, 0.0, 1.0, 2.0, 3.0, 6.0], "all sums");
    // 0, 2, 6, 12, 20: the fifth step is the last.
    assert_close(&counted(100.0).run(&[&[1.0, 2.0]])?[0].1, &[10.0, 20.0], "until the bound");
    let read = summing().input("count", INT64, &[]);
    assert_close(&read.run(&[&[1.0, 2.0], &[3.0]])?[0].1, &[3.0, 6.0], "a count that is read");
    let error = Model::from_bytes(&Device::cpu(), &read.bytes())?.compile().expect_err("the count is open");
    assert_eq!(error.kind(), ErrorKind::Checkpoint);
    assert!(error.to_string().contains("node `last` (Loop): `count` decides what is computed"), "{error}");
    let error = counted(0.0).error(&[&[1.0, 2.0]]);
    assert!(error.to_string().contains("a loop without any step"), "{error}");
    // A loop is charged for what it records.
    let endless = Graph::new(21).input("x", FLOAT, &[2]).output("y", FLOAT).constant("count", INT64, &[], &[1e9]).node(
        "Loop",
        &["count", "", "x"],
        &["y"],
        &[(
            "body",
            Value::Graph(
                Graph::new(21)
                    .input("k", INT64, &[])
                    .input("on", BOOL, &[])
                    .input("v", FLOAT, &[2])
                    .node("Identity", &["on"], &["same"], &[])
                    .node("Identity", &["v"], &["w"], &[])
                    .output("same", BOOL)
                    .output("w", FLOAT),
            ),
        )],
    );
    let error = endless.error(&[&[1.0, 2.0]]);
    assert!(error.to_string().contains("of the limit for this file"), "{error}");
    Ok(())
}

#[test]
fn nodes_are_sorted() -> Result<()> {
    let graph = Graph::new(21).input("x", FLOAT, &[2]).output("y", FLOAT);
    let unsorted = graph.clone().node("Neg", &["t"], &["y"], &[]).node("Add", &["x", "x"], &["t"], &[]);
    assert_close(&unsorted.numbers(&[&[1.0, -2.0]])?, &[-2.0, 4.0], "unsorted");
    let circle = graph.node("Add", &["x", "t"], &["y"], &[]).node("Neg", &["y"], &["t"], &[]);
    let error = circle.error(&[&[1.0, -2.0]]);
    assert!(error.to_string().contains("which no earlier node computes"), "{error}");
    Ok(())
}

#[test]
fn faults_inside_are_named() {
    let inside = |node: fn(Graph) -> Graph| {
        let body = node(Graph::new(21)).output("t", FLOAT);
        let branches = [("then_branch", Value::Graph(body)), ("else_branch", Value::Graph(times(1.0, "e")))];
        let graph = Graph::new(21).input("x", FLOAT, &[2]).output("y", FLOAT);
        graph.constant("on", BOOL, &[], &[1.0]).node("If", &["on"], &["y"], &branches).error(&[&[1.0, 2.0]]).to_string()
    };
    let error = inside(|graph| graph.node("Nonsense", &["x"], &["t"], &[]));
    assert!(error.contains("node `t` (Nonsense): the operator `Nonsense` is not supported"), "{error}");
    let error = inside(|graph| graph.node("Relu", &["x"], &["t"], &[("axis", Value::Int(1))]));
    assert!(error.contains("node `y` (If)") && error.contains("node `t` (Relu): the attribute `axis`"), "{error}");
    let error = inside(|graph| graph.node("Relu", &["missing"], &["t"], &[]));
    assert!(error.contains("node `t` (Relu): it takes `missing`"), "{error}");
}

#[test]
fn functions_become_their_nodes() -> Result<()> {
    let bent = |alpha: Option<f32>| {
        let attributes: Vec<_> = alpha.into_iter().map(|alpha| ("slope", Value::Float(alpha))).collect();
        let mut graph =
            Graph::new(21).input("x", FLOAT, &[2]).output("y", FLOAT).node("Bent", &["x"], &["y"], &attributes);
        graph.graph.node[0].domain = "own".into();
        let mut inner =
            Graph::new(21).node("Neg", &["a"], &["t"], &[]).node("LeakyRelu", &["t"], &["b"], &[]).graph.node;
        inner[1].attribute.push(proto::Attribute {
            name: "alpha".into(),
            ref_attr_name: "slope".into(),
            kind: attribute::FLOAT,
            ..proto::Attribute::default()
        });
        graph.functions.push(proto::Function {
            name: "Bent".into(),
            domain: "own".into(),
            input: vec!["a".into()],
            output: vec!["b".into()],
            attribute: vec!["slope".into()],
            node: inner,
            ..proto::Function::default()
        });
        graph
    };
    assert_close(&bent(Some(0.5)).numbers(&[&[1.0, -2.0]])?, &[-0.5, 2.0], "with the attribute");
    assert_close(&bent(None).numbers(&[&[1.0, -2.0]])?, &[-0.01, 2.0], "without it");
    let mut calls_itself = bent(None);
    calls_itself.functions[0].node[0].op_type = "Bent".into();
    calls_itself.functions[0].node[0].domain = "own".into();
    let error = calls_itself.error(&[&[1.0, -2.0]]);
    assert!(error.to_string().contains("nested more than") || error.to_string().contains("too many nodes"), "{error}");
    let mut wrong = bent(Some(0.5));
    wrong.graph.node[0].attribute[0].name = "steep".into();
    let error = wrong.error(&[&[1.0, -2.0]]);
    assert!(error.to_string().contains("node `y` (Bent): its function has no attribute `steep`"), "{error}");
    Ok(())
}

#[test]
fn a_graph_is_recorded_for_each_tensor_of_a_sequence() -> Result<()> {
    let body = Graph::new(21)
        .input("part", FLOAT, &[1, 2])
        .input("scale", FLOAT, &[])
        .node("Mul", &["part", "scale"], &["scaled"], &[])
        .node("ReduceSum", &["scaled"], &["sum"], &[("keepdims", Value::Int(0))])
        .output("scaled", FLOAT)
        .output("sum", FLOAT);
    let axis = |new: i64| [("axis", Value::Int(0)), ("new_axis", Value::Int(new))];
    let graph = Graph::new(21)
        .input("x", FLOAT, &[3, 2])
        .output("y", FLOAT)
        .output("sums", FLOAT)
        .constant("k", FLOAT, &[], &[3.0])
        .node("SplitToSequence", &["x"], &["parts"], &[])
        .node("SequenceMap", &["parts", "k"], &["scaled", "each"], &[("body", Value::Graph(body))])
        .node("ConcatFromSequence", &["scaled"], &["y"], &axis(0))
        .node("ConcatFromSequence", &["each"], &["sums"], &axis(1));
    let results = graph.run(&[&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])?;
    assert_close(&results[0].1, &[3.0, 6.0, 9.0, 12.0, 15.0, 18.0], "parts");
    assert_close(&results[1].1, &[9.0, 21.0, 33.0], "sums");
    Ok(())
}

#[test]
fn sequences_are_told_from_tensors() {
    let graph = || Graph::new(21).input("x", FLOAT, &[3, 2]).output("y", FLOAT).ints("three", &[3.0]);
    let parts = || graph().node("SplitToSequence", &["x"], &["parts"], &[]);
    for (graph, expected) in [
        (parts().node("Relu", &["parts"], &["y"], &[]), "(Relu): operand 0 is a sequence, not a tensor"),
        (graph().node("SequenceAt", &["x", "three"], &["y"], &[]), "operand 0 is a tensor, not a sequence"),
        (parts().node("SequenceAt", &["parts", "three"], &["y"], &[]), "place 3 of a sequence of 3 tensors"),
        (
            parts().node("SequenceInsert", &["parts", "three"], &["y"], &[]),
            "a tensor of int64 into a sequence of float",
        ),
        (graph().node("SplitToSequence", &["x", "three"], &["y"], &[]), "output y: float[…] is computed as a sequence"),
        (graph().node("Optional", &[], &["y"], &[]), "output y: float[…] is left out"),
    ] {
        let error = graph.error(&[&[0.0; 6]]).to_string();
        assert!(error.contains(expected), "{error}");
    }
}
