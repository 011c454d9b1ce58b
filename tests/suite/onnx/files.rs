//! Files: external weights, names, damaged files, and unsupported contents.

use std::fs;
use std::panic::Location;

use libtest_mimic::Trial;
use meganeura::onnx::{self, Export, Model, Port};
use meganeura::prelude::*;
use meganeura::{ErrorKind, TensorType};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::tensor;

pub(super) fn collect(trials: &mut Vec<Trial>) {
    type Test = fn() -> Outcome;
    let all: [(&str, Test); 8] = [
        ("weights_beside", weights_beside),
        ("truncated", truncated),
        ("unknown_operators", unknown_operators),
        ("uneven_batches", uneven_batches),
        ("names", names),
        ("operations_without_a_form", without_form),
        ("wrong_inputs", wrong_inputs),
        ("double_precision", double_precision),
    ];
    for (name, test) in all {
        trials.push(Trial::test(format!("onnx::files::{name}"), test));
    }
    trials.push(Trial::test("onnx::files::integers", || integers(&Device::cpu())));
    trials.push(gpu_trial("onnx::files::gpu::integers".to_owned(), |device| integers(&device.for_testing(0))));
}

fn net(device: &Device) -> Result<(Conv2d, Relu, GlobalAvgPool2d, Linear)> {
    (Conv2d::new(3, 20, 3), Relu, GlobalAvgPool2d, Linear::new(20, 5)).init(device, Seed::new(1))
}

fn weights_beside() -> Outcome {
    let (device, folder) = (Device::cpu(), tempfile::tempdir()?);
    let net = net(&device)?;
    let x = tensor(&device, "x", [2, 3, 6, 6])?;
    let onnx = onnx::export(&device, &x, |x| net.forward(x))?;
    let path = folder.path().join("net.onnx");
    onnx.save_with_weights_beside(&path)?;
    let (model, data) = (fs::metadata(&path)?.len(), fs::metadata(folder.path().join("net.onnx.data"))?.len());
    assert!(model < 2500 && data >= 4 * 20 * 27, "{model} and {data} bytes");
    let y = onnx::load(&device, &path)?.call(&[&x])?.swap_remove(0);
    y.expect_close(&x.map(|x| net.forward(x))?, 1e-6, 1e-6)?;

    let error = Model::from_bytes(&device, &fs::read(&path)?).expect_err("the weights are elsewhere");
    assert!(error.to_string().contains("load the model from its path rather than from bytes"), "{error}");
    fs::write(folder.path().join("net.onnx.data"), [0; 100])?;
    let error = onnx::load(&device, &path).expect_err("the weights are cut");
    assert_eq!(error.kind(), ErrorKind::Checkpoint, "{error}");
    assert!(error.to_string().contains("past the end of"), "{error}");
    fs::remove_file(folder.path().join("net.onnx.data"))?;
    assert_eq!(onnx::load(&device, &path).expect_err("the weights are gone").kind(), ErrorKind::Io);
    Ok(())
}

/// A truncated file is an error when it is read or when it is compiled.
fn truncated() -> Outcome {
    let device = Device::cpu();
    let net = net(&device)?;
    let bytes = onnx::export(&device, [1, 3, 6, 6], |x| net.forward(x))?.to_bytes()?;
    for end in (0..bytes.len()).step_by(41) {
        let error = Model::from_bytes(&device, &bytes[..end]).and_then(|model| model.compile()).expect_err("it is cut");
        assert_eq!(error.kind(), ErrorKind::Checkpoint, "{end}: {error}");
    }
    Ok(())
}

/// Exports one node and gives it another name.
fn renamed(from: &str, to: &str) -> Result<Vec<u8>> {
    assert_eq!(from.len(), to.len(), "lengths are in the file");
    let mut bytes = onnx::export(&Device::cpu(), [2, 3], |x| x.softmax(1))?.to_bytes()?;
    let places: Vec<_> = bytes.windows(from.len()).enumerate().filter(|(_, w)| *w == from.as_bytes()).collect();
    let places: Vec<_> = places.into_iter().map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "{from} is in the file");
    places.iter().for_each(|&at| bytes[at..at + to.len()].copy_from_slice(to.as_bytes()));
    Ok(bytes)
}

