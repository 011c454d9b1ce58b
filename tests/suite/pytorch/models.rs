//! The models of the reference workloads, at small sizes, and a model in torchvision's style: from PyTorch's files, and
//! back.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use libtest_mimic::Trial;
use meganeura::io::{Checkpoint, LoadReport, Names};
use meganeura::{Device, ErrorKind, Layer, Module, ModuleExt, Precision, Result};
use meganeura_examples::models::{
    Gpt2, Gpt2Config, LstmLanguage, LstmLanguageConfig, MobileNetV2, MobileNetV2Config, ResNet18Gn, ResNet18GnConfig,
    Stage, UNet, UNetConfig, ViT, ViTConfig,
};
use safetensors::{Dtype, SafeTensors};

use super::golden::path_of;
use super::torchvision::{self, ResNet, ResNetConfig};
use super::{Case, module};
use crate::Outcome;

fn resnet18gn(device: &Device) -> Result<ResNet18Gn> {
    ResNet18Gn::init(device, 1, ResNet18GnConfig { images: 3, width: 4, groups: 2, classes: 10 })
}

fn unet(device: &Device) -> Result<UNet> {
    UNet::init(device, 1, UNetConfig { images: 3, channels: 4, groups: 2 })
}

fn resnet(device: &Device) -> Result<ResNet> {
    ResNet::init(device, 1, ResNetConfig { depths: [1, 2, 1, 1], width: 4, classes: 10 })
}

fn vit(device: &Device) -> Result<ViT> {
    let config = ViTConfig { images: 3, side: 12, patch: 4, width: 16, heads: 2, layers: 2, classes: 10 };
    ViT::init(device, 1, config)
}

fn gpt2(device: &Device) -> Result<Gpt2> {
    Gpt2::init(device, 1, Gpt2Config { vocabulary: 11, context: 9, width: 16, heads: 2, layers: 2 })
}

fn mobilenet(device: &Device) -> Result<MobileNetV2> {
    let stage = |[expansion, width, blocks, stride]: [usize; 4]| Stage { expansion, width, blocks, stride };
    let stages = [[1, 4, 1, 1], [2, 6, 2, 2], [3, 10, 1, 1]].map(stage).to_vec();
    MobileNetV2::init(device, 1, MobileNetV2Config { first: 4, stages, last: 12, classes: 10 })
}

fn lstm(device: &Device) -> Result<LstmLanguage> {
    LstmLanguage::init(device, 1, LstmLanguageConfig { vocabulary: 11, width: 6, layers: 2 })
}

/// PyTorch's twins project queries, keys and values at once.
fn transformer_names() -> Names {
    let projections = ["query", "key", "value"].map(|name| format!("layers.*.attention.{name}.*"));
    Names::new()
        .split("layers.*.attention.qkv.*", projections)
        .rename("layers.*.feed_forward.0.*", "layers.*.feed_forward.linear1.*")
        .rename("layers.*.feed_forward.2.*", "layers.*.feed_forward.linear2.*")
}

fn resnet18gn_names() -> Names {
    Names::new().rename("stem.0.*", "stem.*").rename("stem.1.*", "norm.*")
}

/// PyTorch's twin has its blocks, and the layers between them, in one list.
fn unet_names() -> Names {
    // There, the embedding has no parameters and is not part of the chain.
    let mut names = Names::new().rename("time.0.*", "time.1.*").rename("time.2.*", "time.3.*");
    let down = ["0.blocks.0", "0.blocks.1", "0.half", "1.blocks.0", "1.blocks.1", "1.half", "2.blocks.0", "2.blocks.1"];
    for (index, place) in down.iter().enumerate() {
        names = names.rename(format!("down.{index}.**"), format!("down.{place}.**"));
    }
    for (index, place) in (0..11).map(|index| (index, (index / 4, index % 4))) {
        names = match place {
            (level, 3) => names.rename(format!("up.{index}.1.*"), format!("up.{level}.double.*")),
            (level, block) => names.rename(format!("up.{index}.**"), format!("up.{level}.blocks.{block}.**")),
        };
    }
    names
}

pub(super) fn cases() -> Vec<Arc<Case>> {
    vec![
        module("models", "resnet18gn", resnet18gn_names(), resnet18gn, |net, inputs| {
            net.forward(inputs.var("x")).cross_entropy(inputs.tensor("labels"))
        }),
        module("models", "unet", unet_names(), unet, |net, inputs| {
            net.forward(inputs.var("x"), &inputs.as_floats("t")).mse(inputs.var("noise"))
        }),
        module("models", "vit", transformer_names(), vit, |net, inputs| {
            net.forward(inputs.var("x")).cross_entropy(inputs.tensor("labels"))
        }),
        module("models", "gpt2", transformer_names(), gpt2, |net, inputs| {
            net.loss(inputs.var("tokens"), inputs.var("next"))
        }),
        module("models", "mobilenet", Names::new(), mobilenet, |net, inputs| {
            net.forward(inputs.var("x")).cross_entropy(inputs.tensor("labels"))
        }),
        module("models", "lstm", Names::new(), lstm, |net, inputs| net.loss(inputs.var("tokens"), inputs.var("next"))),
        module("models", "torchvision_resnet.eval()", torchvision::names(), resnet, |net, inputs| {
            net.forward(inputs.var("x"))
        }),
    ]
}

