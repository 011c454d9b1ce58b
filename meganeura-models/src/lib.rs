//! Models for [`meganeura`], under the names of the packages that published them.
//!
//! A model here has the parameters of the original: the same names, the same shapes, the same layout. So its files load
//! without renaming rules, and what is saved here loads there. Every model is compared with the original, on the CPU
//! and on a GPU.
//!
//! | model | names of | sizes |
//! |---|---|---|
//! | [`ResNet`] | torchvision, timm | [18 to 152, ResNeXt, Wide ResNet](ResNetConfig), with batch or group normalisation |
//! | [`MobileNetV2`], [`MobileNetV3`] | torchvision | [V2](MobileNetV2Config), [V3 small and large](MobileNetV3Config) |
//! | [`EfficientNet`] | torchvision | [B0 to B7, V2 S to L](EfficientNetConfig) |
//! | [`ConvNext`] | torchvision | [tiny to large](ConvNextConfig) |
//! | [`VisionTransformer`] | torchvision | [B/16 to H/14](VisionTransformerConfig) |
//! | [`Gpt2`] | transformers | [small to XL](Gpt2Config), with [generation](Gpt2::generate) |
//! | [`Bert`] | transformers | [base and large](BertConfig) |
//!
//! A config is a struct with public fields, and the published sizes are its constructors. As a builder, a config also
//! makes the model a part of another one.

mod bert;
mod conv_norm;
mod convnext;
mod efficientnet;
mod gpt2;
mod mobilenet_v2;
mod mobilenet_v3;
mod norm;
mod numbered;
mod one_of;
mod projected;
mod resnet;
mod sampling;
mod vit;

pub use bert::{Bert, BertConfig};
pub use convnext::{ConvNext, ConvNextConfig};
pub use efficientnet::{EfficientNet, EfficientNetConfig, EfficientNetStage};
pub use gpt2::{Gpt2, Gpt2Config, Gpt2Transformer, Gpt2TransformerConfig};
pub use mobilenet_v2::{MobileNetV2, MobileNetV2Config, MobileNetV2Stage};
pub use mobilenet_v3::{MobileNetV3, MobileNetV3Block, MobileNetV3Config};
pub use norm::{Norm, Normalization};
pub use resnet::{ResNet, ResNetBlock, ResNetBlockConfig, ResNetConfig};
pub use sampling::Sampling;
pub use vit::{VisionTransformer, VisionTransformerConfig, VisionTransformerHeads, VisionTransformerHeadsConfig};
