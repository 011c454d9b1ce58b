//! The U-Net of denoising models, under diffusers' names.

use meganeura::ErrorKind;
use meganeura::prelude::*;

use super::parts::{
    Double, DoubleConfig, Halve, HalveConfig, PixelAttention, PixelAttentionConfig, Resnet, ResnetConfig,
};
use super::transformer::{Transformer, TransformerConfig};
use crate::one_of::one_of;

/// The U-Net of a denoising model, which may see a text or a class:
/// [Ho et al., 2020](https://arxiv.org/abs/2006.11239), [Rombach et al., 2021](https://arxiv.org/abs/2112.10752)
///
/// Its parameters have the names and shapes of `UNet2DModel` and `UNet2DConditionModel` of diffusers. Older files call
/// the parts of an attention between pixels differently: see [`legacy_names`](super::legacy_names).
///
/// Shapes: images `x [N, C, H, W]`, whose sides are multiples of `2^(levels − 1)`, and times `t [N]`, floats → the
/// predicted noise, `[N, C, H, W]`.
///
/// ```
/// use meganeura::prelude::*;
/// use meganeura_models::{UNet, UNetAttention, UNetConfig, UNetLevel};
///
/// # fn main() -> meganeura::Result<()> {
/// let device = Device::cpu();
/// let level = |channels, attention| UNetLevel { channels, attention, heads: 2 };
/// let levels = vec![level(8, UNetAttention::None), level(16, UNetAttention::Text)];
/// let config = UNetConfig { levels, groups: 4, text: 12, ..UNetConfig::stable_diffusion_v1() };
/// let net = UNet::init(&device, 42, config)?;
/// let tape = Tape::inference(&device);
/// let [x, t, text] = [&[2, 4, 8, 8][..], &[2], &[2, 5, 12]].map(|shape| Tensor::randn(&device, Shape::new(shape), 1));
/// let (x, t, text) = (tape.input(&x?), tape.input(&t?), tape.input(&text?));
/// assert_eq!(net.forward(&x, &t, Some(&text), None).shape(), x.shape());
/// # Ok(())
/// # }
/// ```
#[derive(Module, Debug, Clone)]
#[module(config = UNetConfig)]
pub struct UNet {
    #[module(init = Conv2d::new(config.inputs, config.first(), 3).padding(1))]
    conv_in: Conv2d,
    #[module(init = TimeConfig { inputs: config.first(), width: config.time() })]
    time_embedding: Time,
    #[module(init = config.classes.map(|classes| Embedding::new(classes, config.time())))]
    class_embedding: Option<Embedding>,
    #[module(init = config.down())]
    down_blocks: Vec<Down>,
    #[module(init = config.mid())]
    mid_block: Mid,
    #[module(init = config.up())]
    up_blocks: Vec<Up>,
    #[module(init = GroupNorm::new(config.groups, config.first()).eps(config.eps))]
    conv_norm_out: GroupNorm,
    #[module(init = Conv2d::new(config.first(), config.outputs, 3).padding(1))]
    conv_out: Conv2d,
    #[module(skip, init = Angles { width: config.first(), cos_first: config.cos_first, shift: config.frequency_shift })]
    angles: Angles,
}

/// Describes a [`UNet`]
#[derive(Debug, Clone, PartialEq)]
pub struct UNetConfig {
    /// Channels of the images.
    pub inputs: usize,
    /// Channels of the result.
    pub outputs: usize,
    /// The levels, from whole images to the smallest ones; at least one.
    pub levels: Vec<UNetLevel>,
    /// The number of residual blocks of each level on the way down; one more on the way up.
    pub blocks: usize,
    /// The attention between the two blocks at the bottom, with the heads of the last level.
    pub mid: UNetAttention,
    /// Features of a text's tokens.
    pub text: usize,
    /// The number of classes, if the model sees one.
    pub classes: Option<usize>,
    /// Matrices in place of 1×1 convolutions around the attention to a text.
    pub linear_projection: bool,
    /// Groups of all normalisations.
    pub groups: usize,
    /// The ε of the normalisations of residual blocks.
    pub eps: f64,
    /// The cosines of the time's embedding before its sines.
    pub cos_first: bool,
    /// The last frequency of the time's embedding is 10,000⁻¹ for 1, and a little more for 0.
    pub frequency_shift: f64,
    /// Halves images with padding on all sides, in place of a row below and a column on the right.
    pub symmetric_padding: bool,
}

