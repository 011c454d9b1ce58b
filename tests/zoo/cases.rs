//! The small models, with the functions that call them.

use libtest_mimic::Failed;
use meganeura::Result;
use meganeura::onnx::Export;
use meganeura::prelude::*;
use meganeura_models::*;

use crate::Outcome;
use crate::numbers::{picture, tokens};

/// A model and its inputs.
pub(crate) trait Case {
    fn module(&self) -> &dyn Module;
    fn module_mut(&mut self) -> &mut dyn Module;
    /// The output on an inference tape.
    fn run(&self) -> Result<Tensor>;
    /// An ONNX file and the inputs of its model.
    fn export(&self) -> Result<Option<(Vec<u8>, Vec<Tensor>)>>;
    /// One backward pass on a training tape.
    fn train(&self) -> Outcome;
}

pub(crate) type Build = fn(&Device) -> Result<Box<dyn Case>>;

struct Of<M> {
    model: M,
    inputs: Vec<Tensor>,
    forward: fn(&M, &[Var]) -> Var,
}

impl<M: Module + 'static> Case for Of<M> {
    fn module(&self) -> &dyn Module {
        &self.model
    }

    fn module_mut(&mut self) -> &mut dyn Module {
        &mut self.model
    }

    fn run(&self) -> Result<Tensor> {
        let tape = Tape::inference(self.inputs[0].device());
        let inputs: Vec<_> = self.inputs.iter().map(|x| tape.input(x)).collect();
        (self.forward)(&self.model, &inputs).to_tensor()
    }

    fn export(&self) -> Result<Option<(Vec<u8>, Vec<Tensor>)>> {
        let device = self.inputs[0].device();
        let forward = |inputs: &Vec<Var>| (self.forward)(&self.model, inputs);
        let onnx = Export::new().record(device, self.inputs.iter().map(Tensor::ty).collect::<Vec<_>>(), forward)?;
        Ok(Some((onnx.to_bytes()?, self.inputs.clone())))
    }

    fn train(&self) -> Outcome {
        let tape = Tape::new(self.inputs[0].device());
        let inputs: Vec<_> = self.inputs.iter().map(|x| tape.input(x)).collect();
        let y = (self.forward)(&self.model, &inputs);
        // Of every output another share.
        let loss = (&y * y.random_uniform().detach()).sum();
        let grads = tape.backward(&loss)?;
        for (path, parameter) in self.model.named_parameters() {
            let grad = grads.get(parameter).ok_or_else(|| Failed::from(format!("`{path}` has no gradient")))?;
            let grad = grad.to_vec()?;
            if !grad.iter().all(|x| x.is_finite()) || grad.iter().all(|&x| x == 0.0) {
                return Err(format!("the gradient of `{path}` is 0 or not finite").into());
            }
        }
        Ok(())
    }
}

fn images<C>(device: &Device, config: C) -> Result<Box<dyn Case>>
where
    C: Init<Output: Layer + 'static>,
{
    let inputs = vec![picture(device, "x", [2, 3, 32, 32])?];
    Ok(Box::new(Of { model: config.init(device, Seed::new(1))?, inputs, forward: |model, x| model.forward(&x[0]) }))
}

fn case<M: Module + 'static>(model: M, inputs: Vec<Tensor>, forward: fn(&M, &[Var]) -> Var) -> Result<Box<dyn Case>> {
    Ok(Box::new(Of { model, inputs, forward }))
}

pub(crate) fn gpt2(device: &Device) -> Result<Gpt2> {
    let config = Gpt2Config { vocabulary: 29, context: 16, width: 24, layers: 2, heads: 3, ..Gpt2Config::gpt2() };
    Gpt2::init(device, 1, config)
}

