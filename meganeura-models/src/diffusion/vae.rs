//! The autoencoder of latent diffusion, under diffusers' names.

use meganeura::prelude::*;

use super::parts::{
    Double, DoubleConfig, Halve, HalveConfig, PixelAttention, PixelAttentionConfig, Resnet, ResnetConfig,
};

/// The autoencoder of latent diffusion: images to smaller images of a few channels, and back.
/// [Rombach et al., 2021](https://arxiv.org/abs/2112.10752)
///
/// Its parameters have the names and shapes of `AutoencoderKL` of diffusers. Older files call the parts of an attention
/// differently: see [`legacy_names`](super::legacy_names).
///
/// ```
/// use meganeura::prelude::*;
/// use meganeura_models::{AutoencoderKl, AutoencoderKlConfig};
///
/// # fn main() -> meganeura::Result<()> {
/// let device = Device::cpu();
/// let small = AutoencoderKlConfig { levels: vec![8, 16], groups: 4, ..AutoencoderKlConfig::stable_diffusion() };
/// let net = AutoencoderKl::init(&device, 42, small)?;
/// let tape = Tape::inference(&device);
/// let images = tape.input(&Tensor::randn(&device, [2, 3, 8, 8], 1)?);
/// let (mean, log_variance) = net.encode(&images);
/// assert_eq!(mean.shape(), Shape::from([2, 4, 4, 4]));
/// assert_eq!(log_variance.shape(), mean.shape());
/// assert_eq!(net.decode(&mean).shape(), images.shape());
/// # Ok(())
/// # }
/// ```
#[derive(Module, Debug, Clone)]
#[module(config = AutoencoderKlConfig)]
pub struct AutoencoderKl {
    #[module(init = EncoderConfig { of: config.clone() })]
    encoder: Encoder,
    #[module(init = DecoderConfig { of: config.clone() })]
    decoder: Decoder,
    #[module(init = Conv2d::new(2 * config.latents, 2 * config.latents, 1))]
    quant_conv: Conv2d,
    #[module(init = Conv2d::new(config.latents, config.latents, 1))]
    post_quant_conv: Conv2d,
}

/// Describes an [`AutoencoderKl`]
#[derive(Debug, Clone, PartialEq)]
pub struct AutoencoderKlConfig {
    /// Channels of the images.
    pub images: usize,
    /// Channels of the latents.
    pub latents: usize,
    /// The channels of each level, from whole images to the smallest ones; each halves the image of the one before.
    pub levels: Vec<usize>,
    /// The number of residual blocks of each level of the encoder; the decoder has one more.
    pub blocks: usize,
    /// Groups of all normalisations.
    pub groups: usize,
}

impl AutoencoderKlConfig {
    /// That of Stable Diffusion 1.x, 2.x and XL: 83,653,863 parameters. Latents are an eighth of the image in height
    /// and width. The denoiser sees them times 0.18215, in XL times 0.13025.
    #[must_use]
    pub fn stable_diffusion() -> Self {
        Self { images: 3, latents: 4, levels: vec![128, 256, 512, 512], blocks: 2, groups: 32 }
    }

    fn first(&self) -> usize {
        self.levels.first().copied().unwrap_or(0)
    }

    fn last(&self) -> usize {
        self.levels.last().copied().unwrap_or(0)
    }

    fn resnet(&self, inputs: usize, outputs: usize) -> ResnetConfig {
        ResnetConfig { inputs, outputs, time: None, groups: self.groups, eps: EPS }
    }

    fn down(&self) -> Vec<DownConfig> {
        let level = |(index, &channels): (usize, &usize)| {
            let before = self.levels[index.saturating_sub(1)];
            let resnet = |at| self.resnet(if at == 0 { before } else { channels }, channels);
            let halve = HalveConfig { channels, padding: 0 };
            DownConfig {
                resnets: (0..self.blocks).map(resnet).collect(),
                downsamplers: if index + 1 < self.levels.len() { vec![halve] } else { Vec::new() },
            }
        };
        self.levels.iter().enumerate().map(level).collect()
    }

    fn up(&self) -> Vec<UpConfig> {
        let last = self.levels.len().saturating_sub(1);
        let level = |index: usize| {
            let channels = self.levels[index];
            let below = self.levels[(index + 1).min(last)];
            let resnet = |at| self.resnet(if at == 0 { below } else { channels }, channels);
            UpConfig {
                resnets: (0..=self.blocks).map(resnet).collect(),
                upsamplers: if index > 0 { vec![DoubleConfig { channels }] } else { Vec::new() },
            }
        };
        (0..self.levels.len()).rev().map(level).collect()
    }
}

