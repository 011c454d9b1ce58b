//! MobileNetV2, under torchvision's names.

use meganeura::prelude::*;

use crate::conv_norm::{Activation, ConvNorm, ConvNormConfig, conv, scaled};
use crate::one_of::one_of;

/// MobileNetV2, a classifier of images for small devices: [Sandler et al., 2018](https://arxiv.org/abs/1801.04381)
///
/// Its parameters have the names and shapes of torchvision's `MobileNetV2`.
///
/// Shapes: images `[N, 3, H, W]` → scores `[N, classes]`; the original was trained on 224×224 pixels.
///
/// ```
/// use meganeura::prelude::*;
/// use meganeura_models::{MobileNetV2, MobileNetV2Config};
///
/// # fn main() -> meganeura::Result<()> {
/// let device = Device::cpu();
/// let net = MobileNetV2::init(&device, 42, MobileNetV2Config { classes: 10, ..MobileNetV2Config::mobilenet_v2() })?;
/// let images = Tensor::zeros(&device, [2, 3, 32, 32])?;
/// assert_eq!(images.map(|x| net.forward(x))?.shape(), Shape::from([2, 10]));
/// # Ok(())
/// # }
/// ```
#[derive(Module, Debug, Clone)]
#[module(sequential, config = MobileNetV2Config)]
pub struct MobileNetV2 {
    #[module(init = config.features(), then = mean_over(&[2, 3]))]
    features: Vec<Feature>,
    /// Dropout, and the layer that gives the scores.
    #[module(init = (Dropout::new(config.dropout), Linear::new(config.last(), config.classes)))]
    pub classifier: (Dropout, Linear),
}

impl MobileNetV2 {
    /// The features of each place of an image, `[N, C, H/32, W/32]`, before their mean.
    #[must_use]
    #[track_caller]
    pub fn features(&self, x: &Var) -> Var {
        self.features.forward(x)
    }
}

/// Describes a [`MobileNetV2`]
#[derive(Debug, Clone, PartialEq)]
pub struct MobileNetV2Config {
    /// The groups of blocks.
    pub stages: Vec<MobileNetV2Stage>,
    /// The factor of all numbers of channels, which are rounded to multiples of 8.
    pub width: f64,
    /// The probability of dropout before the scores.
    pub dropout: f64,
    /// The number of classes: 1,000 in the original.
    pub classes: usize,
}

/// Blocks of one width
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MobileNetV2Stage {
    /// The channels inside a block, for each of its input.
    pub expansion: usize,
    /// The channels of a block's output, before the scale of the whole net.
    pub channels: usize,
    /// The number of blocks.
    pub blocks: usize,
    /// The stride of the first block.
    pub stride: usize,
}

impl MobileNetV2Config {
    /// MobileNetV2: 3,504,872 parameters.
    #[must_use]
    pub fn mobilenet_v2() -> Self {
        let stage = |[expansion, channels, blocks, stride]: [usize; 4]| MobileNetV2Stage {
            expansion,
            channels,
            blocks,
            stride,
        };
        let stages =
            [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 3, 2], [6, 64, 4, 2], [6, 96, 3, 1], [6, 160, 3, 2], [6, 320, 1, 1]];
        Self { stages: stages.map(stage).to_vec(), width: 1.0, dropout: 0.2, classes: 1000 }
    }

    /// The channels before the scores.
    fn last(&self) -> usize {
        scaled(1280, self.width.max(1.0))
    }

    fn features(&self) -> Vec<FeatureConfig> {
        let mut inputs = scaled(32, self.width);
        let mut features = vec![FeatureConfig::Conv(conv_norm(conv(3, inputs, 3, 2), inputs))];
        for stage in &self.stages {
            let outputs = scaled(stage.channels, self.width);
            for at in 0..stage.blocks {
                let stride = if at == 0 { stage.stride } else { 1 };
                features.push(FeatureConfig::Block(BlockConfig {
                    inputs,
                    outputs,
                    expansion: stage.expansion,
                    stride,
                }));
                inputs = outputs;
            }
        }
        features.push(FeatureConfig::Conv(conv_norm(conv(inputs, self.last(), 1, 1), self.last())));
        features
    }
}

fn conv_norm(conv: Conv2dConfig, outputs: usize) -> ConvNormConfig {
    ConvNormConfig { conv, norm: BatchNorm2d::new(outputs), activation: Activation::Relu6 }
}

one_of! {
    #[expect(clippy::large_enum_variant, reason = "some twenty of them")]
    pub(crate) enum Feature of FeatureConfig: Layer {
        Conv(ConvNorm, ConvNormConfig),
        Block(Block, BlockConfig),
    }
}

/// Widens, convolves each channel by itself, and narrows. Blocks that keep the shape add their input.
#[derive(Module, Debug, Clone)]
#[module(config(inputs: usize, outputs: usize, expansion: usize, stride: usize))]
pub(crate) struct Block {
    #[module(init = parts(inputs, outputs, expansion, stride))]
    conv: Vec<Part>,
    #[module(skip, init = stride == 1 && inputs == outputs)]
    is_residual: bool,
}

one_of! {
    pub(crate) enum Part of PartConfig: Layer {
        ConvNorm(ConvNorm, ConvNormConfig),
        Conv(Conv2d, Conv2dConfig),
        Norm(BatchNorm2d, BatchNorm2dConfig),
    }
}

fn parts(inputs: usize, outputs: usize, expansion: usize, stride: usize) -> Vec<PartConfig> {
    let inside = inputs * expansion;
    let widen = (expansion != 1).then(|| PartConfig::ConvNorm(conv_norm(conv(inputs, inside, 1, 1), inside)));
    let depthwise = conv(inside, inside, 3, stride).groups(inside);
    let narrow = PartConfig::Conv(conv(inside, outputs, 1, 1));
    let rest =
        [PartConfig::ConvNorm(conv_norm(depthwise, inside)), narrow, PartConfig::Norm(BatchNorm2d::new(outputs))];
    widen.into_iter().chain(rest).collect()
}

impl Layer for Block {
    fn forward(&self, x: &Var) -> Var {
        let y = self.conv.forward(x);
        if self.is_residual { y + x } else { y }
    }
}
