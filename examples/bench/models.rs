//! The models of the reference workloads; `torch_twin.py` has the same models in PyTorch.

use meganeura::prelude::*;
pub use meganeura_examples::models::{Gpt2, LstmLanguage, MobileNetV2, ResNet18Gn, ResNet50, UNet, ViT};
use meganeura_examples::models::{
    Gpt2Config, LstmLanguageConfig, MobileNetV2Config, ResNet18GnConfig, ResNet50Config, UNetConfig, ViTConfig,
};

/// The reference, but for its width.
pub fn resnet18gn(channels: usize) -> ResNet18GnConfig {
    ResNet18GnConfig { images: 3, width: channels, groups: 32, classes: 10 }
}

/// The reference, but for its width.
pub fn unet(channels: usize) -> UNetConfig {
    UNetConfig { images: 3, channels, groups: 32 }
}

/// ViT-S/16, but for its width and depth; each head has 64 features.
pub fn vit(width: usize, layers: usize) -> ViTConfig {
    ViTConfig { images: 3, side: 224, patch: 16, width, heads: width / 64, layers, classes: 1000 }
}

/// The small GPT-2, but for its width, depth and context; each head has 64 features.
pub fn gpt2(width: usize, layers: usize, context: usize) -> Gpt2Config {
    Gpt2Config { vocabulary: 50_257, context, width, heads: width / 64, layers }
}

/// ResNet-50, but for its width.
pub fn resnet50(channels: usize) -> ResNet50Config {
    ResNet50Config { width: channels, depths: [3, 4, 6, 3], classes: 1000 }
}

/// MobileNetV2.
pub fn mobilenet() -> MobileNetV2Config {
    MobileNetV2Config { first: 32, stages: MobileNetV2::STAGES.to_vec(), last: 1280, classes: 1000 }
}

/// The reference, but for its width and depth.
pub fn lstm(width: usize, layers: usize) -> LstmLanguageConfig {
    LstmLanguageConfig { vocabulary: 10_000, width, layers }
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