/// A level of a [`UNet`]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UNetLevel {
    /// Channels of the images.
    pub channels: usize,
    /// The attention behind each residual block.
    pub attention: UNetAttention,
    /// Heads of each attention, a divisor of the channels.
    pub heads: usize,
}

/// The attention of a level of a [`UNet`]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UNetAttention {
    /// None.
    None,
    /// Between the pixels.
    Pixels,
    /// Between the pixels, and from them to a text.
    Text,
}

impl UNetConfig {
    /// DDPM for CIFAR-10, `google/ddpm-cifar10-32`: 35,746,307 parameters.
    #[must_use]
    pub fn ddpm_cifar10() -> Self {
        let level = |channels, attention| UNetLevel { channels, attention, heads: 1 };
        let plain = UNetAttention::None;
        let levels = vec![level(128, plain), level(256, UNetAttention::Pixels), level(256, plain), level(256, plain)];
        Self {
            inputs: 3,
            outputs: 3,
            levels,
            blocks: 2,
            mid: UNetAttention::Pixels,
            text: 0,
            classes: None,
            linear_projection: false,
            groups: 32,
            eps: 1e-6,
            cos_first: false,
            frequency_shift: 1.0,
            symmetric_padding: false,
        }
    }

    /// Stable Diffusion 1.x: 859,520,964 parameters. It works on the latents of an
    /// [`AutoencoderKl`](super::AutoencoderKl).
    #[must_use]
    pub fn stable_diffusion_v1() -> Self {
        let level = |channels, attention| UNetLevel { channels, attention, heads: 8 };
        let text = UNetAttention::Text;
        let levels = vec![level(320, text), level(640, text), level(1280, text), level(1280, UNetAttention::None)];
        Self {
            inputs: 4,
            outputs: 4,
            levels,
            blocks: 2,
            mid: text,
            text: 768,
            classes: None,
            linear_projection: false,
            groups: 32,
            eps: 1e-5,
            cos_first: true,
            frequency_shift: 0.0,
            symmetric_padding: true,
        }
    }

    /// Stable Diffusion 2.x: 865,910,724 parameters.
    #[must_use]
    pub fn stable_diffusion_v2() -> Self {
        let v1 = Self::stable_diffusion_v1();
        let heads = |level: UNetLevel| UNetLevel { heads: level.channels / 64, ..level };
        let levels = v1.levels.iter().copied().map(heads).collect();
        Self { levels, text: 1024, linear_projection: true, ..v1 }
    }

    fn first(&self) -> usize {
        self.levels.first().map_or(0, |level| level.channels)
    }

    /// Features of the time's embedding.
    fn time(&self) -> usize {
        4 * self.first()
    }

    fn resnet(&self, inputs: usize, outputs: usize) -> ResnetConfig {
        ResnetConfig { inputs, outputs, time: Some(self.time()), groups: self.groups, eps: self.eps }
    }

    fn attention(&self, kind: UNetAttention, of: UNetLevel) -> Option<AttentionConfig> {
        let (channels, heads, groups) = (of.channels, of.heads, self.groups);
        match kind {
            UNetAttention::None => None,
            UNetAttention::Pixels => {
                Some(AttentionConfig::Pixels(PixelAttentionConfig { channels, heads, groups, eps: self.eps }))
            }
            UNetAttention::Text => {
                let (text, linear) = (self.text, self.linear_projection);
                Some(AttentionConfig::Text(TransformerConfig { channels, heads, text, groups, linear }))
            }
        }
    }

