//! Models whose plans depend on the values of inputs.

use super::{Graph, Value};
use crate::onnx::import::Model;
use crate::onnx::proto::element::{BOOL, FLOAT, INT64};
use crate::{Device, Result, Tensor};

fn model(graph: &Graph) -> Result<Model> {
    Model::from_bytes(&Device::cpu(), &graph.bytes())
}

fn floats(dims: &[usize], numbers: &[f32]) -> Result<Tensor> {
    Tensor::from_slice(&Device::cpu(), dims, numbers)
}

fn ints(dims: &[usize], numbers: &[i64]) -> Result<Tensor> {
    Tensor::from_i64(&Device::cpu(), dims, numbers)
}

/// The first output.
fn first(model: &Model, inputs: &[&Tensor]) -> Result<(Vec<usize>, Vec<f32>)> {
    let y = model.run(inputs)?.swap_remove(0);
    Ok((y.shape().dims().to_vec(), y.to_vec()?))
}

#[test]
fn values_of_inputs_decide() -> Result<()> {
    // `ids` need not be known, `to` does.
    let graph = Graph::new(21)
        .input("x", FLOAT, &[-1, 2])
        .input("ids", INT64, &[3])
        .input("to", INT64, &[2])
        .output("y", FLOAT)
        .node("Gather", &["x", "ids"], &["rows"], &[])
        .node("Reshape", &["rows", "to"], &["y"], &[]);
    let model = model(&graph)?;
    let x = floats(&[2, 2], &[0.0, 1.0, 2.0, 3.0])?;
    assert!(model.compile_for(&[[2, 2].into(), [3].into(), [2].into()]).is_err());
    for round in 0..2 {
        for (to, dims) in [([2, 3], [2, 3]), ([-1, 1], [6, 1]), ([6, 1], [6, 1])] {
            let y = first(&model, &[&x, &ints(&[3], &[1, 0, 1])?, &ints(&[2], &to)?])?;
            assert_eq!(y, (dims.to_vec(), vec![2.0, 3.0, 0.0, 1.0, 2.0, 3.0]), "{round}");
        }
    }
    // Other values of `ids` need no other plan.
    let before = model.plans.count();
    let y = first(&model, &[&x, &ints(&[3], &[0, 0, 0])?, &ints(&[2], &[2, 3])?])?;
    assert_eq!((y.1, model.plans.count()), (vec![0.0, 1.0, 0.0, 1.0, 0.0, 1.0], before));
    assert_eq!(before, 3);
    let error = model.run(&[&x, &ints(&[3], &[0, 0, 0])?, &ints(&[2], &[4, 2])?]).unwrap_err();
    assert!(error.to_string().contains("node `y` (Reshape)"), "{error}");
    let error = model.run(&[&x, &ints(&[2], &[0, 0])?, &ints(&[2], &[4, 2])?]).unwrap_err();
    assert!(error.to_string().contains("input ids: int64[3] is given"), "{error}");
    assert!(model.run(&[&x]).is_err());
    assert_eq!(first(&model, &[&x, &ints(&[3], &[0, 0, 1])?, &ints(&[2], &[3, 2])?])?.0, [3, 2]);
    Ok(())
}

