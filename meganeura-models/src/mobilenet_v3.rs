//! MobileNetV3, under torchvision's names.

use meganeura::prelude::*;

use crate::conv_norm::{
    Activation, ConvNorm, ConvNormConfig, Norms, SqueezeExcitation, SqueezeExcitationConfig, conv, scaled,
};
use crate::one_of::one_of;

/// MobileNetV3, a classifier of images for small devices: [Howard et al., 2019](https://arxiv.org/abs/1905.02244)
///
/// Its parameters have the names and shapes of torchvision's `MobileNetV3`.
///
/// Shapes: images `[N, 3, H, W]` → scores `[N, classes]`; the originals were trained on 224×224 pixels.
///
/// ```
/// use meganeura::prelude::*;
/// use meganeura_models::{MobileNetV3, MobileNetV3Config};
///
/// # fn main() -> meganeura::Result<()> {
/// let device = Device::cpu();
/// let config = MobileNetV3Config { classes: 10, ..MobileNetV3Config::mobilenet_v3_small() };
/// let net = MobileNetV3::init(&device, 42, config)?;
/// let images = Tensor::zeros(&device, [2, 3, 32, 32])?;
/// assert_eq!(images.map(|x| net.forward(x))?.shape(), Shape::from([2, 10]));
/// # Ok(())
/// # }
/// ```
#[derive(Module, Debug, Clone)]
#[module(sequential, config = MobileNetV3Config)]
pub struct MobileNetV3 {
    #[module(init = config.features(), then = mean_over(&[2, 3]))]
    features: Vec<Feature>,
    /// A hidden layer, its nonlinearity, dropout, and the layer that gives the scores.
    #[module(init = (Linear::new(config.top(), config.hidden), Hardswish, Dropout::new(config.dropout),
        Linear::new(config.hidden, config.classes)))]
    pub classifier: (Linear, Hardswish, Dropout, Linear),
}

impl MobileNetV3 {
    /// The features of each place of an image, `[N, C, H/32, W/32]`, before their mean.
    #[must_use]
    #[track_caller]
    pub fn features(&self, x: &Var) -> Var {
        self.features.forward(x)
    }
}

/// Describes a [`MobileNetV3`]
#[derive(Debug, Clone, PartialEq)]
pub struct MobileNetV3Config {
    /// The blocks.
    pub blocks: Vec<MobileNetV3Block>,
    /// The factor of the blocks' numbers of channels, which are rounded to multiples of 8.
    pub width: f64,
    /// The numbers of the hidden layer before the scores.
    pub hidden: usize,
    /// The probability of dropout before the scores.
    pub dropout: f64,
    /// The ε of all batch normalisations.
    pub eps: f64,
    /// The momentum of all batch normalisations.
    pub momentum: f64,
    /// The number of classes: 1,000 in the originals.
    pub classes: usize,
}

/// A block of a [`MobileNetV3`]; its numbers of channels are those before the scale of the whole net
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MobileNetV3Block {
    /// Channels of the input.
    pub inputs: usize,
    /// Height and width of the kernels.
    pub kernel: usize,
    /// Channels inside the block.
    pub inside: usize,
    /// Channels of the output.
    pub outputs: usize,
    /// With a factor for each channel, from the means of all.
    pub squeeze: bool,
    /// Hard swish in place of ReLU.
    pub hardswish: bool,
    /// The stride.
    pub stride: usize,
}

impl MobileNetV3Config {
    fn new(hidden: usize, blocks: &[([usize; 4], bool, bool, usize)]) -> Self {
        let block =
            |&([inputs, kernel, inside, outputs], squeeze, hardswish, stride): &([usize; 4], bool, bool, usize)| {
                MobileNetV3Block { inputs, kernel, inside, outputs, squeeze, hardswish, stride }
            };
        let blocks = blocks.iter().map(block).collect();
        Self { blocks, width: 1.0, hidden, dropout: 0.2, eps: 1e-3, momentum: 0.01, classes: 1000 }
    }

    /// MobileNetV3-Small: 2,542,856 parameters.
    #[must_use]
    pub fn mobilenet_v3_small() -> Self {
        Self::new(
            1024,
            &[
                ([16, 3, 16, 16], true, false, 2),
                ([16, 3, 72, 24], false, false, 2),
                ([24, 3, 88, 24], false, false, 1),
                ([24, 5, 96, 40], true, true, 2),
                ([40, 5, 240, 40], true, true, 1),
                ([40, 5, 240, 40], true, true, 1),
                ([40, 5, 120, 48], true, true, 1),
                ([48, 5, 144, 48], true, true, 1),
                ([48, 5, 288, 96], true, true, 2),
                ([96, 5, 576, 96], true, true, 1),
                ([96, 5, 576, 96], true, true, 1),
            ],
        )
    }

