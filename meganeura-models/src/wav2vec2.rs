//! Wav2Vec 2.0, under Hugging Face's names.

use meganeura::ErrorKind;
use meganeura::init::Initializer;
use meganeura::ops::Conv1dOptions;
use meganeura::prelude::*;

use crate::projected::{head_of, join_heads};

/// Wav2Vec 2.0, an encoder of speech:
/// [Baevski et al., 2020](https://arxiv.org/abs/2006.11477)
///
/// Convolutions along the samples make a frame of features of every 320 of them, and a transformer relates the frames.
/// Its parameters have the names and shapes of `Wav2Vec2Model` of Hugging Face's transformers; models for a task have
/// them below `wav2vec2`. In older files of transformers, the two parts of the positional kernel are called `weight_g`
/// and `weight_v`, not `parametrizations.weight.original0` and `original1`. In training, there is dropout
/// behind each branch, and neither frames nor layers are left out at random.
///
/// Shapes: sound `[N, samples]`, with mean 0 and deviation 1 → features of each frame, `[N, frames, width]`; the
/// published sizes take 16,000 samples a second.
///
/// ```
/// use meganeura::prelude::*;
/// use meganeura_models::{Wav2Vec2, Wav2Vec2Config};
///
/// # fn main() -> meganeura::Result<()> {
/// let device = Device::cpu();
/// let small = Wav2Vec2Config { channels: 8, width: 12, layers: 1, heads: 2, inside: 24, ..Wav2Vec2Config::base() };
/// let net = Wav2Vec2::init(&device, 42, Wav2Vec2Config { positions: [4, 3], ..small })?;
/// let sound = Tensor::randn(&device, [2, 1600], 1)?; // a tenth of a second
/// let features = net.forward(&Tape::inference(&device).input(&sound));
/// assert_eq!(features.shape(), Shape::from([2, 4, 12]));
/// # Ok(())
/// # }
/// ```
#[derive(Module, Debug, Clone)]
#[module(config = Wav2Vec2Config)]
pub struct Wav2Vec2 {
    /// In place of masked frames in training without labels; nothing here uses it.
    #[module(init = |device, seed| Ok(Buffer::new(Tensor::rand(device, [config.width], seed)?)))]
    masked_spec_embed: Buffer,
    #[module(init = ExtractorConfig { of: config.clone() })]
    feature_extractor: Extractor,
    #[module(init = ProjectionConfig { of: config.clone() })]
    feature_projection: Projection,
    #[module(init = EncoderConfig { of: config.clone() })]
    encoder: Encoder,
}

/// Describes a [`Wav2Vec2`]
#[derive(Debug, Clone, PartialEq)]
pub struct Wav2Vec2Config {
    /// The kernel and the stride of each convolution along the samples.
    pub convolutions: Vec<[usize; 2]>,
    /// The channels of these convolutions.
    pub channels: usize,
    /// Features of a frame.
    pub width: usize,
    /// The number of layers of the transformer.
    pub layers: usize,
    /// Heads of each attention, a divisor of the width.
    pub heads: usize,
    /// Features inside the feed-forward part of each layer.
    pub inside: usize,
    /// The kernel of the convolution that tells where a frame is, and its number of groups.
    pub positions: [usize; 2],
    /// The probability of dropout behind each branch of the transformer.
    pub dropout: f64,
}

impl Wav2Vec2Config {
    /// `wav2vec2-base` and `wav2vec2-base-960h`: 94,371,712 numbers.
    #[must_use]
    pub fn base() -> Self {
        Self {
            convolutions: vec![[10, 5], [3, 2], [3, 2], [3, 2], [3, 2], [2, 2], [2, 2]],
            channels: 512,
            width: 768,
            layers: 12,
            heads: 12,
            inside: 3072,
            positions: [128, 16],
            dropout: 0.1,
        }
    }

    /// `wav2vec2-large` and `wav2vec2-large-960h`: 315,428,992 numbers.
    #[must_use]
    pub fn large() -> Self {
        Self { width: 1024, layers: 24, heads: 16, inside: 4096, ..Self::base() }
    }
}