pub(super) fn collect(trials: &mut Vec<Trial>) {
    let mut test = |name: &str, run: fn() -> Outcome| trials.push(Trial::test(format!("pytorch::{name}"), run));
    test("resnet18gn_is_saved_as_pytorch_does", || saved_as_theirs("resnet18gn", resnet18gn, &resnet18gn_names()));
    test("unet_is_saved_as_pytorch_does", || saved_as_theirs("unet", unet, &unet_names()));
    test("vit_is_saved_as_pytorch_does", || saved_as_theirs("vit", vit, &transformer_names()));
    test("gpt2_is_saved_as_pytorch_does", || saved_as_theirs("gpt2", gpt2, &transformer_names()));
    test("mobilenet_is_saved_as_pytorch_does", || saved_as_theirs("mobilenet", mobilenet, &Names::new()));
    test("lstm_is_saved_as_pytorch_does", || saved_as_theirs("lstm", lstm, &Names::new()));
    test("torchvision_resnet_is_saved_as_pytorch_does", || {
        saved_as_theirs("torchvision_resnet", resnet, &torchvision::names())
    });
    test("counters_of_batch_normalisation_are_ignored", counters);
    test("files_of_other_models_are_refused", refused);
    test("unmapped_names_get_suggestions", unmapped);
}

fn load<M: Module>(net: &mut M, file: &str, names: &Names) -> Result<LoadReport> {
    net.load_with(path_of(file), names)
}

/// PyTorch's file, loaded and saved under its names, keeps names, shapes and numbers, in this framework's type. If
/// `MEGANEURA_SAVE` is set, the result is written there for PyTorch to load.
fn saved_as_theirs<M: Module>(file: &str, build: fn(&Device) -> Result<M>, names: &Names) -> Outcome {
    let bytes = std::fs::read(path_of(file))?;
    let theirs = SafeTensors::deserialize(&bytes)?;
    let expected: BTreeMap<_, _> = theirs.iter().filter(|(name, _)| !name.ends_with("num_batches_tracked")).collect();
    for (precision, dtype) in [(Precision::Full, Dtype::F32), (Precision::Double, Dtype::F64)] {
        let mut net = build(&Device::cpu_with(precision))?;
        load(&mut net, file, names)?.strict()?;
        let ours = net.to_safetensors_with(names)?;
        let ours = SafeTensors::deserialize(&ours)?;
        let found: BTreeMap<_, _> = ours.iter().collect();
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        for (name, view) in &found {
            assert_eq!((view.dtype(), view.shape()), (dtype, expected[name].shape()), "{name}");
        }
        // Loads the saved file into a new model: the numbers are the same.
        let mut again = build(&Device::cpu_with(precision))?;
        again.load_safetensors_with(&net.to_safetensors_with(names)?, names)?.strict()?;
        assert_eq!(again.to_safetensors()?, net.to_safetensors()?);
        if let Some(directory) = std::env::var_os("MEGANEURA_SAVE").filter(|_| precision == Precision::Full) {
            std::fs::create_dir_all(&directory)?;
            net.save_with(PathBuf::from(directory).join(format!("{file}.safetensors")), names)?;
        }
    }
    Ok(())
}

fn counters() -> Outcome {
    let mut net = resnet(&Device::cpu())?;
    let report = load(&mut net, "torchvision_resnet", &torchvision::names())?;
    report.strict()?;
    assert_eq!(report.loaded.len(), net.leaves().len());
    assert_eq!(report.ignored.len(), 14);
    assert!(report.ignored.iter().all(|name| name.ends_with(".num_batches_tracked")), "{:?}", report.ignored);
    Ok(())
}

/// From another model's file, nothing is loaded, and the first differences are listed.
fn refused() -> Outcome {
    let mut net = resnet18gn(&Device::cpu())?;
    let before = net.to_safetensors()?;
    let error = load(&mut net, "unet", &resnet18gn_names()).map(drop).expect_err("another model");
    assert_eq!(error.kind(), ErrorKind::Checkpoint);
    let message = error.to_string();
    for part in [
        "unet.safetensors: ",
        "`head.weight`: [3, 4, 3, 3] in the file, [10, 32] in the model\n",
        "missing from the file:\n  `blocks.0.conv1.weight` [4, 4, 3, 3]\n",
        "  and 49 more\nonly in the file:\n  `down.0.conv1.bias` [4]\n",
        "  and 185 more",
    ] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    assert!(!message.contains("did you mean"), "{message}");
    assert_eq!(net.to_safetensors()?, before);
    // In a wider model, every shape differs, and the first are listed with their paths.
    let wider = ResNet18GnConfig { images: 3, width: 8, groups: 2, classes: 10 };
    let mut net = ResNet18Gn::init(&Device::cpu(), 1, wider)?;
    let message = load(&mut net, "resnet18gn", &resnet18gn_names()).map(drop).expect_err("wider").to_string();
    assert_eq!(message.lines().filter(|line| line.contains(" in the file, ")).count(), 8, "{message}");
    let others = net.leaves().len() - 1 - 8;
    assert!(message.contains(&format!("\n  and {others} more")), "all but the bias of the head: {message}");
    assert!(message.contains("`norm.weight`: [4] in the file, [8] in the model"), "{message}");
    Ok(())
}

fn unmapped() -> Outcome {
    let mut net = resnet(&Device::cpu())?;
    let names = Names::new().rename("layer1.**", "stages.0.**");
    let error = load(&mut net, "torchvision_resnet", &names)?.strict().expect_err("half of the names");
    let message = error.to_string();
    for part in [
        // Other parameters have this shape, too.
        "`norm.weight` [4]\n",
        "`stem.weight` [4, 3, 7, 7]; did you mean `conv1.weight` [4, 3, 7, 7]?\n",
        "`stages.0.0.norm1.bias` [4]; did you mean `layer1.0.bn1.bias` [4]?\n",
        "`fc.weight` [10, 32]; did you mean `head.weight` [10, 32]?\n",
        "  and 62 more\n",
    ] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    assert!(!message.contains("num_batches_tracked"), "{message}");
    Ok(())
}