fn unknown_operators() -> Outcome {
    let device = Device::cpu();
    let error = Model::from_bytes(&device, &renamed("Softmax", "Sadmax!")?).expect_err("there is no such operator");
    assert_eq!(error.kind(), ErrorKind::Checkpoint);
    let message = error.to_string();
    assert!(message.contains("node `softmax` (Sadmax!): the operator `Sadmax!` is not supported"), "{message}");
    // An input that does not fit is named.
    let bytes = onnx::export(&device, [2, 3], |x| x.softmax(1))?.to_bytes()?;
    let model = Model::from_bytes(&device, &bytes)?;
    let error = model.compile_for(&[Shape::from([2, 4])]).expect_err("extents are fixed");
    assert!(error.to_string().contains("input input: float[2, 3] is given f32[2, 4]"), "{error}");
    Ok(())
}

fn uneven_batches() -> Outcome {
    let device = Device::cpu();
    let of_batch = |f: fn(&Var) -> Var| Export::new().batch("N").record(&device, [4, 3], f);
    let (error, line) = (of_batch(|x| x.mean()).expect_err("a mean over the batch"), line!());
    assert_eq!((error.kind(), error.location().map(Location::line)), (ErrorKind::Argument, Some(line)), "{error}");
    assert!(error.to_string().contains("does not grow linearly with the batch"), "{error}");
    let depends: fn(&Var) -> Var = |x| if x.shape()[0] % 2 == 0 { x.exp() } else { x.sin() };
    let error = of_batch(depends).expect_err("it does something else");
    assert!(error.to_string().contains("the computation depends on the size of the batch"), "{error}");
    // NaN is the same constant for every size.
    of_batch(|x| x.masked_fill(&x.lt(&(x * 2.0)), f64::NAN))?;
    let error = Export::new().batch("N").record(&device, ([4, 3], [2]), |(a, b)| (a.exp(), b.exp()));
    assert!(error.expect_err("two sizes").to_string().contains("the first axis of every input must be the batch `N`"));
    // The batch may be an axis other than the first, or a factor of an axis.
    let open = of_batch(|x| {
        x.reshape([x.shape()[0] * 3]).sum() + x.sum_over(&[1]).reshape([1, x.shape()[0]]).expand([2, x.shape()[0]])
    })?;
    let model = Model::from_bytes(&device, &open.to_bytes()?)?;
    assert_eq!(model.outputs()[0].to_string(), "output: float[2, N]");
    let y = model.compile_for(&[Shape::from([7, 3])])?.call(&[&Tensor::full(&device, [7, 3], 1.0)?])?;
    assert_eq!(y[0].to_vec()?, [24.0; 14]);
    Ok(())
}

fn names() -> Outcome {
    let device = Device::cpu();
    let both = |(a, b): &(Var, Var)| [a + b, a.clone(), a + b];
    let export = Export::new().inputs(["left", "right"]).outputs(["sum", "same", "again"]);
    let model = Model::from_bytes(&device, &export.record(&device, ([2], [2]), both)?.to_bytes()?)?;
    assert_eq!(model.inputs().iter().map(Port::name).collect::<Vec<_>>(), ["left", "right"]);
    let x = Tensor::from_slice(&device, [2], &[1.0, 2.0])?;
    let y = model.compile()?.call(&[&x, &x])?;
    let y = y.iter().map(Tensor::to_vec).collect::<Result<Vec<_>>>()?;
    assert_eq!(y, [[2.0, 4.0], [1.0, 2.0], [2.0, 4.0]]);
    for (export, message) in [
        (Export::new().inputs(["a"]), "1 names for 2 inputs"),
        (Export::new().outputs(["a"]), "1 names for 3 outputs"),
        (Export::new().inputs(["a", "b"]).outputs(["a", "c", "d"]), "two inputs or outputs have the name `a`"),
        (Export::new().opset(20), "operator set 20; files are written in 21 to"),
    ] {
        let error = export.record(&device, ([2], [2]), both).expect_err(message);
        assert!(error.to_string().starts_with(message), "{error}");
    }
    // Parameters are named by their paths.
    let net = net(&device)?;
    let named = Export::new().names_of(&net).record(&device, [1, 3, 6, 6], |x| net.forward(x))?;
    let bytes = named.to_bytes()?;
    for path in ["0.weight", "0.bias", "3.weight"] {
        assert!(bytes.windows(path.len()).any(|w| w == path.as_bytes()), "{path}");
    }
    Ok(())
}

