//! The models of the examples, at small sizes, for a fixed and a variable batch size.

use std::slice::from_ref;

use libtest_mimic::Trial;
use meganeura::onnx::{Export, Model};
use meganeura::prelude::*;
use meganeura_examples::models::{
    Denoiser, DenoiserConfig, Digits, Gpt2, Gpt2Config, LstmLanguage, LstmLanguageConfig, MobileNetV2,
    MobileNetV2Config, ResNet18Gn, ResNet18GnConfig, ResNet50, ResNet50Config, UNet, UNetConfig, ViT, ViTConfig,
};

use super::round_trip;
use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::{randomise, tensor};

pub(super) fn collect(trials: &mut Vec<Trial>) {
    type Test = fn(&Device) -> Outcome;
    let all: [(&str, Test); 9] = [
        ("digits", digits),
        ("resnet18gn", resnet),
        ("unet", unet),
        ("denoiser", denoiser),
        ("vit", vit),
        ("gpt2", gpt2),
        ("resnet50", resnet50),
        ("mobilenet", mobilenet),
        ("lstm", lstm),
    ];
    for (name, test) in all {
        trials.push(Trial::test(format!("onnx::models::{name}"), move || test(&Device::cpu())));
        trials.push(gpu_trial(format!("onnx::models::gpu::{name}"), move |device| test(&device.for_testing(0))));
    }
    trials.push(Trial::test("onnx::models::transformer", transformer));
}

/// Twenty layers or more, each of which rounds, some with a factor of 1/σ.
const DEEP: f64 = 1e-5;

fn digits(device: &Device) -> Outcome {
    let cpu = Device::cpu();
    let mut net = Digits::init(&cpu, 1)?;
    randomise(&mut net)?;
    any_batch("digits", &[1, 8, 8], device, |x| net.forward(x))
}

fn resnet(device: &Device) -> Outcome {
    let cpu = Device::cpu();
    let mut net = ResNet18Gn::init(&cpu, 1, ResNet18GnConfig { images: 3, width: 4, groups: 2, classes: 10 })?;
    randomise(&mut net)?;
    any_batch("resnet18gn", &[3, 16, 16], device, |x| net.forward(x))
}

/// A model of images, exported for a batch of three and for any batch size.
fn any_batch(name: &str, image: &[usize], device: &Device, f: impl Fn(&Var) -> Var) -> Outcome {
    let cpu = Device::cpu();
    let x = tensor(&cpu, "x", Shape::new(&[&[3], image].concat()))?;
    let expected = x.map(&f)?;
    let fixed = Export::new().record(&cpu, &x, &f)?;
    round_trip(name, &fixed, from_ref(&x), from_ref(&expected), device, DEEP)?;
    let one = Shape::new(&[&[1], image].concat());
    let open = Export::new().inputs(["images"]).outputs(["scores"]).batch("N").record(&cpu, one, &f)?;
    let model = Model::from_bytes(device, &open.to_bytes()?)?;
    assert!(model.inputs()[0].to_string().starts_with("images: float[N, "), "{model:?}");
    assert_eq!(model.outputs()[0].to_string(), "scores: float[N, 10]");
    round_trip(&format!("{name} of any batch"), &open, &[x], &[expected], device, DEEP)
}

fn unet(device: &Device) -> Outcome {
    let cpu = Device::cpu();
    let mut net = UNet::init(&cpu, 1, UNetConfig { images: 3, channels: 4, groups: 2 })?;
    randomise(&mut net)?;
    let (x, t) = (tensor(&cpu, "x", [2, 3, 8, 8])?, tensor(&cpu, "t", [2])?);
    let forward = |(x, t): &(Var, Var)| net.forward(x, t);
    let expected = cpu.compile((&x, &t), forward)?.call((&x, &t))?;
    let fixed = Export::new().record(&cpu, (&x, &t), forward)?;
    let inputs = [x, t];
    round_trip("unet", &fixed, &inputs, from_ref(&expected), device, DEEP)?;
    let open = Export::new().inputs(["image", "time"]).batch("N").record(&cpu, ([1, 3, 8, 8], [1]), forward)?;
    round_trip("unet of any batch", &open, &inputs, &[expected], device, DEEP)
}

