//! Plans for matrix units, made without any: networks train on the CPU, and each step is planned for a GPU that has them as well.

use libtest_mimic::Trial;
use meganeura::nn::{
    AvgPool2d, Conv2d, ConvTranspose2d, Gelu, GroupNorm, LayerNorm, Linear, MaxPool2d, MultiheadAttention, Relu, Silu,
};
use meganeura::optim::{AdamW, Optimizer, Sgd};
use meganeura::{Device, Init, Layer, Module, Seed, Tape, Tensor, Var};
use meganeura_examples::models::{ResNet18Gn, ResNet18GnConfig, UNet, UNetConfig};

use crate::Outcome;
use crate::nets::tensor;

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(Trial::test("matrix_units::plan_a_residual_network", residual_network));
    trials.push(Trial::test("matrix_units::plan_a_u_net", u_net));
    trials.push(Trial::test("matrix_units::plan_attention", attention));
    trials.push(Trial::test("matrix_units::plan_convolutions_of_every_kind", convolutions));
}

/// One training step.
fn step<M: Module>(
    device: &Device,
    net: &mut M,
    optimizer: &mut dyn Optimizer,
    y: impl FnOnce(&M, &Tape) -> Var,
) -> Outcome {
    let tape = Tape::new(device);
    let y = y(net, &tape);
    let loss = (&y * &y).mean();
    let grads = tape.backward(&loss)?;
    optimizer.step(net, &grads)?;
    assert!(loss.item()?.is_finite());
    Ok(())
}

fn residual_network() -> Outcome {
    let device = Device::for_testing_matrix_units();
    let config = ResNet18GnConfig { images: 3, width: 64, groups: 32, classes: 10 };
    let mut net = ResNet18Gn::init(&device, 1, config)?;
    let x = tensor(&device, "images", [4, 3, 32, 32])?;
    step(&device, &mut net, &mut Sgd::new(0.1).momentum(0.9), |net, tape| net.forward(&tape.input(&x)))
}

fn u_net() -> Outcome {
    let device = Device::for_testing_matrix_units();
    let mut net = UNet::init(&device, 1, UNetConfig { images: 3, channels: 64, groups: 32 })?;
    let x = tensor(&device, "images", [2, 3, 32, 32])?;
    let t = Tensor::from_f64(&device, [2], &[3.0, 700.0])?;
    step(&device, &mut net, &mut AdamW::new(1e-3), |net, tape| net.forward(&tape.input(&x), &tape.input(&t)))
}

fn attention() -> Outcome {
    let device = Device::for_testing_matrix_units();
    let layers = (
        Linear::new(256, 256),
        MultiheadAttention::new(256, 4),
        LayerNorm::new([256]),
        Linear::new(256, 1024),
        Gelu,
        Linear::new(1024, 10),
    );
    let mut net = layers.init(&device, Seed::new(1))?;
    let x = tensor(&device, "tokens", [8, 64, 256])?;
    step(&device, &mut net, &mut AdamW::new(1e-3), |net, tape| net.forward(&tape.input(&x)))
}

/// Strides, dilations, groups and channels that fill no line.
fn convolutions() -> Outcome {
    let convolutions = [
        Conv2d::new(64, 64, 3).padding(1),
        Conv2d::new(64, 64, 3).padding(1).stride(2),
        Conv2d::new(64, 64, (1, 5)).padding((0, 2)).stride((1, 2)).bias(false),
        Conv2d::new(64, 64, 3).padding(2).dilation(2),
        Conv2d::new(64, 64, 7).padding(3).stride(4),
        Conv2d::new(64, 64, 1),
        Conv2d::new(64, 128, 3).padding(1).groups(4),
        Conv2d::new(64, 64, 3).padding(1).groups(64),
        Conv2d::new(64, 12, 3).padding(1),
    ];
    let device = Device::for_testing_matrix_units();
    for images in [1, 3, 20] {
        let x = tensor(&device, "images", [2, images, 32, 32])?;
        for convolution in &convolutions {
            let ends = (Conv2d::new(images, 64, 3).padding(1), GroupNorm::new(8, 64), Silu);
            let mut net = (ends, convolution.clone(), Relu).init(&device, Seed::new(1))?;
            step(&device, &mut net, &mut Sgd::new(0.1), |net, tape| net.forward(&tape.input(&x)))?;
        }
        let up = (ConvTranspose2d::new(64, 32, 2).stride(2), MaxPool2d::new(2), AvgPool2d::new(2));
        let mut net = (Conv2d::new(images, 64, 3).padding(1), up).init(&device, Seed::new(1))?;
        step(&device, &mut net, &mut Sgd::new(0.1), |net, tape| net.forward(&tape.input(&x)))?;
    }
    Ok(())
}
