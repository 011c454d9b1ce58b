//! Files under timm's names: small models give timm's outputs, and published sizes have timm's names and shapes.

use libtest_mimic::{Failed, Trial};
use meganeura::io::{Names, tensors_from_safetensors, tensors_to_safetensors};
use meganeura::prelude::*;
use meganeura_models::*;

use crate::cases::{efficientnet_stage, mobilenet_v2_stage, mobilenet_v3_block};
use crate::numbers::{number, picture};
use crate::sizes::expect_lines;
use crate::{Outcome, golden, within};

/// A model, and the rules for its file.
trait Of {
    fn module(&self) -> &dyn Module;
    /// The output with parameters of a file.
    fn run(&mut self, bytes: &[u8]) -> Result<Tensor>;
    /// The bytes of its file.
    fn file(&self) -> Result<Vec<u8>>;
}

struct Model<M>(M, Names);

impl<M: Module + Layer> Of for Model<M> {
    fn module(&self) -> &dyn Module {
        &self.0
    }

    fn run(&mut self, bytes: &[u8]) -> Result<Tensor> {
        self.0.load_safetensors_with(bytes, &self.1)?.strict()?;
        let device = Device::cpu_with(Precision::Double);
        picture(&device, "x", [2, 3, 32, 32])?.map(|x| self.0.forward(x))
    }

    fn file(&self) -> Result<Vec<u8>> {
        self.0.to_safetensors_with(&self.1)
    }
}

type Build = fn(&Device) -> Result<Box<dyn Of>>;

macro_rules! models {
    ($($name:literal => $Model:ident of $config:expr;)*) => {
        vec![$(($name, (|device| {
            let config = $config;
            let names = config.timm_names();
            Ok(Box::new(Model($Model::init(device, 1, config)?, names)))
        }) as Build),)*]
    };
}

fn small() -> Vec<(&'static str, Build)> {
    models! {
        "timm_convnext" => ConvNext of {
            ConvNextConfig { depths: vec![2, 1, 1, 1], widths: vec![8, 12, 14, 16], classes: 10, ..ConvNextConfig::tiny() }
        };
        "timm_efficientnet" => EfficientNet of {
            let stages = [[1, 3, 1, 16, 8, 2], [4, 5, 2, 8, 16, 2]].map(|stage| efficientnet_stage(stage, false));
            EfficientNetConfig { stages: stages.to_vec(), top: Some(40), classes: 10, ..EfficientNetConfig::b0() }
        };
        "timm_efficientnet_v2" => EfficientNet of {
            let stages = [([1, 3, 1, 16, 16, 2], true), ([2, 3, 2, 16, 24, 2], true), ([2, 3, 2, 24, 32, 2], false)];
            let stages = stages.map(|(stage, fused)| efficientnet_stage(stage, fused)).to_vec();
            EfficientNetConfig { stages, top: Some(40), eps: 1e-5, classes: 10, ..EfficientNetConfig::v2_s() }
        };
        "timm_mobilenet_v2" => MobileNetV2 of {
            let stages = [[1, 8, 1, 1], [2, 16, 2, 2], [3, 24, 1, 1]].map(mobilenet_v2_stage).to_vec();
            MobileNetV2Config { stages, classes: 10, ..MobileNetV2Config::mobilenet_v2() }
        };
        "timm_mobilenet_v3" => MobileNetV3 of {
            let blocks = [
                ([16, 3, 16, 16], true, false, 2),
                ([16, 5, 48, 24], false, true, 1),
                ([24, 5, 72, 24], false, true, 1),
                ([24, 3, 48, 32], true, true, 1),
            ];
            let blocks = blocks.map(mobilenet_v3_block).to_vec();
            let base = MobileNetV3Config::mobilenet_v3_small();
            MobileNetV3Config { blocks, hidden: 20, eps: 1e-5, classes: 10, ..base }
        };
        "timm_vit" => VisionTransformer of {
            let base = VisionTransformerConfig::b_16();
            VisionTransformerConfig { side: 32, patch: 8, layers: 2, heads: 3, width: 24, inside: 40, classes: 10, ..base }
        };
    }
}

fn published() -> Vec<(&'static str, Build)> {
    models! {
        "timm/efficientnet_b0" => EfficientNet of EfficientNetConfig::b0();
        "timm/efficientnet_b4" => EfficientNet of EfficientNetConfig::b4();
        "timm/efficientnetv2_s" => EfficientNet of EfficientNetConfig::v2_s();
        "timm/mobilenetv2_100" => MobileNetV2 of MobileNetV2Config::mobilenet_v2();
        "timm/mobilenetv3_large_100" => MobileNetV3 of MobileNetV3Config::mobilenet_v3_large();
        "timm/mobilenetv3_small_100" => MobileNetV3 of MobileNetV3Config::mobilenet_v3_small();
        "timm/convnext_tiny" => ConvNext of ConvNextConfig::tiny();
        "timm/vit_base_patch16_224" => VisionTransformer of VisionTransformerConfig::b_16();
    }
}

/// The names and shapes of a model's file.
fn lines(model: &dyn Of) -> Result<Vec<(String, Shape)>, Failed> {
    let tensors = tensors_from_safetensors(&model.file()?, &Device::cpu())?;
    Ok(tensors.iter().map(|(name, tensor)| (name.clone(), tensor.shape())).collect())
}

pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    small().into_iter().map(|(name, _)| name)
}

pub(crate) fn sizes() -> impl Iterator<Item = &'static str> {
    published().into_iter().map(|(name, _)| name)
}

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    for (name, build) in small() {
        trials.push(Trial::test(format!("timm::{name}"), move || agrees(name, build)));
    }
    for (name, build) in published() {
        // The largest models of a kind differ from the others in numbers alone.
        let is_large = name.contains("convnext") || name.contains("vit");
        let run = move || expect_lines(name, &lines(&*build(&Device::cpu())?)?);
        trials.push(Trial::test(format!("sizes::{name}"), run).with_ignored_flag(is_large));
    }
}

/// A file with timm's names and shapes loads, and gives timm's output.
fn agrees(name: &str, build: Build) -> Outcome {
    let device = Device::cpu_with(Precision::Double);
    let mut model = build(&device)?;
    let lines = lines(&*model)?;
    expect_lines(&format!("small/{name}"), &lines)?;
    let tensor = |(name, shape): (String, Shape)| {
        let tensor = Tensor::from_f64(&device, shape, &number(&name, shape))?;
        Ok((name, tensor))
    };
    let tensors = lines.into_iter().map(tensor).collect::<Result<Vec<_>>>()?;
    let bytes = tensors_to_safetensors(tensors.iter().map(|(name, tensor)| (name.clone(), tensor)))?;
    let golden = golden()?;
    let expected = golden.get(name).ok_or("no golden case has this name: run make_models.py")?;
    within("the output", &model.run(&bytes)?, expected, 1e-9)?;
    assert_eq!(model.file()?, bytes, "it is saved as it was loaded");
    assert!(!model.module().leaves().is_empty());
    Ok(())
}
