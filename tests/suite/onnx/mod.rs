//! ONNX files: every layer and every operation is exported, imported again and compared with the original. Also models,
//! and files that PyTorch wrote.
//!
//! With `MEGANEURA_ONNX=DIR`, each file is kept there with its inputs and outputs, for the comparison with
//! `onnxruntime`: `cargo xtask onnx`.

mod files;
mod models;
mod nan;
mod operations;
mod torch;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use libtest_mimic::{Failed, Trial};
use meganeura::io::save_tensors;
use meganeura::onnx::{Export, Model, Onnx};
use meganeura::prelude::*;
use meganeura::{DType, Result};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::layers::{Subject, subjects};
use crate::nets::{randomise, tensor};
use crate::numbers::{Computed, Reference, compare};

/// Prefixes of the layers that are also imported on the GPU: one for each kind of node.
const ON_GPU: [&str; 13] = [
    "linear [4",
    "conv2d groups",
    "conv_transpose2d doubling",
    "batch_norm2d [",
    "group_norm 2 groups",
    "layer_norm of images",
    "max_pool2d overlapping",
    "avg_pool2d without padding",
    "adaptive_avg_pool2d [",
    "upsample bilinear [",
    "lstm [",
    "multihead_attention [",
    "embedding with padding",
];

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let subjects = subjects();
    for name in ON_GPU {
        assert!(subjects.iter().any(|subject| subject.name.starts_with(name)), "there is no layer {name}");
    }
    for subject in subjects {
        let subject = Arc::new(subject);
        let shared = Arc::clone(&subject);
        trials.push(Trial::test(format!("onnx::layers::{}", subject.name), move || layer(&shared, &Device::cpu())));
        if ON_GPU.iter().any(|name| subject.name.starts_with(name)) {
            let name = format!("onnx::gpu::{}", subject.name);
            trials.push(gpu_trial(name, move |device| layer(&subject, &device.for_testing(0))));
        }
    }
    operations::collect(trials);
    models::collect(trials);
    files::collect(trials);
    nan::collect(trials);
    torch::collect(trials);
}

/// Compares a layer with itself after a round trip through a file, imported on a device.
fn layer(subject: &Subject, device: &Device) -> Outcome {
    let cpu = Device::cpu();
    let mut layer = (subject.build)(&cpu)?;
    randomise(&mut *layer)?;
    let x = tensor(&cpu, "x", Shape::new(&subject.x))?;
    let expected = x.map(|x| layer.forward(x))?;
    let onnx = Export::new().record(&cpu, &x, |x| layer.forward(x))?;
    round_trip(&subject.name, &onnx, &[x], &[expected], device, 1e-5)
}

/// Imports a model again and compares its results. Keeps the file if requested. Sums are in another order, and some
/// functions are composed differently in ONNX: a few roundings.
fn round_trip(
    name: &str,
    onnx: &Onnx,
    inputs: &[Tensor],
    expected: &[Tensor],
    device: &Device,
    tolerance: f64,
) -> Outcome {
    let bytes = onnx.to_bytes()?;
    keep(name, &bytes, inputs, expected, tolerance)?;
    let model = Model::from_bytes(device, &bytes)?;
    let inputs = inputs.iter().map(|x| of_file(x)?.to_device(device)).collect::<Result<Vec<_>>>()?;
    let types: Vec<_> = model.inputs().iter().map(|port| port.dtype(DType::F32)).collect();
    assert_eq!(types, inputs.iter().map(|x| x.ty().dtype).collect::<Vec<_>>(), "{model:?}");
    let shapes: Vec<_> = inputs.iter().map(Tensor::shape).collect();
    let computed = model.compile_for(&shapes)?.call(&inputs.iter().collect::<Vec<_>>())?;
    assert_eq!(computed.len(), expected.len());
    for (k, (computed, expected)) in computed.iter().zip(expected).enumerate() {
        assert_eq!(computed.ty(), of_file(expected)?.ty(), "output {k}");
        compare(&format!("output {k}"), &Computed(numbers(computed)?), &Reference(numbers(expected)?), tolerance)?;
    }
    Ok(())
}

/// Numbers in the type that they have in a file: indices are `int64` there.
fn of_file(tensor: &Tensor) -> Result<Tensor> {
    match tensor.ty().dtype {
        DType::U32 => Tensor::from_i64(tensor.device(), tensor.shape(), &tensor.to_i64_vec()?),
        _ => Ok(tensor.clone()),
    }
}

fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    match tensor.ty().dtype {
        DType::U32 | DType::I32 | DType::I64 => Ok(tensor.to_i64_vec()?.into_iter().map(|x| x as f64).collect()),
        _ => tensor.to_f64_vec(),
    }
}

/// The folder for kept files, if requested.
fn kept() -> Option<PathBuf> {
    std::env::var_os("MEGANEURA_ONNX").map(PathBuf::from)
}

/// The largest input of a model that is kept: `onnxruntime` adds up longer sums term by term in `f32`.
const MOST: usize = 20_000;

/// Keeps a model with its inputs `input.K` and outputs `output.K`.
fn keep(name: &str, bytes: &[u8], inputs: &[Tensor], outputs: &[Tensor], tolerance: f64) -> Outcome {
    let Some(folder) = kept().filter(|_| inputs.iter().all(|x| x.shape().elements() <= MOST)) else { return Ok(()) };
    fs::create_dir_all(&folder)?;
    let safe: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    fs::write(folder.join(format!("{safe}.onnx")), bytes)?;
    let mut tensors = BTreeMap::new();
    tensors.insert("tolerance".to_owned(), Tensor::from_f64(&Device::cpu(), [1], &[tolerance])?);
    for (what, list) in [("input", inputs), ("output", outputs)] {
        for (k, tensor) in list.iter().enumerate() {
            let floats = match tensor.ty().dtype {
                DType::U32 => Tensor::from_f64(tensor.device(), tensor.shape(), &numbers(tensor)?)?,
                _ => tensor.clone(),
            };
            tensors.insert(format!("{what}.{k}"), floats);
        }
    }
    save_tensors(folder.join(format!("{safe}.safetensors")), &tensors).map_err(Failed::from)
}
