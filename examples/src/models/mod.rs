//! Models that several programs train: the benchmark at its reference sizes, the tutorials at sizes of your choice, and
//! the page of `examples/web`.

mod denoiser;
mod digits;
mod resnet;
mod unet;

pub use denoiser::{Denoiser, DenoiserConfig};
pub use digits::Digits;
pub use resnet::{ResNet18Gn, ResNet18GnConfig};
pub use unet::{UNet, UNetConfig};
