//! The published sizes: the names and shapes of all tensors, as a checksum beside their number.

use std::collections::BTreeMap;

use libtest_mimic::{Failed, Trial};
use meganeura::prelude::*;
use meganeura_models::*;

use crate::numbers::fnv1a;
use crate::{Outcome, path_of, timm};

type Build = fn(&Device) -> Result<Box<dyn Module>>;

/// Sizes with more numbers than this are tested on request (`--ignored`): they need gigabytes.
const MOST: usize = 26_000_000;

macro_rules! sizes {
    ($($Model:ident { $($name:literal => $config:expr),* $(,)? })*) => {
        [$($(($name, (|device| Ok(Box::new($Model::init(device, 1, $config)?))) as Build),)*)*]
    };
}

fn all() -> Vec<(&'static str, Build)> {
    sizes! {
        ResNet {
            "resnet18" => ResNetConfig::resnet18(),
            "resnet34" => ResNetConfig::resnet34(),
            "resnet50" => ResNetConfig::resnet50(),
            "resnet101" => ResNetConfig::resnet101(),
            "resnet152" => ResNetConfig::resnet152(),
            "resnet50_gn" => ResNetConfig { norm: Normalization::Group(32), ..ResNetConfig::resnet50() },
            "resnext50_32x4d" => ResNetConfig::resnext50_32x4d(),
            "resnext101_32x8d" => ResNetConfig::resnext101_32x8d(),
            "wide_resnet50_2" => ResNetConfig::wide_resnet50_2(),
            "wide_resnet101_2" => ResNetConfig::wide_resnet101_2(),
        }
        MobileNetV2 {
            "mobilenet_v2" => MobileNetV2Config::mobilenet_v2(),
        }
        MobileNetV3 {
            "mobilenet_v3_small" => MobileNetV3Config::mobilenet_v3_small(),
            "mobilenet_v3_large" => MobileNetV3Config::mobilenet_v3_large(),
        }
        EfficientNet {
            "efficientnet_b0" => EfficientNetConfig::b0(),
            "efficientnet_b1" => EfficientNetConfig::b1(),
            "efficientnet_b2" => EfficientNetConfig::b2(),
            "efficientnet_b3" => EfficientNetConfig::b3(),
            "efficientnet_b4" => EfficientNetConfig::b4(),
            "efficientnet_b5" => EfficientNetConfig::b5(),
            "efficientnet_b6" => EfficientNetConfig::b6(),
            "efficientnet_b7" => EfficientNetConfig::b7(),
            "efficientnet_v2_s" => EfficientNetConfig::v2_s(),
            "efficientnet_v2_m" => EfficientNetConfig::v2_m(),
            "efficientnet_v2_l" => EfficientNetConfig::v2_l(),
        }
        ConvNext {
            "convnext_tiny" => ConvNextConfig::tiny(),
            "convnext_small" => ConvNextConfig::small(),
            "convnext_base" => ConvNextConfig::base(),
            "convnext_large" => ConvNextConfig::large(),
        }
        VisionTransformer {
            "vit_b_16" => VisionTransformerConfig::b_16(),
            "vit_b_32" => VisionTransformerConfig::b_32(),
            "vit_l_16" => VisionTransformerConfig::l_16(),
            "vit_l_32" => VisionTransformerConfig::l_32(),
            "vit_h_14" => VisionTransformerConfig::h_14(),
        }
        Gpt2 {
            "gpt2" => Gpt2Config::gpt2(),
            "gpt2-medium" => Gpt2Config::medium(),
            "gpt2-large" => Gpt2Config::large(),
            "gpt2-xl" => Gpt2Config::xl(),
        }
        UNet {
            "ddpm-cifar10-32" => UNetConfig::ddpm_cifar10(),
            "stable-diffusion-v1" => UNetConfig::stable_diffusion_v1(),
            "stable-diffusion-v2" => UNetConfig::stable_diffusion_v2(),
        }
        AutoencoderKl {
            "stable-diffusion-vae" => AutoencoderKlConfig::stable_diffusion(),
        }
        Wav2Vec2 {
            "wav2vec2-base" => Wav2Vec2Config::base(),
            "wav2vec2-large" => Wav2Vec2Config::large(),
        }
        Bert {
            "bert-base-uncased" => BertConfig::base_uncased(),
            "bert-base-cased" => BertConfig::base_cased(),
            "bert-large-uncased" => BertConfig::large_uncased(),
        }
    }
    .to_vec()
}

/// A size's number of tensors and numbers, and the checksum, by its name.
fn golden() -> Result<BTreeMap<String, (usize, usize, String)>, Failed> {
    let text = std::fs::read_to_string(path_of("zoo.txt"))?;
    let parse = |line: &str| {
        let [name, tensors, numbers, checksum] = line.split(' ').collect::<Vec<_>>()[..] else {
            return Err(Failed::from(format!("`{line}` is not a name and three numbers")));
        };
        Ok((name.to_owned(), (tensors.parse()?, numbers.parse()?, checksum.to_owned())))
    };
    text.lines().map(parse).collect()
}

/// Compares a model's names and shapes with a line of the file.
pub(crate) fn expect_line(name: &str, module: &dyn Module) -> Outcome {
    let lines: Vec<_> = module.leaves().into_iter().map(|leaf| (leaf.path.clone(), leaf.ty().shape)).collect();
    expect_lines(name, &lines)
}

/// Compares names and shapes with a line of the file.
pub(crate) fn expect_lines(name: &str, all: &[(String, Shape)]) -> Outcome {
    let golden = golden()?;
    let expected = golden.get(name).ok_or("no line has this name: run make_models.py")?;
    let line = |(path, shape): &(String, Shape)| {
        let extents = shape.dims().iter().map(|extent| format!(" {extent}")).collect::<String>();
        format!("{path}{extents}\n")
    };
    let mut lines: Vec<_> = all.iter().map(line).collect();
    lines.sort();
    let numbers: usize = all.iter().map(|(_, shape)| shape.elements()).sum();
    let found = (lines.len(), numbers, format!("{:016x}", fnv1a(lines.concat().as_bytes())));
    if found == *expected {
        return Ok(());
    }
    Err(format!(
        "found {found:?}, expected {expected:?}; `make_models.py --names` prints theirs, ours:\n{}",
        lines.concat()
    )
    .into())
}

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(Trial::test("sizes::all_are_compared", || {
        let theirs = golden()?.into_keys().filter(|name| !name.starts_with("small/")).collect::<Vec<_>>();
        let mut ours: Vec<_> =
            all().into_iter().map(|(name, _)| name).chain(timm::sizes()).map(str::to_owned).collect();
        ours.sort();
        assert_eq!(ours, theirs);
        Ok(())
    }));
    let golden = golden().unwrap_or_default();
    for (name, build) in all() {
        let is_large = golden.get(name).is_some_and(|(_, numbers, _)| *numbers > MOST);
        let run = move || expect_line(name, &*build(&Device::cpu())?);
        trials.push(Trial::test(format!("sizes::{name}"), run).with_ignored_flag(is_large));
    }
}
