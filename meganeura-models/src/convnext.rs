//! ConvNeXt, under torchvision's names.

use meganeura::init::Initializer;
use meganeura::prelude::*;

use crate::one_of::one_of;

/// ConvNeXt, a convolutional classifier of images: [Liu et al., 2022](https://arxiv.org/abs/2201.03545)
///
/// Its parameters have the names and shapes of torchvision's `ConvNeXt`.
///
/// Shapes: images `[N, 3, H, W]`, at least 32×32 pixels → scores `[N, classes]`; the originals were trained on 224×224
/// pixels.
///
/// ```
/// use meganeura::prelude::*;
/// use meganeura_models::{ConvNext, ConvNextConfig};
///
/// # fn main() -> meganeura::Result<()> {
/// let device = Device::cpu();
/// let config = ConvNextConfig { depths: vec![1, 1, 1, 1], widths: vec![8, 8, 8, 8], ..ConvNextConfig::tiny() };
/// let net = ConvNext::init(&device, 42, config)?;
/// let images = Tensor::zeros(&device, [2, 3, 32, 32])?;
/// assert_eq!(images.map(|x| net.forward(x))?.shape(), Shape::from([2, 1000]));
/// # Ok(())
/// # }
/// ```
#[derive(Module, Debug, Clone)]
#[module(sequential, config = ConvNextConfig)]
pub struct ConvNext {
    #[module(init = config.features(), then = mean_keep(&[2, 3]))]
    features: Vec<Feature>,
    /// A normalisation, and the layer that gives the scores.
    #[module(init = (LayerNorm2d::new(config.last()).eps(EPS), Flatten, linear(config.last(), config.classes)))]
    pub classifier: (LayerNorm2d, Flatten, Linear),
}

impl ConvNext {
    /// The features of each place of an image, `[N, C, H/32, W/32]`, before their mean.
    #[must_use]
    #[track_caller]
    pub fn features(&self, x: &Var) -> Var {
        self.features.forward(x)
    }
}

/// Describes a [`ConvNext`]
#[derive(Debug, Clone, PartialEq)]
pub struct ConvNextConfig {
    /// The number of blocks of each stage.
    pub depths: Vec<usize>,
    /// The channels of each stage.
    pub widths: Vec<usize>,
    /// The initial factor of each block's result.
    pub layer_scale: f64,
    /// The probability of leaving out the last block in training; earlier ones are left out less often.
    pub stochastic_depth: f64,
    /// The number of classes: 1,000 in the originals.
    pub classes: usize,
}

impl ConvNextConfig {
    fn new(depth: usize, width: usize, stochastic_depth: f64) -> Self {
        let widths = (0..4).map(|stage| width << stage).collect();
        Self { depths: vec![3, 3, depth, 3], widths, layer_scale: 1e-6, stochastic_depth, classes: 1000 }
    }

    /// ConvNeXt-T: 28,589,128 parameters.
    #[must_use]
    pub fn tiny() -> Self {
        Self::new(9, 96, 0.1)
    }

    /// ConvNeXt-S: 50,223,688 parameters.
    #[must_use]
    pub fn small() -> Self {
        Self::new(27, 96, 0.4)
    }

    /// ConvNeXt-B: 88,591,464 parameters.
    #[must_use]
    pub fn base() -> Self {
        Self::new(27, 128, 0.5)
    }

    /// ConvNeXt-L: 197,767,336 parameters.
    #[must_use]
    pub fn large() -> Self {
        Self::new(27, 192, 0.5)
    }

    fn last(&self) -> usize {
        self.widths.last().copied().unwrap_or(0)
    }

    #[expect(clippy::cast_precision_loss, reason = "few blocks")]
    fn features(&self) -> Vec<FeatureConfig> {
        let last_block = self.depths.iter().sum::<usize>().saturating_sub(1).max(1) as f64;
        let mut features = Vec::new();
        let (mut inputs, mut before) = (None, 0);
        for (&width, &depth) in self.widths.iter().zip(&self.depths) {
            let norm = |channels| LayerNorm2d::new(channels).eps(EPS);
            features.push(match inputs {
                None => FeatureConfig::Stem((conv(3, width, 4).stride(4), norm(width))),
                Some(inputs) => FeatureConfig::Halve((norm(inputs), conv(inputs, width, 2).stride(2))),
            });
            let block = |at| BlockConfig {
                width,
                scale: self.layer_scale,
                dropped: self.stochastic_depth * (before + at) as f64 / last_block,
            };
            features.push(FeatureConfig::Blocks((0..depth).map(block).collect()));
            (inputs, before) = (Some(width), before + depth);
        }
        features
    }
}

const START: Initializer = Initializer::Normal { mean: 0.0, std: 0.02 };

fn conv(inputs: usize, outputs: usize, kernel: usize) -> Conv2dConfig {
    Conv2d::new(inputs, outputs, kernel).weight_init(START)
}

fn linear(inputs: usize, outputs: usize) -> LinearConfig {
    Linear::new(inputs, outputs).weight_init(START)
}

one_of! {
    pub(crate) enum Feature of FeatureConfig: Layer {
        Stem((Conv2d, LayerNorm2d), (Conv2dConfig, LayerNorm2dConfig)),
        Halve((LayerNorm2d, Conv2d), (LayerNorm2dConfig, Conv2dConfig)),
        Blocks(Vec<Block>, Vec<BlockConfig>),
    }
}

/// The ε of all normalisations.
const EPS: f64 = 1e-6;

/// Convolves each channel by itself, then widens and narrows the channels of each pixel.
#[derive(Module, Debug, Clone)]
#[module(config(width: usize, scale: f64, dropped: f64))]
pub(crate) struct Block {
    #[module(init = Initializer::Constant(scale).param([width, 1, 1]))]
    layer_scale: Param,
    #[module(init = PartsConfig { width })]
    block: Parts,
    #[module(init = StochasticDepth::new(dropped))]
    depth: StochasticDepth,
}

/// The layers with parameters, by their places among all.
#[derive(Module, Debug, Clone)]
#[module(config(width: usize))]
struct Parts {
    #[module(rename = "0", init = conv(width, width, 7).padding(3).groups(width))]
    conv: Conv2d,
    #[module(rename = "2", init = LayerNorm::new([width]).eps(EPS))]
    norm: LayerNorm,
    #[module(rename = "3", init = linear(width, 4 * width))]
    widen: Linear,
    #[module(rename = "5", init = linear(4 * width, width))]
    narrow: Linear,
}

impl Layer for Block {
    fn forward(&self, x: &Var) -> Var {
        let Parts { conv, norm, widen, narrow } = &self.block;
        let y = norm.forward(&conv.forward(x).permute(&[0, 2, 3, 1]));
        let y = narrow.forward(&widen.forward(&y).gelu()).permute(&[0, 3, 1, 2]);
        self.depth.forward(&(y * x.param(&self.layer_scale))) + x
    }
}
