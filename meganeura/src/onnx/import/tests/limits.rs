//! Small files that ask for much.

use super::{Graph, Value, tensor};
use crate::onnx::import::Model;
use crate::onnx::proto::element::*;
use crate::onnx::proto::{EXTERNAL, Entry};
use crate::{Device, Result};

#[test]
fn an_empty_constant_can_be_sliced_backwards() {
    let graph = Graph::new(21).input("x", FLOAT, &[1]).output("y", FLOAT).constant("empty", FLOAT, &[0], &[]);
    let graph = graph.ints("start", &[-1.0]).ints("end", &[-9.0]).ints("axes", &[0.0]).ints("step", &[-1.0]);
    let graph = graph.node("Slice", &["empty", "start", "end", "axes", "step"], &["y"], &[]);
    assert!(graph.error(&[&[0.0]]).to_string().contains("without elements"));
}

#[test]
fn arrays_without_elements_have_bounded_extents() {
    let long = 1 << 40;
    let graph = |dims: &[i64]| {
        let graph = Graph::new(21).input("x", FLOAT, &[1]).output("y", FLOAT);
        graph.constant("empty", FLOAT, dims, &[]).constant("other", FLOAT, &[1, long, 0], &[])
    };
    let slice = graph(&[long, 0]).ints("at", &[1.0]).ints("end", &[2.0]);
    for (graph, expected) in [
        // The places along an axis would be listed.
        (
            slice.node("Slice", &["empty", "at", "end", "at"], &["y"], &[]),
            "(Slice): 1099511627776 elements of constants",
        ),
        // The strides would be computed.
        (
            graph(&[0, long, long]).node("Transpose", &["empty"], &["y"], &[]),
            "[0, 1099511627776, 1099511627776] are too",
        ),
        // The elements of the result would be counted.
        (graph(&[long, 1, 0]).node("Add", &["empty", "other"], &["y"], &[]), "(Add)"),
    ] {
        let error = graph.error(&[&[0.0]]).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn values_that_cannot_be_counted_are_refused() {
    let long = f64::from(1 << 30) * 1024.0;
    let graph = || Graph::new(21).input("x", FLOAT, &[1]).output("y", FLOAT).ints("shape", &[long, long]);
    let wide = || graph().node("Expand", &["x", "shape"], &["wide"], &[]);
    for graph in [
        wide().node("LayerNormalization", &["wide", "x"], &["y"], &[]),
        wide().node("Flatten", &["wide"], &["y"], &[("axis", Value::Int(0))]),
        wide().node("Softmax", &["wide"], &["y"], &[]),
    ] {
        let error = graph.error(&[&[0.0]]).to_string();
        assert!(error.contains("(Expand): ") && error.contains("has more elements than can be counted"), "{error}");
    }
}

#[test]
fn an_axis_given_twice_is_refused() {
    let x = || Graph::new(21).input("x", FLOAT, &[2, 3]).output("y", FLOAT).ints("axes", &[1.0, -1.0]);
    let sizes = x().ints("sizes", &[2.0, 7.0]);
    let axes = [("axes", Value::Ints(vec![1, 1]))];
    for graph in [
        sizes.node("Resize", &["x", "", "", "sizes"], &["y"], &axes),
        x().node("ReduceSum", &["x", "axes"], &["y"], &[]),
        x().node("Squeeze", &["x", "axes"], &["y"], &[]),
        x().ints("at", &[0.0, 0.0]).node("Slice", &["x", "at", "at", "axes"], &["y"], &[]),
        x().ints("w", &[1.0; 4]).node("Pad", &["x", "w", "", "axes"], &["y"], &[]),
    ] {
        let error = graph.error(&[&[0.0; 6]]);
        assert!(error.to_string().contains("occurs twice"), "{error}");
    }
}

#[test]
fn folding_is_counted_before_it_is_done() {
    // Each node is small, and each doubles its operand.
    let graph = Graph::new(21).input("x", FLOAT, &[1]).output("y", INT64).ints("c0", &[1.0; 4096]);
    let mut names = vec!["c0".to_owned(); 16];
    let axis = || [("axis", Value::Int(0))];
    let graph = graph.node("Concat", &names.iter().map(String::as_str).collect::<Vec<_>>(), &["c1"], &axis());
    // 4,000 copies of 65,536 numbers would be two gigabytes.
    names = vec!["c1".to_owned(); 4000];
    let graph = graph.node("Concat", &names.iter().map(String::as_str).collect::<Vec<_>>(), &["y"], &axis());
    let error = graph.error(&[&[0.0]]);
    assert!(error.to_string().contains("(Concat): 262144000 elements of constants would be computed"), "{error}");
}

#[test]
fn expanded_constants_are_bounded() {
    let million = f64::from(1 << 20);
    let graph = Graph::new(21).input("x", FLOAT, &[1]).output("y", FLOAT).ints("shape", &[million, million]);
    let graph = graph.constant("one", FLOAT, &[1, 1], &[1.0]).node("Expand", &["one", "shape"], &["wide"], &[]);
    let error = graph.node("ReduceSum", &["wide"], &["y"], &[]).error(&[&[0.0]]);
    assert!(error.to_string().contains("(Expand): 1099511627776 elements of constants"), "{error}");
}

#[test]
fn a_part_of_another_file_is_read_once() -> Result<()> {
    let folder = tempfile::tempdir().expect("a place for files");
    std::fs::write(folder.path().join("data"), vec![0; 1 << 16]).expect("it can be written");
    let device = Device::cpu();
    let load = |offsets: &[u64]| {
        let mut graph = Graph::new(21).input("x", FLOAT, &[1]).output("y", FLOAT).node("Relu", &["x"], &["y"], &[]);
        for (k, offset) in offsets.iter().enumerate() {
            let mut tensor = tensor(&format!("w{k}"), FLOAT, &[8192], &[]);
            tensor.data_location = EXTERNAL;
            let entry = |key: &str, value: String| Entry { key: key.to_owned(), value };
            tensor.external_data = vec![
                entry("location", "data".to_owned()),
                entry("offset", offset.to_string()),
                entry("length", (4 * 8192).to_string()),
            ];
            graph.graph.initializer.push(tensor);
        }
        let path = folder.path().join("model.onnx");
        std::fs::write(&path, graph.bytes()).expect("it can be written");
        Model::load(&device, &path)
    };
    let model = load(&[0; 100])?;
    assert_eq!((model.initializers.len(), model.constants), (100, 8192), "they share one tensor");
    drop(model);
    load(&[0, 4 * 8192])?;
    let error = load(&[0, 4]).expect_err("they overlap");
    assert!(error.to_string().contains("tensor `w1`") && error.to_string().contains("overlap"), "{error}");
    Ok(())
}
