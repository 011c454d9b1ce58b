//! EfficientNet and EfficientNetV2, under torchvision's names.

use meganeura::prelude::*;

use crate::conv_norm::{
    Activation, ConvNorm, ConvNormConfig, Norms, SqueezeExcitation, SqueezeExcitationConfig, conv, scaled,
};
use crate::one_of::one_of;

/// EfficientNet, a classifier of images: [Tan and Le, 2019](https://arxiv.org/abs/1905.11946), and
/// [its second version, 2021](https://arxiv.org/abs/2104.00298)
///
/// Its parameters have the names and shapes of torchvision's `EfficientNet`.
///
/// Shapes: images `[N, 3, H, W]` → scores `[N, classes]`. The originals were trained on 224×224 pixels (B0) to 600×600
/// (B7), and 384×384 to 480×480 (V2).
///
/// ```
/// use meganeura::prelude::*;
/// use meganeura_models::{EfficientNet, EfficientNetConfig};
///
/// # fn main() -> meganeura::Result<()> {
/// let device = Device::cpu();
/// let net = EfficientNet::init(&device, 42, EfficientNetConfig { classes: 10, ..EfficientNetConfig::b0() })?;
/// let images = Tensor::zeros(&device, [2, 3, 32, 32])?;
/// assert_eq!(images.map(|x| net.forward(x))?.shape(), Shape::from([2, 10]));
/// # Ok(())
/// # }
/// ```
#[derive(Module, Debug, Clone)]
#[module(sequential, config = EfficientNetConfig)]
pub struct EfficientNet {
    #[module(init = config.features(), then = mean_over(&[2, 3]))]
    features: Vec<Feature>,
    /// Dropout, and the layer that gives the scores.
    #[module(init = (Dropout::new(config.dropout), Linear::new(config.top(), config.classes)))]
    pub classifier: (Dropout, Linear),
}

impl EfficientNet {
    /// The features of each place of an image, `[N, C, H/32, W/32]`, before their mean.
    #[must_use]
    #[track_caller]
    pub fn features(&self, x: &Var) -> Var {
        self.features.forward(x)
    }
}

/// Describes an [`EfficientNet`]
#[derive(Debug, Clone, PartialEq)]
pub struct EfficientNetConfig {
    /// The groups of blocks.
    pub stages: Vec<EfficientNetStage>,
    /// Channels before the mean: 1,280 in the smallest nets.
    pub top: Option<usize>,
    /// The probability of dropout before the scores.
    pub dropout: f64,
    /// The probability of leaving out the last block in training; earlier ones are left out less often.
    pub stochastic_depth: f64,
    /// The ε of all batch normalisations.
    pub eps: f64,
    /// The momentum of all batch normalisations.
    pub momentum: f64,
    /// The number of classes: 1,000 in the originals.
    pub classes: usize,
}

/// Blocks of one width of an [`EfficientNet`]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EfficientNetStage {
    /// One convolution in place of one that widens and one for each channel, and no squeeze.
    pub fused: bool,
    /// The channels inside a block, for each of its input.
    pub expansion: usize,
    /// Height and width of the kernels.
    pub kernel: usize,
    /// The stride of the first block.
    pub stride: usize,
    /// Channels of the first block's input.
    pub inputs: usize,
    /// Channels of each block's output.
    pub outputs: usize,
    /// The number of blocks.
    pub blocks: usize,
}

