//! The building blocks that torchvision's mobile nets share.

use meganeura::init::{Fan, Initializer, Nonlinearity};
use meganeura::prelude::*;

/// The nonlinearity behind a convolution, if any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activation {
    None,
    Relu,
    Relu6,
    Silu,
    Hardswish,
}

impl Activation {
    pub(crate) fn apply(self, x: &Var) -> Var {
        match self {
            Self::None => x.clone(),
            Self::Relu => x.relu(),
            Self::Relu6 => Relu6.forward(x),
            Self::Silu => x.silu(),
            Self::Hardswish => Hardswish.forward(x),
        }
    }
}

/// Convolution without bias, batch normalisation and activation.
#[derive(Module, Debug, Clone)]
#[module(sequential, then = |x| self.activation.apply(x), config(
    conv: Conv2dConfig,
    norm: BatchNorm2dConfig,
    activation: Activation,
))]
pub(crate) struct ConvNorm {
    #[module(rename = "0", init = conv)]
    conv: Conv2d,
    #[module(rename = "1", init = norm)]
    norm: BatchNorm2d,
    #[module(skip, init = activation)]
    activation: Activation,
}

/// The settings of all batch normalisations.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Norms {
    pub(crate) eps: f64,
    pub(crate) momentum: f64,
}

impl Norms {
    pub(crate) fn behind(self, conv: Conv2dConfig, outputs: usize, activation: Activation) -> ConvNormConfig {
        let norm = BatchNorm2d::new(outputs).eps(self.eps).momentum(self.momentum);
        ConvNormConfig { conv, norm, activation }
    }
}

/// A convolution that keeps the image's size up to its stride, and starts as in torchvision.
pub(crate) fn conv(inputs: usize, outputs: usize, kernel: usize, stride: usize) -> Conv2dConfig {
    let conv = Conv2d::new(inputs, outputs, kernel).stride(stride).padding(kernel / 2);
    conv.bias(false).weight_init(Initializer::KaimingNormal { nonlinearity: Nonlinearity::Relu, fan: Fan::Out })
}

/// A factor for each channel, from the means of all: [Hu et al., 2017](https://arxiv.org/abs/1709.01507)
#[derive(Module, Debug, Clone)]
#[module(config(channels: usize, squeezed: usize, activation: Activation, is_hard: bool))]
pub(crate) struct SqueezeExcitation {
    #[module(init = Conv2d::new(channels, squeezed, 1))]
    fc1: Conv2d,
    #[module(init = Conv2d::new(squeezed, channels, 1))]
    fc2: Conv2d,
    #[module(skip, init = activation)]
    activation: Activation,
    #[module(skip, init = is_hard)]
    is_hard: bool,
}

impl Layer for SqueezeExcitation {
    fn forward(&self, x: &Var) -> Var {
        let means = x.mean_keep(&[2, 3]);
        let factors = self.fc2.forward(&self.activation.apply(&self.fc1.forward(&means)));
        x * if self.is_hard { Hardsigmoid.forward(&factors) } else { factors.sigmoid() }
    }
}

/// The multiple of 8 that torchvision makes of a scaled number of channels: the nearest one that is not a tenth less.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "few channels"
)]
pub(crate) fn scaled(channels: usize, scale: f64) -> usize {
    let exact = channels as f64 * scale;
    let nearest = ((exact + 4.0) as usize / 8 * 8).max(8);
    if (nearest as f64) < 0.9 * exact { nearest + 8 } else { nearest }
}
