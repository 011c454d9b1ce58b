//! Files of low-rank adapters.

use fastrand::Rng;
use meganeura::io::Names;
use meganeura::prelude::*;
use meganeura::{Device, ErrorKind};

use super::checkpoint::reshape_header;
use tempfile::TempDir;

use super::{Target, documented, file, join, scratch, split};
use crate::limits::Limits;

/// Adapters for the weights of a model, in a folder for the files.
pub struct Adapter(TempDir);

impl Adapter {
    pub fn new() -> Self {
        Self(scratch())
    }
}

fn net() -> (Linear, Linear) {
    (Linear::new(3, 4), Linear::new(4, 2)).init(&Device::cpu(), Seed::new(1)).expect("the model fits")
}

fn adapted() -> (Linear, Linear) {
    let mut net = net();
    Lora::new(2).alpha(3.0).attach(&mut net, "*.weight", 5).expect("it has matrices");
    net
}

/// A folder of PEFT: the settings and the tensors.
pub struct Peft(TempDir);

impl Peft {
    pub fn new() -> Self {
        Self(scratch())
    }
}

impl Target for Peft {
    fn name(&self) -> &'static str {
        "peft"
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        let folder = scratch();
        Lora::save_peft(&adapted(), folder.path(), &Names::new()).expect("it has a form in PEFT");
        let [settings, tensors] = ["adapter_config.json", "adapter_model.safetensors"]
            .map(|name| std::fs::read(folder.path().join(name)).expect("it was written"));
        let patterns =
            br#"{"r":2,"lora_alpha":3,"use_rslora":true,"alpha_pattern":{"^0":4,"[1-9]+":5},"rank_pattern":{"x.y":1}}"#;
        vec![join(&settings, &tensors), join(patterns, &tensors)]
    }

    fn words(&self) -> &'static [&'static str] {
        &[
            "lora_A.weight",
            "lora_embedding_B",
            "base_layer.",
            "base_model.model.",
            "\"lora_dropout\"",
            "\"use_dora\":true",
            "\"fan_in_fan_out\":true",
            "\"alpha_pattern\":",
            "(a|b)*",
            "\\\\d{1,9}",
        ]
    }

    fn limits(&self, length: usize) -> Limits {
        Limits::linear(4 << 20, length, 256, 1024)
    }

    fn read(&self, input: &[u8]) -> Result<bool, String> {
        let (settings, tensors) = split(input);
        file(&self.0, "adapter_config.json", settings);
        file(&self.0, "adapter_model.safetensors", tensors);
        let mut net = net();
        let before = net.to_safetensors().expect("on the CPU");
        let loaded = documented(Lora::load_peft(&mut net, self.0.path(), &Names::new()), &[ErrorKind::Checkpoint])?;
        if loaded.is_none() && (net.to_safetensors().expect("on the CPU") != before || net.counts().frozen > 0) {
            return Err("a folder that was refused changed the model".to_owned());
        }
        Ok(loaded.is_some())
    }
}

impl Target for Adapter {
    fn name(&self) -> &'static str {
        "lora"
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        vec![Adapters::of(&adapted()).to_safetensors().expect("on the CPU")]
    }

    fn words(&self) -> &'static [&'static str] {
        &[
            "lora_a",
            "lora_b",
            "lora_scale",
            "lora_A.weight",
            "lora_magnitude_vector",
            "\"I64\"",
            "\"F16\"",
            ".weight",
            "0.",
        ]
    }

    fn limits(&self, length: usize) -> Limits {
        Limits::linear(1 << 20, length, 64, 256)
    }

    fn reshape(&self, input: &mut Vec<u8>, rng: &mut Rng) {
        reshape_header(input, rng);
    }

    fn read(&self, input: &[u8]) -> Result<bool, String> {
        let kinds = [ErrorKind::Checkpoint];
        let mut net = net();
        let before = net.to_safetensors().expect("on the CPU");
        let loaded = documented(Lora::load(&mut net, file(&self.0, "adapters", input)), &kinds)?;
        if loaded.is_some() {
            // What was loaded works.
            let x = Tensor::full(&Device::cpu(), [1, 3], 0.5).expect("it fits");
            let tape = Tape::inference(&Device::cpu());
            documented(net.forward(&tape.input(&x)).to_tensor(), &[])?;
        } else if net.to_safetensors().expect("on the CPU") != before || net.counts().frozen > 0 {
            return Err("a file that was refused changed the model".to_owned());
        }
        // Into adapters that are there already.
        let adapted = adapted();
        documented(Adapters::of(&adapted).load_safetensors(input), &kinds)?;
        Ok(loaded.is_some())
    }
}