fn without_form() -> Outcome {
    let device = Device::cpu();
    let (error, line) = (onnx::export(&device, [2], |x| x.random_uniform()).expect_err("random"), line!());
    assert_eq!((error.kind(), error.location().map(Location::line)), (ErrorKind::Argument, Some(line)), "{error}");
    assert!(error.to_string().starts_with("random_uniform: this operation has no ONNX form"), "{error}");
    let error = onnx::export(&device, [2, 3], |x| x.matmul(x)).expect_err("it does not fit");
    assert_eq!(error.kind(), ErrorKind::Shape, "{error}");
    Ok(())
}

fn wrong_inputs() -> Outcome {
    let device = Device::cpu();
    let bytes = onnx::export(&device, ([2], [2]), |(a, b)| a + b)?.to_bytes()?;
    let model = Model::from_bytes(&device, &bytes)?;
    let (compiled, x) = (model.compile()?, tensor(&device, "x", [2])?);
    let error = compiled.call(&[&x]).expect_err("one of two");
    assert!(error.to_string().contains("compiled for 2 inputs, not for 1"), "{error}");
    let index = Tensor::indices(&device, [2], &[0, 1])?;
    assert_eq!(compiled.call(&[&x, &index]).expect_err("indices").kind(), ErrorKind::Shape);
    let tape = Tape::new(&device);
    let (x, index) = (tape.input(&x), tape.input(&index));
    let error = model.record(&tape, &[x.clone(), index]).expect_err("indices");
    assert!(error.to_string().contains("input input_1: float[2] is given u32[2]"), "{error}");
    // An imported model is differentiable.
    let y = model.record(&tape, &[x.clone(), &x * 3.0])?.swap_remove(0);
    assert_eq!(tape.backward(&y.sum())?.of(&x).expect("it depends on x").to_vec()?, [4.0, 4.0]);
    Ok(())
}

/// Integers are exact beyond every float and below zero, as inputs, in between and as outputs.
fn integers(device: &Device) -> Outcome {
    let (cpu, odd) = (Device::cpu(), (1i64 << 53) + 1);
    let types = |dtype| TensorType::new(dtype, [2, 3].into());
    let f = |(x, y): &(Var, Var)| {
        let rest = x.modulo(&x.constant(1000.0)) - (x / &x.constant(3.0)).abs();
        let smaller = y.minimum(&-y) * y.constant(3.0);
        (x.argmax(1), rest.sum_over(&[1]), smaller, x.cumsum(1).flip(&[0]))
    };
    let onnx = Export::new().record(&cpu, (types(DType::I64), types(DType::I32)), f)?;
    let long = [odd, -odd, 7, i64::MAX, i64::MIN, -1];
    let short = [i32::MAX, i32::MIN, -5, 0, 1 << 24, (1 << 24) + 1];
    let (x, y) = (Tensor::from_i64(&cpu, [2, 3], &long)?, Tensor::from_i32(&cpu, [2, 3], &short)?);
    let (place, sums, smaller, scan) = cpu.compile((&x, &y), f)?.call((&x, &y))?;
    let model = Model::from_bytes(device, &onnx.to_bytes()?)?;
    let computed = model.compile()?.call(&[&x.to_device(device)?, &y.to_device(device)?])?;
    for (computed, expected) in computed.iter().zip([place, sums, smaller, scan]) {
        assert_eq!(computed.to_i64_vec()?, expected.to_i64_vec()?);
    }
    Ok(())
}

fn double_precision() -> Outcome {
    let device = Device::cpu_with(Precision::Double);
    let bytes = onnx::export(&device, [2], |x| x.exp() * (1.0 / 3.0))?.to_bytes()?;
    let x = Tensor::from_f64(&device, [2], &[0.1, 0.2])?;
    for device in [device, Device::cpu()] {
        let y = Model::from_bytes(&device, &bytes)?.compile()?.call(&[&x.to_device(&device)?])?;
        let expected = [0.1f64.exp() / 3.0, 0.2f64.exp() / 3.0];
        let tolerance = if device.precision() == Precision::Double { 1e-15 } else { 1e-7 };
        for (y, expected) in y[0].to_f64_vec()?.iter().zip(expected) {
            assert!((y - expected).abs() < tolerance, "{y} {expected}");
        }
    }
    Ok(())
}
