//! Models for [`meganeura`], under the names of the packages that published them.
//!
//! A model here has the parameters of the original: the same names, the same shapes, the same layout. So what the
//! original saves loads without renaming rules, and what is saved here loads there. The rules for the names of timm are
//! the method `timm_names` of a config, those for older files of diffusers [`legacy_names`]; [`Gpt2`] says how its
//! published files load. A small model of every class is compared with the
//! original, on the CPU and on Vulkan.
//!
//! | model | names of | sizes |
//! |---|---|---|
//! | [`ResNet`] | torchvision, timm | [18 to 152, ResNeXt, Wide ResNet](ResNetConfig), with batch or group normalisation |
//! | [`MobileNetV2`], [`MobileNetV3`] | torchvision, [timm](MobileNetV3Config::timm_names) | [V2](MobileNetV2Config), [V3 small and large](MobileNetV3Config) |
//! | [`EfficientNet`] | torchvision, [timm](EfficientNetConfig::timm_names) | [B0 to B7, V2 S to L](EfficientNetConfig) |
//! | [`ConvNext`] | torchvision, [timm](ConvNextConfig::timm_names) | [tiny to large](ConvNextConfig) |
//! | [`VisionTransformer`] | torchvision, [timm](VisionTransformerConfig::timm_names) | [B/16 to H/14](VisionTransformerConfig) |
//! | [`UNet`], [`AutoencoderKl`] | diffusers | [DDPM, Stable Diffusion 1 and 2](UNetConfig), [their latents](AutoencoderKlConfig) |
//! | [`Gpt2`] | transformers | [small to XL](Gpt2Config), with [generation](Gpt2::generate) |
//! | [`Bert`] | transformers | [base and large](BertConfig) |
//! | [`Wav2Vec2`] | transformers | [base and large](Wav2Vec2Config), of sound |
//!
//! A config is a struct with public fields, and the published sizes are its constructors. As a builder, a config also
//! makes the model a part of another one.
//!
//! # Fine-tuning
//!
//! A published net, with another head, of which only the head is trained:
//!
//! ```
//! use meganeura::prelude::*;
//! use meganeura_models::{ResNet, ResNetConfig};
//!
//! # fn main() -> meganeura::Result<()> {
//! # let device = Device::cpu();
//! # let file = ResNet::init(&device, 1, ResNetConfig::resnet18())?.to_safetensors()?;
//! let mut net = ResNet::init(&device, 42, ResNetConfig::resnet18())?;
//! net.load_safetensors(&file)?.strict()?; // or `net.load("resnet18.safetensors")`
//!
//! net.fc = Linear::new(512, 5).init(&device, 7)?;
//! net.freeze("**")?;
//! net.thaw("fc.**")?;
//! net.evaluate("**")?; // batch normalisation keeps its statistics
//!
//! let images = Tensor::randn(&device, [5, 3, 32, 32], 3)?;
//! let labels = Tensor::indices(&device, [5], &[0, 1, 2, 3, 4])?;
//! let mut optimizer = AdamW::new(3e-3);
//! # let mut losses = Vec::new();
//! for _ in 0..8 {
//!     let tape = Tape::new(&device);
//!     let loss = net.forward(&tape.input(&images)).cross_entropy(&labels);
//!     let grads = tape.backward(&loss)?;
//!     optimizer.step(&mut net, &grads)?;
//!     # losses.push(loss.item()?);
//! }
//! # assert!(losses[7] < losses[0], "{losses:?}");
//! # Ok(())
//! # }
//! ```
//!
//! Images have the range that the original was trained on: for torchvision's nets, each channel less its mean (0.485,
//! 0.456, 0.406), divided by its deviation (0.229, 0.224, 0.225).
//!
//! # Text
//!
//! ```
//! use meganeura::prelude::*;
//! use meganeura_models::{Gpt2, Gpt2Config, Sampling};
//!
//! # fn main() -> meganeura::Result<()> {
//! # let device = Device::cpu();
//! let small = Gpt2Config { vocabulary: 100, context: 32, width: 24, layers: 2, heads: 3, ..Gpt2Config::gpt2() };
//! let net = Gpt2::init(&device, 42, small)?; // the published files: see `Gpt2`
//! let sampling = Sampling { temperature: 0.8, top_k: Some(40), top_p: 0.95, seed: 1 };
//! let tokens = net.generate(&[1, 2, 3], 20, &sampling)?;
//! assert_eq!(tokens.len(), 20);
//! # Ok(())
//! # }
//! ```

mod bert;
mod conv_norm;
mod convnext;
mod diffusion;
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
mod timm;
mod vit;
mod wav2vec2;

pub use bert::{Bert, BertConfig};
pub use convnext::{ConvNext, ConvNextConfig};
pub use diffusion::{AutoencoderKl, AutoencoderKlConfig, UNet, UNetAttention, UNetConfig, UNetLevel, legacy_names};
pub use efficientnet::{EfficientNet, EfficientNetConfig, EfficientNetStage};
pub use gpt2::{Gpt2, Gpt2Config, Gpt2Transformer, Gpt2TransformerConfig};
pub use mobilenet_v2::{MobileNetV2, MobileNetV2Config, MobileNetV2Stage};
pub use mobilenet_v3::{MobileNetV3, MobileNetV3Block, MobileNetV3Config};
pub use norm::{Norm, Normalization};
pub use resnet::{ResNet, ResNetBlock, ResNetBlockConfig, ResNetConfig};
pub use sampling::Sampling;
pub use vit::{VisionTransformer, VisionTransformerConfig, VisionTransformerHeads, VisionTransformerHeadsConfig};
pub use wav2vec2::{Wav2Vec2, Wav2Vec2Config};