impl EfficientNetConfig {
    /// The first version: one net, scaled in width and depth.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "few blocks"
    )]
    fn v1(width: f64, depth: f64, dropout: f64) -> Self {
        let stage = |[expansion, kernel, stride, inputs, outputs, blocks]: [usize; 6]| EfficientNetStage {
            fused: false,
            expansion,
            kernel,
            stride,
            inputs: scaled(inputs, width),
            outputs: scaled(outputs, width),
            blocks: (blocks as f64 * depth).ceil() as usize,
        };
        let stages = [
            [1, 3, 1, 32, 16, 1],
            [6, 3, 2, 16, 24, 2],
            [6, 5, 2, 24, 40, 2],
            [6, 3, 2, 40, 80, 3],
            [6, 5, 1, 80, 112, 3],
            [6, 5, 2, 112, 192, 4],
            [6, 3, 1, 192, 320, 1],
        ];
        let stages = stages.map(stage).to_vec();
        Self { stages, top: None, dropout, stochastic_depth: 0.2, eps: 1e-5, momentum: 0.1, classes: 1000 }
    }

    /// The second version: its first three stages are fused.
    fn v2(stages: &[[usize; 6]], dropout: f64) -> Self {
        let stage = |(at, &[expansion, kernel, stride, inputs, outputs, blocks]): (usize, &[usize; 6])| {
            EfficientNetStage { fused: at < 3, expansion, kernel, stride, inputs, outputs, blocks }
        };
        let stages = stages.iter().enumerate().map(stage).collect();
        Self { stages, top: Some(1280), dropout, stochastic_depth: 0.2, eps: 1e-3, momentum: 0.1, classes: 1000 }
    }

    /// EfficientNet-B0: 5,288,548 parameters.
    #[must_use]
    pub fn b0() -> Self {
        Self::v1(1.0, 1.0, 0.2)
    }

    /// EfficientNet-B1: 7,794,184 parameters.
    #[must_use]
    pub fn b1() -> Self {
        Self::v1(1.0, 1.1, 0.2)
    }

    /// EfficientNet-B2: 9,109,994 parameters.
    #[must_use]
    pub fn b2() -> Self {
        Self::v1(1.1, 1.2, 0.3)
    }

    /// EfficientNet-B3: 12,233,232 parameters.
    #[must_use]
    pub fn b3() -> Self {
        Self::v1(1.2, 1.4, 0.3)
    }

    /// EfficientNet-B4: 19,341,616 parameters.
    #[must_use]
    pub fn b4() -> Self {
        Self::v1(1.4, 1.8, 0.4)
    }

    /// EfficientNet-B5: 30,389,784 parameters.
    #[must_use]
    pub fn b5() -> Self {
        Self { eps: 1e-3, momentum: 0.01, ..Self::v1(1.6, 2.2, 0.4) }
    }

    /// EfficientNet-B6: 43,040,704 parameters.
    #[must_use]
    pub fn b6() -> Self {
        Self { eps: 1e-3, momentum: 0.01, ..Self::v1(1.8, 2.6, 0.5) }
    }

    /// EfficientNet-B7: 66,347,960 parameters.
    #[must_use]
    pub fn b7() -> Self {
        Self { eps: 1e-3, momentum: 0.01, ..Self::v1(2.0, 3.1, 0.5) }
    }

    /// EfficientNetV2-S: 21,458,488 parameters.
    #[must_use]
    pub fn v2_s() -> Self {
        let stages = [
            [1, 3, 1, 24, 24, 2],
            [4, 3, 2, 24, 48, 4],
            [4, 3, 2, 48, 64, 4],
            [4, 3, 2, 64, 128, 6],
            [6, 3, 1, 128, 160, 9],
            [6, 3, 2, 160, 256, 15],
        ];
        Self::v2(&stages, 0.2)
    }

    /// EfficientNetV2-M: 54,139,356 parameters.
    #[must_use]
    pub fn v2_m() -> Self {
        let stages = [
            [1, 3, 1, 24, 24, 3],
            [4, 3, 2, 24, 48, 5],
            [4, 3, 2, 48, 80, 5],
            [4, 3, 2, 80, 160, 7],
            [6, 3, 1, 160, 176, 14],
            [6, 3, 2, 176, 304, 18],
            [6, 3, 1, 304, 512, 5],
        ];
        Self::v2(&stages, 0.3)
    }

    /// EfficientNetV2-L: 118,515,272 parameters.
    #[must_use]
    pub fn v2_l() -> Self {
        let stages = [
            [1, 3, 1, 32, 32, 4],
            [4, 3, 2, 32, 64, 7],
            [4, 3, 2, 64, 96, 7],
            [4, 3, 2, 96, 192, 10],
            [6, 3, 1, 192, 224, 19],
            [6, 3, 2, 224, 384, 25],
            [6, 3, 1, 384, 640, 7],
        ];
        Self::v2(&stages, 0.4)
    }

    /// The channels before the mean.
    fn top(&self) -> usize {
        self.top.unwrap_or_else(|| 4 * self.stages.last().map_or(32, |stage| stage.outputs))
    }

    #[expect(clippy::cast_precision_loss, reason = "few blocks")]
    fn features(&self) -> Vec<FeatureConfig> {
        let norms = Norms { eps: self.eps, momentum: self.momentum };
        let first = self.stages.first().map_or(32, |stage| stage.inputs);
        let last = self.stages.last().map_or(first, |stage| stage.outputs);
        let mut features = vec![FeatureConfig::Conv(norms.behind(conv(3, first, 3, 2), first, Activation::Silu))];
        let all: usize = self.stages.iter().map(|stage| stage.blocks).sum();
        let mut before = 0;
        for stage in &self.stages {
            let block = |at: usize| {
                let (inputs, stride) = if at == 0 { (stage.inputs, stage.stride) } else { (stage.outputs, 1) };
                let dropped = self.stochastic_depth * (before + at) as f64 / all as f64;
                BlockConfig { of: EfficientNetStage { stride, inputs, ..*stage }, dropped, norms }
            };
            features.push(FeatureConfig::Blocks((0..stage.blocks).map(block).collect()));
            before += stage.blocks;
        }
        features.push(FeatureConfig::Conv(norms.behind(conv(last, self.top(), 1, 1), self.top(), Activation::Silu)));
        features
    }
}

