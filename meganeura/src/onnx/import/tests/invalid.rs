//! Models that are refused, with the node's name.

use super::{Graph, Value};
use crate::onnx::proto::element::*;

fn refused(graph: &Graph, inputs: &[&[f64]], messages: &[&str]) {
    let error = graph.error(inputs);
    for message in messages {
        assert!(error.to_string().contains(message), "{error}\nwithout {message}");
    }
}

/// A node on one input of these extents.
fn on(dims: &[i64], opset: i64) -> Graph {
    Graph::new(opset).input("x", FLOAT, dims).output("y", FLOAT)
}

#[test]
fn attributes_that_are_not_understood() {
    let heads = || Graph::new(25).input("x", FLOAT, &[1, 1, 2, 1]).output("y", FLOAT);
    let q = ["x", "x", "x"];
    let window = heads().node("Attention", &q, &["y"], &[("left_window_size", Value::Int(-2))]);
    refused(&window, &[&[0.0; 2]], &["node `y` (Attention)", "`left_window_size` is -2"]);
    let unlimited = heads().node("Attention", &q, &["y"], &[("left_window_size", Value::Int(-1))]);
    unlimited.run(&[&[0.0; 2]]).expect("that is the default");
    for (op, attribute) in [("Relu", "alpha"), ("Softmax", "beta"), ("Identity", "to"), ("Flatten", "axes")] {
        let graph = on(&[2, 2], 21).node(op, &["x"], &["y"], &[(attribute, Value::Int(0))]);
        refused(&graph, &[&[0.0; 4]], &[&format!("node `y` ({op}): the attribute `{attribute}` is not supported")]);
    }
    // Of a later operator set, or an earlier one.
    let graph = on(&[2, 2], 14).node("Shape", &["x"], &["y"], &[("start", Value::Int(0))]);
    let message = "node `y` (Shape): the attribute `start` is part of operator set 15, and the file has set 14";
    refused(&graph, &[&[0.0; 4]], &[message]);
    let graph = on(&[2, 2], 13).node("ReduceSum", &["x"], &["y"], &[("axes", Value::Ints(vec![0]))]);
    let message =
        "node `y` (ReduceSum): the attribute `axes` is no longer part of operator set 13, and the file has set 13";
    refused(&graph, &[&[0.0; 4]], &[message]);
    // Also of a node that is folded.
    let graph = on(&[1], 21).constant("a", FLOAT, &[1], &[1.0]);
    let graph = graph.node("Neg", &["a"], &["y"], &[("axis", Value::Int(0))]);
    refused(&graph, &[&[0.0]], &["node `y` (Neg): the attribute `axis`"]);
    let twice = [("axis", Value::Int(0)), ("axis", Value::Int(1))];
    refused(&on(&[1, 1], 21).node("Softmax", &["x"], &["y"], &twice), &[&[0.0]], &["two attributes have the name"]);
}

