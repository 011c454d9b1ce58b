//! Models that several programs train: the benchmark at its reference sizes, the tutorials at sizes of your choice, and
//! the page of `examples/web`.

mod denoiser;
mod digits;
mod gpt2;
mod lstm;
mod mobilenet;
mod resnet;
mod resnet50;
mod unet;
mod vit;

pub use denoiser::{Denoiser, DenoiserConfig};
pub use digits::Digits;
pub use gpt2::{Gpt2, Gpt2Config};
pub use lstm::{LstmLanguage, LstmLanguageConfig};
pub use mobilenet::{MobileNetV2, MobileNetV2Config, Stage};
pub use resnet::{ResNet18Gn, ResNet18GnConfig};
pub use resnet50::{ResNet50, ResNet50Config};
pub use unet::{UNet, UNetConfig};
pub use vit::{ViT, ViTConfig};