fn unet(device: &Device, attention: UNetAttention, classes: Option<usize>) -> Result<Box<dyn Case>> {
    let level = |channels, attention, heads| UNetLevel { channels, attention, heads };
    let text = attention == UNetAttention::Text;
    let config = UNetConfig {
        levels: vec![level(8, UNetAttention::None, 2), level(16, attention, if text { 2 } else { 4 })],
        blocks: 1,
        mid: attention,
        text: 12,
        classes,
        groups: 4,
        ..if text { UNetConfig::stable_diffusion_v1() } else { UNetConfig::ddpm_cifar10() }
    };
    let channels = config.inputs;
    let mut inputs = vec![picture(device, "x", [2, channels, 8, 8])?, picture(device, "t", [2])?];
    if text {
        inputs.push(picture(device, "text", [2, 5, 12])?);
        return case(UNet::init(device, 1, config)?, inputs, |net, x| {
            net.forward(&x[0], &(&x[1] * 8.0), Some(&x[2]), None)
        });
    }
    if let Some(classes) = classes {
        inputs.push(tokens(device, "class", [2], classes as u32)?);
    }
    case(UNet::init(device, 1, config)?, inputs, |net, x| net.forward(&x[0], &(&x[1] * 8.0), None, x.get(2)))
}

fn vae(device: &Device) -> Result<AutoencoderKl> {
    let base = AutoencoderKlConfig::stable_diffusion();
    AutoencoderKl::init(device, 1, AutoencoderKlConfig { levels: vec![8, 16], blocks: 1, groups: 4, ..base })
}

fn bert(device: &Device) -> Result<Bert> {
    let config = BertConfig {
        vocabulary: 29,
        context: 12,
        width: 24,
        layers: 2,
        heads: 3,
        inside: 40,
        ..BertConfig::base_cased()
    };
    Bert::init(device, 1, config)
}

/// Two sentences, the end of the second text hidden.
fn bert_masked(net: &Bert, inputs: &[Var]) -> Var {
    let [tokens, kinds, visible] = inputs else { unreachable!("the case has three inputs") };
    let features = net.forward_with(tokens, Some(kinds), Some(visible));
    with_pooled(net, &(&features * visible.reshape([2, 9, 1])))
}

/// The features of the tokens, and behind them those of the whole text.
fn with_pooled(net: &Bert, features: &Var) -> Var {
    Var::concat(&[features, &net.pooled(features).reshape([2, 1, 24])], 1)
}

fn resnet(bottleneck: bool) -> ResNetConfig {
    let base = if bottleneck { ResNetConfig::resnet50() } else { ResNetConfig::resnet18() };
    ResNetConfig { depths: [1, 2, 1, 1], width: 8, classes: 10, ..base }
}

pub(crate) fn mobilenet_v2_stage([expansion, channels, blocks, stride]: [usize; 4]) -> MobileNetV2Stage {
    MobileNetV2Stage { expansion, channels, blocks, stride }
}

pub(crate) fn mobilenet_v3_block(
    ([inputs, kernel, inside, outputs], squeeze, hardswish, stride): ([usize; 4], bool, bool, usize),
) -> MobileNetV3Block {
    MobileNetV3Block { inputs, kernel, inside, outputs, squeeze, hardswish, stride }
}

pub(crate) fn efficientnet_stage(
    [expansion, kernel, stride, inputs, outputs, blocks]: [usize; 6],
    fused: bool,
) -> EfficientNetStage {
    EfficientNetStage { fused, expansion, kernel, stride, inputs, outputs, blocks }
}

