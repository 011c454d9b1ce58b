//! Weights of a file as parameters: which ones they are, their gradients, and the file that they are written to.

use super::{Graph, Value};
use crate::check::gradcheck;
use crate::module::ModuleExt;
use crate::onnx::Export;
use crate::onnx::import::Model;
use crate::onnx::proto::element::{DOUBLE, FLOAT};
use crate::optim::{Optimizer, Sgd};
use crate::{Device, Precision, Result, Shape, Tape, Tensor};

/// A network with an embedding beside it, in which some constants are no weights.
fn network(ty: i32) -> Graph {
    let numbers = |count: usize, seed: f64| (0..count).map(|k| ((k as f64 + seed) * 12.9898).sin()).collect::<Vec<_>>();
    let positive = |count: usize, seed: f64| numbers(count, seed).iter().map(|x| x.abs() + 0.5).collect::<Vec<_>>();
    Graph::new(21)
        .input("image", ty, &[2, 3, 5, 4])
        .output("scores", ty)
        .constant("kernel", ty, &[4, 3, 3, 3], &numbers(108, 1.0))
        .constant("kernel.bias", ty, &[4], &numbers(4, 2.0))
        .constant("norm.scale", ty, &[4], &positive(4, 3.0))
        .constant("norm.bias", ty, &[4], &numbers(4, 4.0))
        .constant("mean", ty, &[4], &numbers(4, 5.0))
        .constant("variance", ty, &[4], &positive(4, 6.0))
        .constant("head", ty, &[5, 4], &numbers(20, 7.0))
        .constant("head.bias", ty, &[5], &numbers(5, 8.0))
        .constant("half", ty, &[], &[0.5])
        .constant("scales", ty, &[4], &[1.0, 1.0, 2.0, 2.0])
        .constant("table", ty, &[3, 5], &numbers(15, 9.0))
        .constant("row", crate::onnx::proto::element::INT64, &[1], &[2.0])
        .node("Conv", &["image", "kernel", "kernel.bias"], &["a"], &[])
        .node("BatchNormalization", &["a", "norm.scale", "norm.bias", "mean", "variance"], &["b"], &[])
        .node("Resize", &["b", "", "scales"], &["c"], &[("mode", Value::Text("linear"))])
        .node("Tanh", &["c"], &["d"], &[])
        .node("GlobalAveragePool", &["d"], &["e"], &[])
        .node("Flatten", &["e"], &["f"], &[])
        .node("Transpose", &["head"], &["head.t"], &[("perm", Value::Ints(vec![1, 0]))])
        .node("MatMul", &["f", "head.t"], &["g"], &[])
        .node("Add", &["g", "head.bias"], &["h"], &[])
        .node("Gather", &["table", "row"], &["i"], &[])
        .node("Add", &["h", "i"], &["j"], &[])
        .node("Mul", &["j", "half"], &["scores"], &[])
}

#[test]
fn weights_are_parameters_with_right_gradients() -> Result<()> {
    let device = Device::cpu_with(Precision::Double);
    let model = Model::from_bytes(&device, &network(DOUBLE).bytes())?.trainable()?;
    let names: Vec<_> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["head", "head.bias", "kernel", "kernel.bias", "norm.bias", "norm.scale", "table"]);
    let x = Tensor::randn(&device, [2, 3, 5, 4], 1)?;
    let record = |model: &Model, x: &[crate::Var]| model.record(x[0].tape(), x).expect("it fits");
    gradcheck(&model, &[x], record)?.ok()
}

#[test]
fn trained_weights_are_used_and_written_under_their_names() -> Result<()> {
    let device = Device::cpu();
    let bytes = network(FLOAT).bytes();
    let mut model = Model::from_bytes(&device, &bytes)?.trainable()?;
    model.freeze("kernel*")?;
    let x = Tensor::randn(&device, [2, 3, 5, 4], 1)?;
    let before = model.run(&[&x])?.swap_remove(0);
    before.expect_close(&Model::from_bytes(&device, &bytes)?.run(&[&x])?[0], 1e-6, 1e-6)?;
    let tape = Tape::new(&device);
    let loss = model.record(&tape, &[tape.input(&x)])?.swap_remove(0).square().sum();
    Sgd::new(0.1).step(&mut model, &tape.backward(&loss)?)?;
    let after = model.run(&[&x])?.swap_remove(0);
    assert!(after.expect_close(&before, 1e-3, 1e-3).is_err(), "plans read the weights of now");
    let export = Export::new().inputs(["image"]).outputs(["scores"]);
    let written = export.record(&device, [2, 3, 5, 4], |x| {
        model.record(x.tape(), std::slice::from_ref(x)).expect("it fits").swap_remove(0)
    })?;
    let again = Model::from_bytes(&device, &written.to_bytes()?)?.trainable()?;
    again.run(&[&x])?[0].expect_close(&after, 1e-6, 1e-6)?;
    let values = |model: &Model, name: &str| {
        let all = model.named_parameters();
        let param = all.into_iter().find(|(own, _)| own == name).map(|(_, param)| param.value());
        param.map(|value| Ok::<_, crate::Error>((value.shape(), value.to_vec()?))).transpose()
    };
    for name in ["head.bias", "kernel", "norm.scale"] {
        assert_eq!(values(&again, name)?, values(&model, name)?, "{name}");
    }
    let old = Model::from_bytes(&device, &bytes)?.trainable()?;
    assert_eq!(values(&old, "kernel")?, values(&model, "kernel")?, "frozen");
    assert_ne!(values(&old, "head")?, values(&model, "head")?, "trained");
    assert_eq!(values(&old, "head")?.map(|(shape, _)| shape), Some(Shape::from([5, 4])));
    Ok(())
}
