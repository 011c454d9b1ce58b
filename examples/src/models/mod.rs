//! Models that several programs train: the benchmark at the sizes of its reference, the tutorials at sizes of yours.

mod resnet;
mod unet;

pub use resnet::{ResNet18Gn, ResNet18GnConfig};
pub use unet::{UNet, UNetConfig};