/// The ε of all normalisations.
const EPS: f64 = 1e-6;

#[derive(Module, Debug, Clone)]
#[module(config(of: AutoencoderKlConfig))]
struct Encoder {
    #[module(init = Conv2d::new(of.images, of.first(), 3).padding(1))]
    conv_in: Conv2d,
    #[module(init = of.down())]
    down_blocks: Vec<Down>,
    #[module(init = MidConfig { of: of.clone() })]
    mid_block: Mid,
    #[module(init = GroupNorm::new(of.groups, of.last()).eps(EPS))]
    conv_norm_out: GroupNorm,
    #[module(init = Conv2d::new(of.last(), 2 * of.latents, 3).padding(1))]
    conv_out: Conv2d,
}

#[derive(Module, Debug, Clone)]
#[module(config(of: AutoencoderKlConfig))]
struct Decoder {
    #[module(init = Conv2d::new(of.latents, of.last(), 3).padding(1))]
    conv_in: Conv2d,
    #[module(init = MidConfig { of: of.clone() })]
    mid_block: Mid,
    #[module(init = of.up())]
    up_blocks: Vec<Up>,
    #[module(init = GroupNorm::new(of.groups, of.first()).eps(EPS))]
    conv_norm_out: GroupNorm,
    #[module(init = Conv2d::new(of.first(), of.images, 3).padding(1))]
    conv_out: Conv2d,
}

#[derive(Module, Debug, Clone)]
#[module(config(resnets: Vec<ResnetConfig>, downsamplers: Vec<HalveConfig>))]
struct Down {
    #[module(init = resnets)]
    resnets: Vec<Resnet>,
    #[module(init = downsamplers)]
    downsamplers: Vec<Halve>,
}

#[derive(Module, Debug, Clone)]
#[module(config(resnets: Vec<ResnetConfig>, upsamplers: Vec<DoubleConfig>))]
struct Up {
    #[module(init = resnets)]
    resnets: Vec<Resnet>,
    #[module(init = upsamplers)]
    upsamplers: Vec<Double>,
}

#[derive(Module, Debug, Clone)]
#[module(config(of: AutoencoderKlConfig))]
struct Mid {
    #[module(init = (PixelAttentionConfig { channels: of.last(), heads: 1, groups: of.groups, eps: EPS },))]
    attentions: (PixelAttention,),
    #[module(init = (of.resnet(of.last(), of.last()), of.resnet(of.last(), of.last())))]
    resnets: (Resnet, Resnet),
}

impl Layer for Down {
    #[track_caller]
    fn forward(&self, x: &Var) -> Var {
        let x = self.resnets.iter().fold(x.clone(), |x, resnet| resnet.forward(&x, None));
        self.downsamplers.forward(&x)
    }
}

impl Layer for Up {
    #[track_caller]
    fn forward(&self, x: &Var) -> Var {
        let x = self.resnets.iter().fold(x.clone(), |x, resnet| resnet.forward(&x, None));
        self.upsamplers.forward(&x)
    }
}

impl Layer for Mid {
    #[track_caller]
    fn forward(&self, x: &Var) -> Var {
        let x = self.attentions.0.forward(&self.resnets.0.forward(x, None));
        self.resnets.1.forward(&x, None)
    }
}

impl AutoencoderKl {
    /// The mean of an image's latents, and the logarithm of their variance: `[N, C, H, W]` → each `[N, latents, h, w]`.
    ///
    /// The logarithm is between -30 and 20, as in diffusers.
    #[must_use]
    #[track_caller]
    pub fn encode(&self, x: &Var) -> (Var, Var) {
        let Encoder { conv_in, down_blocks, mid_block, conv_norm_out, conv_out } = &self.encoder;
        let x = mid_block.forward(&down_blocks.forward(&conv_in.forward(x)));
        let moments = self.quant_conv.forward(&conv_out.forward(&conv_norm_out.forward(&x).silu()));
        let latents = self.post_quant_conv.weight.shape()[0];
        (moments.slice(1, 0..latents), moments.slice(1, latents..2 * latents).clamp(-30.0, 20.0))
    }

    /// The images of latents `[N, latents, h, w]`, `[N, C, H, W]`.
    #[must_use]
    #[track_caller]
    pub fn decode(&self, latents: &Var) -> Var {
        let Decoder { conv_in, mid_block, up_blocks, conv_norm_out, conv_out } = &self.decoder;
        let x = conv_in.forward(&self.post_quant_conv.forward(latents));
        let x = up_blocks.forward(&mid_block.forward(&x));
        conv_out.forward(&conv_norm_out.forward(&x).silu())
    }
}