    fn down(&self) -> Vec<DownConfig> {
        let level = |(index, of): (usize, &UNetLevel)| {
            let before = self.levels[index.saturating_sub(1)].channels;
            let inputs = |at| if at == 0 { before } else { of.channels };
            let halve = HalveConfig { channels: of.channels, padding: usize::from(self.symmetric_padding) };
            DownConfig {
                resnets: (0..self.blocks).map(|at| self.resnet(inputs(at), of.channels)).collect(),
                attentions: (0..self.blocks).filter_map(|_| self.attention(of.attention, *of)).collect(),
                downsamplers: if index + 1 < self.levels.len() { vec![halve] } else { Vec::new() },
            }
        };
        self.levels.iter().enumerate().map(level).collect()
    }

    fn mid(&self) -> MidConfig {
        let of = self.levels.last().copied();
        let of = of.unwrap_or(UNetLevel { channels: 0, attention: UNetAttention::None, heads: 1 });
        MidConfig {
            resnets: vec![self.resnet(of.channels, of.channels); 2],
            attentions: self.attention(self.mid, of).into_iter().collect(),
        }
    }

    fn up(&self) -> Vec<UpConfig> {
        let last = self.levels.len().saturating_sub(1);
        let level = |index: usize| {
            let of = self.levels[index];
            let below = self.levels[(index + 1).min(last)].channels;
            let above = self.levels[index.saturating_sub(1)].channels;
            // Beside what comes from below, each block sees an image that was kept on the way down.
            let inputs = |at| {
                let kept = if at == self.blocks { above } else { of.channels };
                kept + if at == 0 { below } else { of.channels }
            };
            let double = DoubleConfig { channels: of.channels };
            UpConfig {
                resnets: (0..=self.blocks).map(|at| self.resnet(inputs(at), of.channels)).collect(),
                attentions: (0..=self.blocks).filter_map(|_| self.attention(of.attention, of)).collect(),
                upsamplers: if index > 0 { vec![double] } else { Vec::new() },
            }
        };
        (0..self.levels.len()).rev().map(level).collect()
    }
}

one_of! {
    #[expect(clippy::large_enum_variant, reason = "a few of them, each in a list")]
    pub(crate) enum Attention of AttentionConfig {
        Pixels(PixelAttention, PixelAttentionConfig),
        Text(Transformer, TransformerConfig),
    }
}

/// What the parts of a step see beside the image.
struct Conditions {
    time: Var,
    text: Option<Var>,
}

impl Attention {
    #[track_caller]
    fn attend(&self, x: &Var, conditions: &Conditions) -> Var {
        match (self, &conditions.text) {
            (Self::Pixels(attention), _) => attention.forward(x),
            (Self::Text(transformer), Some(text)) => transformer.forward(x, text),
            (Self::Text(_), None) => x.refuse("unet", ErrorKind::Argument, "needs a text, for its attention to one"),
        }
    }
}

/// A residual block, and the attention behind it, if any.
#[track_caller]
fn step(x: &Var, resnet: &Resnet, attention: Option<&Attention>, conditions: &Conditions) -> Var {
    let y = resnet.forward(x, Some(&conditions.time));
    attention.map_or_else(|| y.clone(), |attention| attention.attend(&y, conditions))
}

#[derive(Module, Debug, Clone)]
#[module(config(resnets: Vec<ResnetConfig>, attentions: Vec<AttentionConfig>, downsamplers: Vec<HalveConfig>))]
struct Down {
    #[module(init = resnets)]
    resnets: Vec<Resnet>,
    #[module(init = attentions)]
    attentions: Vec<Attention>,
    #[module(init = downsamplers)]
    downsamplers: Vec<Halve>,
}

#[derive(Module, Debug, Clone)]
#[module(config(resnets: Vec<ResnetConfig>, attentions: Vec<AttentionConfig>))]
struct Mid {
    #[module(init = resnets)]
    resnets: Vec<Resnet>,
    #[module(init = attentions)]
    attentions: Vec<Attention>,
}