#[test]
fn known_neighbours_are_gathered_by_a_view() -> Result<()> {
    // The indices with their extents, the axis, the expected result with its extents, and whether it is a view.
    type Case = (&'static [i64], &'static [f64], i64, &'static [usize], &'static [f32], bool);
    let cases: [Case; 5] = [
        (&[], &[-1.0], 1, &[2], &[2.0, 5.0], true),
        (&[1], &[1.0], 0, &[1, 3], &[3.0, 4.0, 5.0], true),
        (&[2], &[1.0, -1.0], 1, &[2, 2], &[1.0, 2.0, 4.0, 5.0], true),
        (&[2], &[2.0, 1.0], 1, &[2, 2], &[2.0, 1.0, 5.0, 4.0], false),
        (&[1, 2], &[0.0, 1.0], 1, &[2, 1, 2], &[0.0, 1.0, 3.0, 4.0], false),
    ];
    let x = floats(&[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])?;
    for (dims, indices, axis, shape, expected, is_view) in cases {
        let graph = Graph::new(21)
            .input("x", FLOAT, &[2, 3])
            .constant("indices", INT64, dims, indices)
            .output("y", FLOAT)
            .node("Gather", &["x", "indices"], &["y"], &[("axis", Value::Int(axis))]);
        let device = Device::cpu();
        let function = Model::from_bytes(&device, &graph.bytes())?.compile()?;
        let y = function.call(&[&x])?.swap_remove(0);
        assert_eq!((y.shape().dims(), &*y.to_vec()?), (shape, expected), "{indices:?}");
        assert_eq!(device.plan_dumps().iter().any(|dump| dump.contains("embedding")), !is_view, "{indices:?}");
    }
    Ok(())
}

#[test]
fn plans_are_bounded() -> Result<()> {
    let graph = Graph::new(21).input("x", FLOAT, &[1]).input("n", INT64, &[1]).output("y", FLOAT).node(
        "Expand",
        &["x", "n"],
        &["y"],
        &[],
    );
    let model = model(&graph)?;
    for n in 1..=40 {
        let y = first(&model, &[&floats(&[1], &[n as f32])?, &ints(&[1], &[n])?])?;
        assert_eq!(y, (vec![n as usize], vec![n as f32; n as usize]));
        assert!(model.plans.count() <= 16);
    }
    Ok(())
}

/// Every input decides, or computed values do.
#[test]
fn models_that_cannot_be_planned_are_recorded() -> Result<()> {
    let graph = Graph::new(21)
        .input("n", INT64, &[])
        .output("y", INT64)
        .ints("zero", &[0.0])
        .node("Squeeze", &["zero"], &["from"], &[])
        .constant("one", INT64, &[], &[1.0])
        .node("Range", &["from", "n", "one"], &["y"], &[]);
    let range = model(&graph)?;
    for n in [3, 1] {
        assert_eq!(range.run(&[&ints(&[], &[n])?])?[0].to_i64_vec()?, (0..n).collect::<Vec<_>>());
    }
    let graph = Graph::new(21).input("x", FLOAT, &[4]).output("y", INT64).node("NonZero", &["x"], &["y"], &[]);
    let places = model(&graph)?;
    for (x, expected) in [([0.0, 1.0, 0.0, 2.0], vec![1, 3]), ([1.0, 0.0, 0.0, 0.0], vec![0])] {
        assert_eq!(places.run(&[&floats(&[4], &x)?])?[0].to_i64_vec()?, expected);
    }
    Ok(())
}

#[test]
fn branches_of_different_shapes() -> Result<()> {
    let branch = |axis: i64| {
        Value::Graph(Graph::new(21).output("z", FLOAT).node("Softmax", &["x"], &["s"], &[]).node(
            "Concat",
            &["s", "x"],
            &["z"],
            &[("axis", Value::Int(axis))],
        ))
    };
    let graph = Graph::new(21).input("wide", BOOL, &[]).input("x", FLOAT, &[1, 2]).output("y", FLOAT).node(
        "If",
        &["wide"],
        &["y"],
        &[("then_branch", branch(1)), ("else_branch", branch(0))],
    );
    let model = model(&graph)?;
    let x = floats(&[1, 2], &[1.0, 1.0])?;
    assert_eq!(first(&model, &[&floats(&[], &[1.0])?, &x])?, (vec![1, 4], vec![0.5, 0.5, 1.0, 1.0]));
    assert_eq!(first(&model, &[&floats(&[], &[0.0])?, &x])?, (vec![2, 2], vec![0.5, 0.5, 1.0, 1.0]));
    assert_eq!(model.plans.count(), 2);
    Ok(())
}