/// By the names in `make_models.py`.
pub(crate) fn all() -> Vec<(&'static str, Build)> {
    vec![
        ("resnet_basic", |device| images(device, resnet(false))),
        ("resnet_bottleneck", |device| images(device, ResNetConfig { groups: 4, width_per_group: 8, ..resnet(true) })),
        ("resnet_group_norm", |device| {
            images(device, ResNetConfig { depths: [1; 4], norm: Normalization::Group(2), ..resnet(false) })
        }),
        ("mobilenet_v2", |device| {
            let stages = [[1, 8, 1, 1], [2, 16, 2, 2], [3, 24, 1, 1]].map(mobilenet_v2_stage).to_vec();
            images(device, MobileNetV2Config { stages, width: 0.5, classes: 10, ..MobileNetV2Config::mobilenet_v2() })
        }),
        ("mobilenet_v3", |device| {
            let blocks = [
                ([16, 3, 16, 16], true, false, 2),
                ([16, 5, 40, 24], false, true, 1),
                ([24, 3, 64, 24], true, true, 1),
            ];
            let blocks = blocks.map(mobilenet_v3_block).to_vec();
            let base = MobileNetV3Config::mobilenet_v3_small();
            images(device, MobileNetV3Config { blocks, hidden: 20, classes: 10, ..base })
        }),
        ("efficientnet", |device| {
            let stages = [[1, 3, 1, 16, 8, 2], [4, 5, 2, 8, 16, 3]].map(|stage| efficientnet_stage(stage, false));
            let base = EfficientNetConfig::b5();
            images(device, EfficientNetConfig { stages: stages.to_vec(), classes: 10, ..base })
        }),
        ("efficientnet_v2", |device| {
            let stages = [([1, 3, 1, 16, 16, 2], true), ([2, 3, 2, 16, 24, 2], true), ([2, 3, 2, 24, 32, 2], false)];
            let stages = stages.map(|(stage, fused)| efficientnet_stage(stage, fused)).to_vec();
            let base = EfficientNetConfig::v2_s();
            images(device, EfficientNetConfig { stages, top: Some(40), eps: 1e-5, classes: 10, ..base })
        }),
        ("convnext", |device| {
            let (depths, widths) = (vec![2, 1, 2], vec![8, 12, 20]);
            images(device, ConvNextConfig { depths, widths, classes: 10, ..ConvNextConfig::tiny() })
        }),
        ("unet", |device| unet(device, UNetAttention::Pixels, None)),
        ("unet_text", |device| unet(device, UNetAttention::Text, None)),
        ("unet_class", |device| unet(device, UNetAttention::Pixels, Some(7))),
        ("vae", |device| {
            case(vae(device)?, vec![picture(device, "x", [2, 3, 16, 16])?], |net, x| {
                let (mean, log_variance) = net.encode(&x[0]);
                let both = Var::concat(&[&mean, &log_variance], 1);
                // So that every parameter has a part in the result.
                Var::concat(&[&both, &net.decode(&mean).mean_over(&[1]).reshape([2, 4, 8, 8])], 1)
            })
        }),
        ("vit", |device| {
            let base = VisionTransformerConfig::b_16();
            let small = VisionTransformerConfig { side: 32, patch: 8, layers: 2, heads: 3, width: 24, ..base };
            images(device, VisionTransformerConfig { inside: 40, classes: 10, ..small })
        }),
        ("gpt2", |device| case(gpt2(device)?, vec![tokens(device, "x", [2, 9], 29)?], |net, x| net.forward(&x[0]))),
        ("bert", |device| {
            case(bert(device)?, vec![tokens(device, "x", [2, 9], 29)?], |net, x| with_pooled(net, &net.forward(&x[0])))
        }),
        ("bert_masked", |device| {
            let mut visible = [1.0; 18];
            visible[9 + 6..].fill(0.0);
            let visible = Tensor::from_slice(device, [2, 9], &visible)?;
            let inputs = vec![tokens(device, "x", [2, 9], 29)?, tokens(device, "kinds", [2, 9], 2)?, visible];
            case(bert(device)?, inputs, bert_masked)
        }),
        ("wav2vec2", |device| {
            let convolutions = vec![[10, 5], [3, 2], [3, 2], [2, 2]];
            let small = Wav2Vec2Config { convolutions, channels: 8, width: 24, layers: 2, ..Wav2Vec2Config::base() };
            let config = Wav2Vec2Config { heads: 3, inside: 40, positions: [4, 3], ..small };
            let inputs = vec![picture(device, "x", [2, 500])?];
            case(Wav2Vec2::init(device, 1, config)?, inputs, |net, x| net.forward(&x[0]))
        }),
    ]
}
