//! Files from both exporters of `torch.onnx`, against PyTorch's results in double precision.

use std::path::PathBuf;

use libtest_mimic::Trial;
use meganeura::io::load_tensors;
use meganeura::onnx::Model;
use meganeura::prelude::*;

use super::numbers;
use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::numbers::{Computed, Reference, compare};

/// A file, and the tensors that belong to it.
const FILES: [(&str, &str); 8] = [
    ("resnet_script", "resnet"),
    ("resnet_export", "resnet"),
    ("resnet_norms", "resnet"),
    ("decoder_script", "decoder"),
    ("decoder_export", "decoder"),
    ("words_script", "words"),
    ("words_export", "words"),
    ("masked_export", "masked"),
];

pub(super) fn collect(trials: &mut Vec<Trial>) {
    for (file, tensors) in FILES {
        trials.push(Trial::test(format!("onnx::torch::{file}"), move || of_torch(file, tensors, &Device::cpu())));
        let name = format!("onnx::torch::gpu::{file}");
        trials.push(gpu_trial(name, move |device| of_torch(file, tensors, &device.for_testing(0))));
    }
}

fn of_torch(file: &str, tensors: &str, device: &Device) -> Outcome {
    let path = |name: &str| -> PathBuf { [env!("CARGO_MANIFEST_DIR"), "pytorch", "onnx", name].into_iter().collect() };
    let double = Device::cpu_with(Precision::Double);
    let golden = load_tensors(path(&format!("{tensors}.safetensors")), &double)?;
    let x = &golden["input.0"];
    let model = Model::load(device, path(&format!("{file}.onnx")))?;
    assert_eq!(model.inputs()[0].shape(), Some(x.shape()), "{model:?}");
    let x = match tensors {
        "words" => {
            let words: Vec<_> = x.to_f64_vec()?.into_iter().map(|word| word as i64).collect();
            Tensor::from_i64(device, x.shape(), &words)?
        }
        _ => x.to_device(device)?,
    };
    let y = model.compile()?.call(&[&x])?;
    assert_eq!(y.len(), golden.keys().filter(|name| name.starts_with("output.")).count());
    for (k, y) in y.iter().enumerate() {
        let expected = &golden[&format!("output.{k}")];
        assert_eq!(y.shape(), expected.shape(), "output {k}");
        compare(&format!("output {k}"), &Computed(numbers(y)?), &Reference(expected.to_f64_vec()?), 1e-5)?;
    }
    Ok(())
}