    /// MobileNetV3-Large: 5,483,032 parameters.
    #[must_use]
    pub fn mobilenet_v3_large() -> Self {
        Self::new(
            1280,
            &[
                ([16, 3, 16, 16], false, false, 1),
                ([16, 3, 64, 24], false, false, 2),
                ([24, 3, 72, 24], false, false, 1),
                ([24, 5, 72, 40], true, false, 2),
                ([40, 5, 120, 40], true, false, 1),
                ([40, 5, 120, 40], true, false, 1),
                ([40, 3, 240, 80], false, true, 2),
                ([80, 3, 200, 80], false, true, 1),
                ([80, 3, 184, 80], false, true, 1),
                ([80, 3, 184, 80], false, true, 1),
                ([80, 3, 480, 112], true, true, 1),
                ([112, 3, 672, 112], true, true, 1),
                ([112, 5, 672, 160], true, true, 2),
                ([160, 5, 960, 160], true, true, 1),
                ([160, 5, 960, 160], true, true, 1),
            ],
        )
    }

    /// The channels before the mean.
    fn top(&self) -> usize {
        6 * self.blocks.last().map_or(16, |block| scaled(block.outputs, self.width))
    }

    fn features(&self) -> Vec<FeatureConfig> {
        let scale = |channels| scaled(channels, self.width);
        let first = self.blocks.first().map_or(16, |block| scale(block.inputs));
        let last = self.blocks.last().map_or(first, |block| scale(block.outputs));
        let norms = Norms { eps: self.eps, momentum: self.momentum };
        let stem = FeatureConfig::Conv(norms.behind(conv(3, first, 3, 2), first, Activation::Hardswish));
        let top = FeatureConfig::Conv(norms.behind(conv(last, self.top(), 1, 1), self.top(), Activation::Hardswish));
        let block = |block: &MobileNetV3Block| {
            let [inputs, inside, outputs] = [block.inputs, block.inside, block.outputs].map(scale);
            FeatureConfig::Block(BlockConfig { of: MobileNetV3Block { inputs, inside, outputs, ..*block }, norms })
        };
        [stem].into_iter().chain(self.blocks.iter().map(block)).chain([top]).collect()
    }
}

one_of! {
    #[expect(clippy::large_enum_variant, reason = "some twenty of them")]
    pub(crate) enum Feature of FeatureConfig: Layer {
        Conv(ConvNorm, ConvNormConfig),
        Block(Block, BlockConfig),
    }
}

/// Widens, convolves each channel by itself, scales the channels, and narrows. Blocks that keep the shape add their
/// input.
#[derive(Module, Debug, Clone)]
#[module(config(of: MobileNetV3Block, norms: Norms))]
pub(crate) struct Block {
    #[module(init = parts(of, norms))]
    block: Vec<Part>,
    #[module(skip, init = of.stride == 1 && of.inputs == of.outputs)]
    is_residual: bool,
}

one_of! {
    pub(crate) enum Part of PartConfig: Layer {
        Conv(ConvNorm, ConvNormConfig),
        Squeeze(SqueezeExcitation, SqueezeExcitationConfig),
    }
}

fn parts(of: MobileNetV3Block, norms: Norms) -> Vec<PartConfig> {
    let MobileNetV3Block { inputs, kernel, inside, outputs, squeeze, hardswish, stride } = of;
    let activation = if hardswish { Activation::Hardswish } else { Activation::Relu };
    let widen = (inputs != inside).then(|| norms.behind(conv(inputs, inside, 1, 1), inside, activation));
    let depthwise = norms.behind(conv(inside, inside, kernel, stride).groups(inside), inside, activation);
    let squeezed = scaled(inside / 4, 1.0);
    let squeeze = squeeze.then_some(SqueezeExcitationConfig {
        channels: inside,
        squeezed,
        activation: Activation::Relu,
        is_hard: true,
    });
    let narrow = norms.behind(conv(inside, outputs, 1, 1), outputs, Activation::None);
    let convs = widen.into_iter().chain([depthwise]).map(PartConfig::Conv);
    convs.chain(squeeze.map(PartConfig::Squeeze)).chain([PartConfig::Conv(narrow)]).collect()
}

impl Layer for Block {
    fn forward(&self, x: &Var) -> Var {
        let y = self.block.forward(x);
        if self.is_residual { y + x } else { y }
    }
}