one_of! {
    #[expect(clippy::large_enum_variant, reason = "some twenty of them")]
    pub(crate) enum Feature of FeatureConfig: Layer {
        Conv(ConvNorm, ConvNormConfig),
        Blocks(Vec<Block>, Vec<BlockConfig>),
    }
}

/// A block that adds its input if it keeps the shape.
#[derive(Module, Debug, Clone)]
#[module(config(of: EfficientNetStage, dropped: f64, norms: Norms))]
pub(crate) struct Block {
    #[module(init = if of.fused { fused_parts(of, norms) } else { parts(of, norms) })]
    block: Vec<Part>,
    #[module(init = (of.stride == 1 && of.inputs == of.outputs).then(|| StochasticDepth::new(dropped)))]
    residual: Option<StochasticDepth>,
}

one_of! {
    pub(crate) enum Part of PartConfig: Layer {
        Conv(ConvNorm, ConvNormConfig),
        Squeeze(SqueezeExcitation, SqueezeExcitationConfig),
    }
}

fn parts(of: EfficientNetStage, norms: Norms) -> Vec<PartConfig> {
    let EfficientNetStage { expansion, kernel, stride, inputs, outputs, .. } = of;
    let inside = scaled(inputs, expansion as f64);
    let widen = (inside != inputs).then(|| norms.behind(conv(inputs, inside, 1, 1), inside, Activation::Silu));
    let depthwise = norms.behind(conv(inside, inside, kernel, stride).groups(inside), inside, Activation::Silu);
    let squeezed = (inputs / 4).max(1);
    let squeeze = SqueezeExcitationConfig { channels: inside, squeezed, activation: Activation::Silu, is_hard: false };
    let narrow = norms.behind(conv(inside, outputs, 1, 1), outputs, Activation::None);
    let convs = widen.into_iter().chain([depthwise]).map(PartConfig::Conv);
    convs.chain([PartConfig::Squeeze(squeeze), PartConfig::Conv(narrow)]).collect()
}

fn fused_parts(of: EfficientNetStage, norms: Norms) -> Vec<PartConfig> {
    let EfficientNetStage { expansion, kernel, stride, inputs, outputs, .. } = of;
    let inside = scaled(inputs, expansion as f64);
    if inside == inputs {
        return vec![PartConfig::Conv(norms.behind(conv(inputs, outputs, kernel, stride), outputs, Activation::Silu))];
    }
    let widen = norms.behind(conv(inputs, inside, kernel, stride), inside, Activation::Silu);
    vec![
        PartConfig::Conv(widen),
        PartConfig::Conv(norms.behind(conv(inside, outputs, 1, 1), outputs, Activation::None)),
    ]
}

impl Layer for Block {
    fn forward(&self, x: &Var) -> Var {
        let y = self.block.forward(x);
        match &self.residual {
            Some(depth) => depth.forward(&y) + x,
            None => y,
        }
    }
}