const START: Initializer = Initializer::Normal { mean: 0.0, std: 0.02 };

#[derive(Module, Debug, Clone)]
#[module(config(of: Wav2Vec2Config))]
struct Extractor {
    #[module(init = convolutions(&of))]
    conv_layers: Vec<Convolution>,
}

/// The first reads samples, and normalises each channel over time.
fn convolutions(of: &Wav2Vec2Config) -> Vec<ConvolutionConfig> {
    let each = of.convolutions.iter().enumerate();
    let layer = |(at, &[kernel, stride]): (usize, &[usize; 2])| {
        let (inputs, norm) =
            if at == 0 { (1, Some(GroupNorm::new(of.channels, of.channels))) } else { (of.channels, None) };
        let conv = Conv1d::new(inputs, of.channels, kernel).stride(stride).bias(false);
        ConvolutionConfig { conv, norm }
    };
    each.map(layer).collect()
}

#[derive(Module, Debug, Clone)]
#[module(config(conv: ConvConfig<1>, norm: Option<GroupNormConfig>))]
struct Convolution {
    #[module(init = conv)]
    conv: Conv1d,
    #[module(rename = "layer_norm", init = norm)]
    norm: Option<GroupNorm>,
}

#[derive(Module, Debug, Clone)]
#[module(config(of: Wav2Vec2Config))]
struct Projection {
    #[module(rename = "layer_norm", init = LayerNorm::new([of.channels]))]
    norm: LayerNorm,
    #[module(init = Linear::new(of.channels, of.width).weight_init(START))]
    projection: Linear,
}

#[derive(Module, Debug, Clone)]
#[module(config(of: Wav2Vec2Config))]
struct Encoder {
    #[module(init = PositionsConfig { of: of.clone() })]
    pos_conv_embed: Positions,
    #[module(rename = "layer_norm", init = LayerNorm::new([of.width]))]
    norm: LayerNorm,
    #[module(init = Dropout::new(of.dropout))]
    dropout: Dropout,
    #[module(init = vec![BlockConfig { of: of.clone() }; of.layers])]
    layers: Vec<Block>,
}

#[derive(Module, Debug, Clone)]
#[module(config(of: Wav2Vec2Config))]
struct Positions {
    #[module(init = NormedConfig { of: of.clone() })]
    conv: Normed,
}

/// A convolution along the frames, whose kernel is a direction and a length for each of its places.
#[derive(Module, Debug, Clone)]
#[module(config(of: Wav2Vec2Config))]
struct Normed {
    #[module(init = Initializer::Zeros.param([of.width]))]
    bias: Param,
    #[module(init = ParametrizationsConfig { of: of.clone() })]
    parametrizations: Parametrizations,
    #[module(skip, init = of.positions)]
    positions: [usize; 2],
}

#[derive(Module, Debug, Clone)]
#[module(config(of: Wav2Vec2Config))]
struct Parametrizations {
    #[module(init = KernelConfig { of: of.clone() })]
    weight: Kernel,
}

#[derive(Module, Debug, Clone)]
#[module(config(of: Wav2Vec2Config))]
struct Kernel {
    /// The length for each place.
    #[module(init = Initializer::Constant(1.0).param([1, 1, of.positions[0]]))]
    original0: Param,
    #[module(init = START.param([of.width, of.width / of.positions[1].max(1), of.positions[0]]))]
    original1: Param,
}

impl Layer for Normed {
    #[track_caller]
    fn forward(&self, frames: &Var) -> Var {
        let Kernel { original0, original1 } = &self.parametrizations.weight;
        let (direction, [kernel, groups]) = (frames.param(original1), self.positions);
        let weight = frames.param(original0) * &direction / direction.square().sum_keep(&[0, 1]).sqrt();
        let options = Conv1dOptions { padding: [kernel / 2], groups, ..Conv1dOptions::default() };
        let bias = frames.param(&self.bias).unsqueeze(-1);
        let placed = frames.conv1d(&weight, options) + bias;
        // An even kernel gives one frame more than there are.
        placed.at((.., .., ..frames.shape().dims()[2])).gelu()
    }
}

