//! The models of the reference workloads; `torch_twin.py` has the same models in PyTorch.

use meganeura::prelude::*;
pub use meganeura_examples::models::{ResNet18Gn, UNet};
use meganeura_examples::models::{ResNet18GnConfig, UNetConfig};

/// The reference, but for its width.
pub fn resnet18gn(channels: usize) -> ResNet18GnConfig {
    ResNet18GnConfig { images: 3, width: channels, groups: 32, classes: 10 }
}

/// The reference, but for its width.
pub fn unet(channels: usize) -> UNetConfig {
    UNetConfig { images: 3, channels, groups: 32 }
}

/// Two convolutions and a linear layer, on 8×8 images of one channel.
#[derive(Module, Debug)]
#[module(sequential)]
pub struct Tiny {
    #[module(init = Conv2d::new(1, 16, 3).padding(1))]
    stem: Conv2d,
    #[module(init = GroupNorm::new(4, 16), then = relu)]
    norm: GroupNorm,
    #[module(init = Conv2d::new(16, 32, 3).stride(2).padding(1), then = [relu, flatten])]
    down: Conv2d,
    #[module(init = Linear::new(32 * 4 * 4, 10))]
    head: Linear,
}

/// A perceptron with two hidden layers, on 784 numbers.
#[derive(Module, Debug)]
#[module(sequential)]
pub struct Mlp {
    #[module(init = Linear::new(784, 1024), then = gelu)]
    first: Linear,
    #[module(init = Linear::new(1024, 1024), then = gelu)]
    second: Linear,
    #[module(init = Linear::new(1024, 10))]
    head: Linear,
}