#[test]
fn names_operands_and_types() {
    let x = || on(&[2, 2], 21);
    for (graph, message) in [
        (x().node("Relu", &["x"], &["y"], &[]).node("Relu", &["x"], &["y"], &[]), "has the name of another value"),
        (x().node("Relu", &["x"], &["x"], &[]), "has the name of another value"),
        (x().constant("w", FLOAT, &[1], &[1.0]).node("Relu", &["x"], &["w"], &[]), "has the name of another value"),
        (x().input("x", FLOAT, &[1]).node("Relu", &["x"], &["y"], &[]), "two inputs have the name `x`"),
        (x().node("Relu", &["x", "x"], &["y"], &[]), "2 operands, and the operator has at most 1"),
        (x().node("Add", &["x"], &["y"], &[]), "operand 1 is missing"),
        (x().node("Add", &["", "x"], &["y"], &[]), "operand 0 is missing"),
        (x().node("MatMul", &["x", ""], &["y"], &[]), "operand 1 is missing"),
        (x().node("Relu", &["x"], &["y", "z"], &[]), "its result 1, `z`, is not computed"),
        (x().ints("i", &[1.0]).node("Add", &["x", "i"], &["y"], &[]), "operand 0 holds float and operand 1 int64"),
        (x().node("Not", &["x"], &["y"], &[]), "operand 0 holds float, not bool"),
        (x().node("Gather", &["x", "x"], &["y"], &[]), "operand 1 holds float, not int32 or int64"),
        (x().constant("d", DOUBLE, &[1], &[1.0]).node("Mul", &["x", "d"], &["y"], &[]), "operand 1 double"),
        (x().node("Shape", &["x"], &["y"], &[]), "output y: float[…] is computed as int64"),
        (x().node("ArgMax", &["x"], &["y"], &[("axis", Value::Int(2))]), "axis 2 is out of range"),
        (x().node("Softmax", &["x"], &["y"], &[("axis", Value::Int(-3))]), "axis -3 is out of range"),
        (x().node("Transpose", &["x"], &["y"], &[("perm", Value::Ints(vec![0, 0]))]), "axis 0 occurs twice"),
        (x().node("Concat", &["x", "x"], &["y"], &[]), "the attribute `axis` is missing"),
    ] {
        refused(&graph, &[&[0.0; 4], &[0.0]], &[message]);
    }
    let old = Graph::new(18).input("x", FLOAT, &[1]).output("y", FLOAT).node("Gelu", &["x"], &["y"], &[]);
    refused(&old, &[&[0.0]], &["node `y` (Gelu)", "part of operator set 20, and the file has set 18"]);
}

#[test]
fn shapes_of_weights() {
    let images = || on(&[1, 2, 3, 3], 21).constant("w", FLOAT, &[2, 2, 1, 1], &[1.0; 4]);
    let zeros = [0.0; 18];
    for bias in [1, 4] {
        let graph = images().constant("b", FLOAT, &[bias], &vec![0.0; bias as usize]);
        for op in ["Conv", "ConvTranspose"] {
            let graph = graph.clone().node(op, &["x", "w", "b"], &["y"], &[]);
            refused(&graph, &[&zeros], &[&format!("node `y` ({op})"), "not [2]"]);
        }
    }
    let kernel = [("kernel_shape", Value::Ints(vec![3, 3]))];
    refused(&images().node("Conv", &["x", "w"], &["y"], &kernel), &[&zeros], &["`kernel_shape` is [3, 3]"]);
    let norm = images().constant("s", FLOAT, &[3], &[1.0; 3]);
    let graph = norm.clone().node("InstanceNormalization", &["x", "s", "s"], &["y"], &[]);
    refused(&graph, &[&zeros], &["not [2]"]);
    let graph = norm.constant("big", FLOAT, &[2, 1, 2, 3, 3], &[1.0; 36]);
    refused(&graph.node("LayerNormalization", &["x", "big"], &["y"], &[]), &[&zeros], &["do not broadcast"]);
    let gemm = on(&[2, 2], 21).constant("c", FLOAT, &[3, 2], &[0.0; 6]);
    refused(&gemm.node("Gemm", &["x", "x", "c"], &["y"], &[]), &[&[0.0; 4]], &["node `y` (Gemm)"]);
}

#[test]
fn other_domains() {
    for (domain, message) in [
        ("ai.onnx.ml", "the operator `Binarizer` of ai.onnx.ml is not supported"),
        ("ai.onnx.preview", "belongs to the domain `ai.onnx.preview` of ONNX, which is not supported"),
        ("com.example", "they are not part of ONNX"),
    ] {
        let mut graph = on(&[1], 21).node("Binarizer", &["x"], &["y"], &[]);
        graph.graph.node[0].domain = domain.into();
        refused(&graph, &[&[0.0]], &["node `y` (Binarizer)", message]);
    }
}
