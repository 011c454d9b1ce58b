//! Layers, one per file.
//!
//! A layer is a struct with its parameters and settings in the open: nothing here is special, a layer of your own is
//! written the same way. Those with parameters are built from a description, `Conv2d::new(1, 32, 3).padding(1)`, by
//! [`Init::init`](crate::module::Init::init), which returns an error for settings that make no sense; those without can be
//! used as they are. An input that does not fit gives a poisoned [`Var`](crate::Var), which names the layer's line.
//!
//! | layer | shapes |
//! |---|---|
//! | [`Linear`] | `[.., in] → [.., out]` |
//! | [`Conv2d`] | `[N, C, H, W] → [N, O, P, Q]` |
//! | [`ConvTranspose2d`] | `[N, C, H, W] → [N, O, P, Q]` |
//! | [`GroupNorm`] | `[N, C, ..]`, kept |
//! | [`LayerNorm`] | `[.., D₁, …, Dₖ]`, kept |
//! | [`InstanceNorm2d`] | `[N, C, H, W]`, kept |
//! | [`MaxPool2d`], [`AvgPool2d`] | `[N, C, H, W] → [N, C, P, Q]` |
//! | [`Dropout`], [`Relu`], [`LeakyRelu`], [`Elu`], [`Gelu`], [`GeluTanh`], [`Silu`], [`Sigmoid`], [`Tanh`], [`Softplus`] | any, kept |
//! | [`Flatten`] | `[N, ..] → [N, M]` |
//!
//! Layers record operations through [`Var`](crate::Var) and know no device, gradient or kernel.

mod activation;
mod avg_pool2d;
mod conv2d;
mod conv_transpose2d;
mod dropout;
mod flatten;
mod group_norm;
mod instance_norm2d;
mod layer_norm;
mod linear;
mod max_pool2d;
mod pair;

pub use activation::{Elu, Gelu, GeluTanh, LeakyRelu, Relu, Sigmoid, Silu, Softplus, Tanh};
pub use avg_pool2d::AvgPool2d;
pub use conv_transpose2d::{ConvTranspose2d, ConvTranspose2dConfig};
pub use conv2d::{Conv2d, Conv2dConfig};
pub use dropout::Dropout;
pub use flatten::Flatten;
pub use group_norm::{GroupNorm, GroupNormConfig};
pub use instance_norm2d::{InstanceNorm2d, InstanceNorm2dConfig};
pub use layer_norm::{LayerNorm, LayerNormConfig};
pub use linear::{Linear, LinearConfig};
pub use max_pool2d::MaxPool2d;
pub use pair::IntoPair;