#[derive(Module, Debug, Clone)]
#[module(config(of: Wav2Vec2Config))]
struct Block {
    #[module(init = AttentionConfig { width: of.width, heads: of.heads })]
    attention: Attention,
    #[module(init = Dropout::new(of.dropout))]
    dropout: Dropout,
    #[module(rename = "layer_norm", init = LayerNorm::new([of.width]))]
    norm: LayerNorm,
    #[module(init = FeedForwardConfig { width: of.width, inside: of.inside })]
    feed_forward: FeedForward,
    #[module(rename = "final_layer_norm", init = LayerNorm::new([of.width]))]
    final_norm: LayerNorm,
}

#[derive(Module, Debug, Clone)]
#[module(config(width: usize, heads: usize))]
struct Attention {
    #[module(init = Linear::new(width, width).weight_init(START))]
    q_proj: Linear,
    #[module(init = Linear::new(width, width).weight_init(START))]
    k_proj: Linear,
    #[module(init = Linear::new(width, width).weight_init(START))]
    v_proj: Linear,
    #[module(init = Linear::new(width, width).weight_init(START))]
    out_proj: Linear,
    #[module(skip, init = heads)]
    heads: usize,
}

#[derive(Module, Debug, Clone)]
#[module(config(width: usize, inside: usize))]
struct FeedForward {
    #[module(init = Linear::new(width, inside).weight_init(START))]
    intermediate_dense: Linear,
    #[module(init = Linear::new(inside, width).weight_init(START))]
    output_dense: Linear,
}

impl Layer for Block {
    #[track_caller]
    fn forward(&self, x: &Var) -> Var {
        let Attention { q_proj, k_proj, v_proj, out_proj, heads } = &self.attention;
        let [query, key, value] = [q_proj, k_proj, v_proj].map(|part| head_of(&part.forward(x), *heads));
        let attended = out_proj.forward(&join_heads(&query.attention(&key, &value, None)));
        let x = self.norm.forward(&(x + self.dropout.forward(&attended)));
        let inside = self.feed_forward.intermediate_dense.forward(&x).gelu();
        let fed = self.dropout.forward(&self.feed_forward.output_dense.forward(&inside));
        self.final_norm.forward(&(x + fed))
    }
}

impl Wav2Vec2 {
    /// The features of each frame of sound `[N, samples]` before the transformer: `[N, channels, frames]`.
    #[must_use]
    #[track_caller]
    pub fn extract(&self, sound: &Var) -> Var {
        let &[n, samples] = sound.shape().dims() else {
            return sound.refuse(
                "wav2vec2",
                ErrorKind::Shape,
                format!("takes sound [N, samples], not {}", sound.shape()),
            );
        };
        let mut x = sound.reshape([n, 1, samples]);
        for Convolution { conv, norm } in &self.feature_extractor.conv_layers {
            x = conv.forward(&x);
            if let Some(norm) = norm {
                x = norm.forward(&x);
            }
            x = x.gelu();
        }
        x
    }
}

impl Layer for Wav2Vec2 {
    #[track_caller]
    fn forward(&self, sound: &Var) -> Var {
        let frames = self.extract(sound);
        if frames.shape().rank() != 3 {
            return frames; // poisoned
        }
        let Projection { norm, projection } = &self.feature_projection;
        let x = projection.forward(&norm.forward(&frames.transpose(1, 2)));
        let Encoder { pos_conv_embed, norm, dropout, layers } = &self.encoder;
        let places = pos_conv_embed.conv.forward(&x.transpose(1, 2)).transpose(1, 2);
        let x = dropout.forward(&norm.forward(&(x + places)));
        layers.iter().fold(x, |x, layer| layer.forward(&x))
    }
}
