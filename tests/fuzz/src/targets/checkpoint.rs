//! safetensors: models, models under other names, and optimizer states.

use std::collections::BTreeMap;

use fastrand::Rng;
use meganeura::io::{Checkpoint, Names, tensors_from_safetensors, tensors_to_safetensors};
use meganeura::nn::{BatchNorm2d, Conv2d, GlobalAvgPool2d, Linear};
use meganeura::optim::{AdamW, Optimizer, OptimizerState};
use meganeura::{Device, ErrorKind, Layer, Module, Tape, Tensor};
use serde_json::{Value, json};

use super::{Target, documented};
use crate::limits::Limits;
use crate::mutate;

const WORDS: &[&str] = &[
    "{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
    "\"dtype\":\"BF16\"",
    "\"F64\"",
    "\"shape\":[0]",
    "\"data_offsets\":[0,0]",
    "\"__metadata__\":{}",
    "weight",
    "bias",
    "num_batches_tracked",
    "module.",
    "..",
];

#[derive(Module, Debug)]
#[module(sequential)]
struct Net {
    #[module(init = Conv2d::new(1, 2, 3))]
    stem: Conv2d,
    #[module(init = BatchNorm2d::new(2))]
    norm: BatchNorm2d,
    #[module(init = GlobalAvgPool2d)]
    pool: GlobalAvgPool2d,
    #[module(init = Linear::new(2, 3))]
    head: Linear,
}

fn net() -> Net {
    Net::init(&Device::cpu(), 1).expect("the model fits")
}

fn bits(net: &Net) -> Vec<u8> {
    net.to_safetensors().expect("the model can be saved")
}

fn names() -> Names {
    Names::new()
        .rename("conv.*", "stem.*")
        .rename("**.bn*.*", "**.norm*.*")
        .split("fc.in_*", ["head.*"])
        .ignore("**.extra.**")
}

/// A file is copied a few times, as tensors and as a file of what was read.
fn limits(length: usize) -> Limits {
    Limits::linear(1 << 20, length, 64, 256)
}

/// Mutates the numbers, or the header as a JSON document, whose length is adjusted, or only the length.
pub fn reshape_header(input: &mut Vec<u8>, rng: &mut Rng) {
    let header = input.split_first_chunk().and_then(|(length, rest)| {
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        serde_json::from_slice::<Value>(rest.get(..length)?).ok().map(|header| (header, 8 + length))
    });
    let Some((mut header, data)) = header else { return mutate::bytes(input, rng) };
    if rng.u8(..3) == 0 && data < input.len() {
        let at = rng.usize(data..input.len());
        input[at] = rng.u8(..);
        return;
    }
    if rng.u8(..8) == 0 && header.is_object() {
        // Many empty tensors, each a name to report.
        for at in 0..rng.usize(..200) {
            header[format!("layer{at}.{}", "x.".repeat(rng.usize(..50)))] =
                json!({ "dtype": "F32", "shape": [0], "data_offsets": [0, 0] });
        }
    } else {
        mutate::json(&mut header, rng);
    }
    let text = header.to_string();
    let data = input.split_off(data);
    *input = [&(text.len() as u64).to_le_bytes(), text.as_bytes(), &data].concat();
}

/// Loads into a model, which must be unchanged if that fails.
fn load(input: &[u8], names: &Names) -> Result<bool, String> {
    let mut net = net();
    let before = bits(&net);
    let report = documented(net.load_safetensors_with(input, names), &[ErrorKind::Checkpoint])?;
    match &report {
        Some(report) => drop(documented(report.strict(), &[ErrorKind::Checkpoint])?),
        None if bits(&net) != before => return Err("a file that was refused changed the model".to_owned()),
        None => {}
    }
    Ok(report.is_some())
}

/// Reads only the tensors, and writes them to a new file, which must have the same tensors.
fn tensors(input: &[u8]) -> Result<(), String> {
    let read = |input: &[u8]| documented(tensors_from_safetensors(input, &Device::cpu()), &[ErrorKind::Checkpoint]);
    let write = |tensors: &BTreeMap<String, Tensor>| documented(tensors_to_safetensors(tensors), &[]);
    let Some(first) = read(input)? else { return Ok(()) };
    let Some(bytes) = write(&first)? else { return Ok(()) };
    match read(&bytes)? {
        Some(second) if write(&second)?.is_some_and(|again| again == bytes) => Ok(()),
        _ => Err("tensors that were written are others when they are read".to_owned()),
    }
}

/// A model from a file.
pub struct Model;

impl Target for Model {
    fn name(&self) -> &'static str {
        "safetensors"
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        vec![bits(&net())]
    }

    fn limits(&self, length: usize) -> Limits {
        limits(length)
    }

    fn words(&self) -> &'static [&'static str] {
        WORDS
    }

    fn reshape(&self, input: &mut Vec<u8>, rng: &mut Rng) {
        reshape_header(input, rng);
    }

    fn read(&self, input: &[u8]) -> Result<bool, String> {
        tensors(input)?;
        load(input, &Names::new())
    }
}

/// A model from a file with other names.
pub struct Renamed;

impl Target for Renamed {
    fn name(&self) -> &'static str {
        "names"
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        vec![bits(&net())]
    }

    fn limits(&self, length: usize) -> Limits {
        limits(length)
    }

    fn words(&self) -> &'static [&'static str] {
        WORDS
    }

    fn reshape(&self, input: &mut Vec<u8>, rng: &mut Rng) {
        reshape_header(input, rng);
    }

    fn read(&self, input: &[u8]) -> Result<bool, String> {
        load(input, &names())
    }
}

/// An optimizer's state.
pub struct State;

impl State {
    fn take(input: &[u8]) -> Result<bool, String> {
        let (device, net) = (Device::cpu(), net());
        let kinds = [ErrorKind::Checkpoint];
        let Some(state) = documented(OptimizerState::from_safetensors(input, &device), &kinds)? else {
            return Ok(false);
        };
        let mut optimizer = AdamW::new(0.25);
        let before = optimizer.state_of(&net).to_safetensors().expect("on the CPU");
        let taken = documented(optimizer.load_state(&net, &state), &kinds)?.is_some();
        if !taken && optimizer.state_of(&net).to_safetensors().expect("on the CPU") != before {
            return Err("a state that was refused changed the optimizer".to_owned());
        }
        if !(optimizer.lr() >= 0.0 && optimizer.lr().is_finite()) {
            return Err(format!("a learning rate of {}", optimizer.lr()));
        }
        Ok(taken)
    }
}

impl Target for State {
    fn name(&self) -> &'static str {
        "optimizer"
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        let (device, mut net, mut optimizer) = (Device::cpu(), net(), AdamW::new(0.5));
        let x = Tensor::full(&device, [2, 1, 4, 4], 0.5).expect("it fits");
        let tape = Tape::new(&device);
        let loss = net.forward(&tape.input(&x)).square().mean();
        let grads = tape.backward(&loss).expect("the model is differentiable");
        optimizer.step(&mut net, &grads).expect("every parameter has a gradient");
        vec![optimizer.state_of(&net).to_safetensors().expect("on the CPU")]
    }

    fn limits(&self, length: usize) -> Limits {
        limits(length)
    }

    fn words(&self) -> &'static [&'static str] {
        &["\"NaN\"", "\"-1\"", "\"inf\"", "\"1e400\"", "\"lr\":", "steps", "adamw", "sgd"]
    }

    fn reshape(&self, input: &mut Vec<u8>, rng: &mut Rng) {
        reshape_header(input, rng);
    }

    fn read(&self, input: &[u8]) -> Result<bool, String> {
        Self::take(input)
    }
}