#[derive(Module, Debug, Clone)]
#[module(config(resnets: Vec<ResnetConfig>, attentions: Vec<AttentionConfig>, upsamplers: Vec<DoubleConfig>))]
struct Up {
    #[module(init = resnets)]
    resnets: Vec<Resnet>,
    #[module(init = attentions)]
    attentions: Vec<Attention>,
    #[module(init = upsamplers)]
    upsamplers: Vec<Double>,
}

#[derive(Module, Debug, Clone)]
#[module(sequential, config(inputs: usize, width: usize))]
struct Time {
    #[module(init = Linear::new(inputs, width), then = silu)]
    linear_1: Linear,
    #[module(init = Linear::new(width, width))]
    linear_2: Linear,
}

/// The sines and cosines of a time at different frequencies.
#[derive(Debug, Clone, Copy)]
struct Angles {
    width: usize,
    cos_first: bool,
    shift: f64,
}

impl Angles {
    #[track_caller]
    #[expect(clippy::cast_precision_loss, reason = "few frequencies")]
    fn of(self, t: &Var) -> Var {
        let &[n] = t.shape().dims() else {
            return t.refuse("unet", ErrorKind::Shape, format!("takes times [N], not {}", t.shape()));
        };
        let half = self.width / 2;
        let slowest = -10_000f64.ln() / (half as f64 - self.shift).max(1.0);
        let frequencies = (t.tape().iota([1, half], 1) * slowest).exp();
        let angles = t.reshape([n, 1]) * frequencies;
        let (sin, cos) = (angles.sin(), angles.cos());
        Var::concat(&if self.cos_first { [&cos, &sin] } else { [&sin, &cos] }, 1)
    }
}

impl UNet {
    /// The predicted noise of images `x [N, C, H, W]` at times `t [N]`.
    ///
    /// `text`, `[N, L, features]`, is needed by a model with attention to a text; `class`, `u32 [N]`, by a model with
    /// classes.
    #[must_use]
    #[track_caller]
    pub fn forward(&self, x: &Var, t: &Var, text: Option<&Var>, class: Option<&Var>) -> Var {
        let mut time = self.time_embedding.forward(&self.angles.of(t));
        time = match (&self.class_embedding, class) {
            (Some(embedding), Some(class)) => time + embedding.forward(class),
            (None, None) => time,
            (Some(_), None) => return x.refuse("unet", ErrorKind::Argument, "needs a class, and there is none"),
            (None, Some(_)) => return x.refuse("unet", ErrorKind::Argument, "knows no classes"),
        };
        let conditions = Conditions { time: time.silu(), text: text.cloned() };
        let mut x = self.conv_in.forward(x);
        let mut kept = vec![x.clone()];
        for Down { resnets, attentions, downsamplers } in &self.down_blocks {
            for (at, resnet) in resnets.iter().enumerate() {
                x = step(&x, resnet, attentions.get(at), &conditions);
                kept.push(x.clone());
            }
            if let Some(halve) = downsamplers.first() {
                x = halve.forward(&x);
                kept.push(x.clone());
            }
        }
        let Mid { resnets, attentions } = &self.mid_block;
        for (at, resnet) in resnets.iter().enumerate() {
            x = step(&x, resnet, attentions.get(at), &conditions);
        }
        for Up { resnets, attentions, upsamplers } in &self.up_blocks {
            for (at, resnet) in resnets.iter().enumerate() {
                let Some(skip) = kept.pop() else { unreachable!("as many blocks up as images were kept") };
                x = step(&Var::concat(&[&x, &skip], 1), resnet, attentions.get(at), &conditions);
            }
            x = upsamplers.first().map_or_else(|| x.clone(), |double| double.forward(&x));
        }
        self.conv_out.forward(&self.conv_norm_out.forward(&x).silu())
    }
}