fn denoiser(device: &Device) -> Outcome {
    let cpu = Device::cpu();
    let mut net = Denoiser::init(&cpu, 1, DenoiserConfig { width: 16 })?;
    randomise(&mut net)?;
    let (x, t) = (tensor(&cpu, "x", [2, 1, 8, 8])?, tensor(&cpu, "t", [2])?);
    let digits = Tensor::indices(&cpu, [2], &[7, 0])?;
    let forward = |(x, t, digits): &(Var, Var, Var)| net.forward(x, t, digits);
    let expected = cpu.compile((&x, &t, &digits), forward)?.call((&x, &t, &digits))?;
    let onnx = Export::new().batch("N").record(&cpu, (&x, &t, &digits), forward)?;
    round_trip("denoiser", &onnx, &[x, t, digits], &[expected], device, DEEP)
}

fn vit(device: &Device) -> Outcome {
    let config = ViTConfig { images: 3, side: 12, patch: 4, width: 16, heads: 2, layers: 2, classes: 10 };
    let mut net = ViT::init(&Device::cpu(), 1, config)?;
    randomise(&mut net)?;
    any_batch("vit", &[3, 12, 12], device, |x| net.forward(x))
}

fn gpt2(device: &Device) -> Outcome {
    let cpu = Device::cpu();
    let mut net = Gpt2::init(&cpu, 1, Gpt2Config { vocabulary: 11, context: 9, width: 16, heads: 2, layers: 2 })?;
    randomise(&mut net)?;
    let tokens = Tensor::indices(&cpu, [2, 7], &[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7])?;
    let forward = |tokens: &Var| net.forward(tokens);
    let expected = cpu.compile(&tokens, forward)?.call(&tokens)?;
    let onnx = Export::new().batch("N").record(&cpu, &tokens, forward)?;
    round_trip("gpt2", &onnx, &[tokens], &[expected], device, DEEP)
}

fn resnet50(device: &Device) -> Outcome {
    let config = ResNet50Config { width: 4, depths: [1, 2, 1, 1], classes: 10 };
    let mut net = ResNet50::init(&Device::cpu(), 1, config)?;
    randomise(&mut net)?;
    any_batch("resnet50", &[3, 37, 41], device, |x| net.forward(x))
}

fn mobilenet(device: &Device) -> Outcome {
    let stages = MobileNetV2::STAGES[..4].to_vec();
    let config = MobileNetV2Config { first: 4, stages, last: 12, classes: 10 };
    let mut net = MobileNetV2::init(&Device::cpu(), 1, config)?;
    randomise(&mut net)?;
    any_batch("mobilenet", &[3, 33, 31], device, |x| net.forward(x))
}

fn lstm(device: &Device) -> Outcome {
    let cpu = Device::cpu();
    let config = LstmLanguageConfig { vocabulary: 11, width: 6, layers: 2 };
    let mut net = LstmLanguage::init(&cpu, 1, config)?;
    randomise(&mut net)?;
    let tokens = Tensor::indices(&cpu, [2, 5], &[3, 1, 4, 1, 5, 9, 2, 6, 5, 3])?;
    let forward = |tokens: &Var| net.forward(tokens);
    let expected = cpu.compile(&tokens, forward)?.call(&tokens)?;
    let onnx = Export::new().batch("N").record(&cpu, &tokens, forward)?;
    round_trip("lstm", &onnx, &[tokens], &[expected], device, DEEP)
}

/// Causal attention, rotary positions, and a batch of any size.
fn transformer() -> Outcome {
    let cpu = Device::cpu();
    let encoder = TransformerEncoderLayer::new(8, 2).feed_forward(12).norm_first(true);
    let mut net = (encoder, Linear::new(8, 5)).init(&cpu, Seed::new(1))?;
    randomise(&mut net)?;
    let x = tensor(&cpu, "x", [2, 6, 8])?;
    let forward = |x: &Var| {
        let options = meganeura::ops::AttentionOptions { causal: true, ..Default::default() };
        let heads = x.reshape([x.shape()[0], 6, 2, 4]).permute(&[0, 2, 1, 3]);
        let mixed = heads.attention_with(&heads, &heads, options).permute(&[0, 2, 1, 3]).reshape(x.shape());
        net.forward(&(x + mixed)).log_softmax(2)
    };
    let expected = x.map(forward)?;
    let onnx = Export::new().batch("N").record(&cpu, &x, forward)?;
    round_trip("transformer", &onnx, &[x], &[expected], &cpu, DEEP)
}
