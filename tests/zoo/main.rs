//! The models of `meganeura-models`, compared with the packages whose names they have.
//!
//! `tests/pytorch/make_models.py` computes the outputs of a small model of every class, and lists the names and shapes
//! of every published size. Parameters and inputs are computed here as there, from their names: see [`numbers`].
//! Every small model runs on each executor, is exported to ONNX and imported again, and trains.
//!
//! Not part of the suite: these models need half of its tests' time to compile, and change for reasons of their own.

#[path = "../suite/adapter.rs"]
#[expect(dead_code, reason = "the suite needs more of it")]
mod adapter;
mod cases;
mod numbers;
mod sizes;
mod text;
mod timm;

use std::collections::BTreeMap;
use std::path::PathBuf;

use libtest_mimic::{Arguments, Failed, Trial};
use meganeura::{Device, Precision, Tensor};
use safetensors::SafeTensors;

use adapter::gpu_trial;
use cases::Case;

/// A shape and its numbers.
type Array = (Vec<usize>, Vec<f64>);

/// The result of a test.
type Outcome = Result<(), Failed>;

fn main() {
    if std::env::var_os("MEGANEURA_CACHE").is_none() {
        // SAFETY: no other thread runs yet. Tests must neither find kernels that earlier ones compiled nor leave any.
        unsafe { std::env::set_var("MEGANEURA_CACHE", "off") };
    }
    let mut trials = Vec::new();
    for (name, build) in cases::all() {
        let mut test = |kind: &str, run: fn(&str, cases::Build) -> Outcome| {
            trials.push(Trial::test(format!("{kind}::{name}"), move || run(name, build)));
        };
        test("names", has_their_names);
        test("f64", |name, build| {
            // diffusers rounds the frequencies of a time's embedding to single precision.
            let tolerance = if name.starts_with("unet") { 1e-6 } else { 1e-9 };
            agrees(name, build, &Device::cpu_with(Precision::Double), tolerance)
        });
        test("native", |name, build| agrees(name, build, &Device::cpu(), 1e-5));
        test("onnx", survives_onnx);
        test("trains", trains);
        trials.push(gpu_trial(format!("gpu::{name}"), move |device| agrees(name, build, &device.for_testing(0), 1e-5)));
    }
    trials.push(Trial::test("every_case_is_compared", every_case));
    trials.push(Trial::test("comparison_can_fail", comparison_can_fail));
    text::collect(&mut trials);
    sizes::collect(&mut trials);
    timm::collect(&mut trials);
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// A file beside the script.
fn path_of(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("pytorch").join(file)
}

/// Numbers of the golden file that belong to no model's case.
fn floats(name: &str) -> Result<Vec<f64>, Failed> {
    let bytes = std::fs::read(path_of("zoo.safetensors"))?;
    let view = SafeTensors::deserialize(&bytes)?.tensor(name)?;
    Ok(view.data().as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect())
}

/// The outputs of the original models, by the names of their cases.
fn golden() -> Result<BTreeMap<String, Array>, Failed> {
    let bytes = std::fs::read(path_of("zoo.safetensors"))?;
    let (_, header) = SafeTensors::read_metadata(&bytes)?;
    let names = header.metadata().as_ref().and_then(|words| words.get("cases")).ok_or("the cases have no names")?;
    let file = SafeTensors::deserialize(&bytes)?;
    let read = |(index, name): (usize, &str)| {
        let view = file.tensor(&format!("{index}.output"))?;
        let data = view.data().as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect();
        Ok((name.to_owned(), (view.shape().to_vec(), data)))
    };
    names.lines().enumerate().map(read).collect()
}

fn every_case() -> Outcome {
    let ours: Vec<_> = cases::all().into_iter().map(|(name, _)| name).chain(timm::names()).map(str::to_owned).collect();
    let mut sorted = ours.clone();
    sorted.sort();
    sorted.dedup();
    assert_eq!(sorted.len(), ours.len(), "two cases have one name");
    assert_eq!(golden()?.into_keys().collect::<Vec<_>>(), sorted);
    Ok(())
}

/// The largest difference, relative to the largest expected number.
fn relative_error(computed: &[f64], expected: &[f64]) -> f64 {
    if computed.len() != expected.len() || computed.iter().chain(expected).any(|x| !x.is_finite()) {
        return f64::INFINITY;
    }
    let largest = expected.iter().fold(0f64, |max, x| max.max(x.abs()));
    computed.iter().zip(expected).fold(0f64, |max, (a, b)| max.max((a - b).abs())) / largest
}

fn comparison_can_fail() -> Outcome {
    assert_eq!(relative_error(&[1.0, 2.0], &[1.0, 4.0]), 0.5);
    assert_eq!(relative_error(&[1.0, 2.0], &[1.0, 2.0]), 0.0);
    for wrong in [&[1.0][..], &[1.0, f64::NAN]] {
        assert_eq!(relative_error(wrong, &[1.0, 2.0]), f64::INFINITY);
    }
    Ok(())
}

fn within(what: &str, computed: &Tensor, expected: &Array, tolerance: f64) -> Outcome {
    assert_eq!(computed.shape().dims(), expected.0, "{what}");
    match relative_error(&computed.to_f64_vec()?, &expected.1) {
        error if error <= tolerance => Ok(()),
        error => Err(format!("{what} is off by {error:.1e} of its largest number, allowed are {tolerance:.0e}").into()),
    }
}

/// The names and shapes of a small model are those of the original.
fn has_their_names(name: &str, build: cases::Build) -> Outcome {
    sizes::expect_line(&format!("small/{name}"), build(&Device::cpu())?.module())
}

fn agrees(name: &str, build: cases::Build, device: &Device, tolerance: f64) -> Outcome {
    let golden = golden()?;
    let expected = golden.get(name).ok_or("no golden case has this name: run make_models.py")?;
    let case = filled(build, device)?;
    within("the output", &case.run()?, expected, tolerance)
}

/// The model with the parameters of its names.
fn filled(build: cases::Build, device: &Device) -> Result<Box<dyn Case>, Failed> {
    let mut case = build(device)?;
    numbers::fill(case.module_mut())?;
    Ok(case)
}

fn survives_onnx(_: &str, build: cases::Build) -> Outcome {
    let case = filled(build, &Device::cpu())?;
    let Some((bytes, inputs)) = case.export()? else { return Ok(()) };
    let expected = case.run()?;
    let expected = (expected.shape().dims().to_vec(), expected.to_f64_vec()?);
    let model = meganeura::onnx::Model::from_bytes(&Device::cpu(), &bytes)?;
    let inputs = inputs.iter().map(in_a_file).collect::<meganeura::Result<Vec<_>>>()?;
    let shapes: Vec<_> = inputs.iter().map(Tensor::shape).collect();
    let computed = model.compile_for(&shapes)?.call(&inputs.iter().collect::<Vec<_>>())?;
    within("the imported model's output", &computed[0], &expected, 1e-5)
}

/// Indices are `int64` in a file.
fn in_a_file(x: &Tensor) -> meganeura::Result<Tensor> {
    match x.ty().dtype {
        meganeura::DType::U32 => Tensor::from_i64(x.device(), x.shape(), &x.to_i64_vec()?),
        _ => Ok(x.clone()),
    }
}

/// Every parameter has a gradient, and the statistics of a training step are finite.
fn trains(_: &str, build: cases::Build) -> Outcome {
    let case = filled(build, &Device::cpu())?;
    case.train()
}
