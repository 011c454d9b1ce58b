//! Residual nets: ResNet, ResNeXt and Wide ResNet, under torchvision's names.

use meganeura::init::{Fan, Initializer, Nonlinearity};
use meganeura::prelude::*;

use crate::norm::{Norm, Normalization};

/// A residual net for images: [He et al., 2015](https://arxiv.org/abs/1512.03385)
///
/// Its parameters have the names and shapes of torchvision's `ResNet`, and of timm's models of the same names. The
/// stride of a bottleneck is that of its 3×3 convolution, as in both.
///
/// Shapes: images `[N, 3, H, W]` → scores `[N, classes]`, in whatever size the images are; the originals were trained
/// on 224×224 pixels.
///
/// ```
/// use meganeura::prelude::*;
/// use meganeura_models::{ResNet, ResNetConfig};
///
/// # fn main() -> meganeura::Result<()> {
/// let device = Device::cpu();
/// let net = ResNet::init(&device, 42, ResNetConfig { classes: 10, ..ResNetConfig::resnet18() })?;
/// // net.load("resnet18.safetensors")?.strict()?;
/// let images = Tensor::zeros(&device, [2, 3, 32, 32])?;
/// assert_eq!(images.map(|x| net.forward(x))?.shape(), Shape::from([2, 10]));
/// # Ok(())
/// # }
/// ```
#[derive(Module, Debug, Clone)]
#[module(sequential, config = ResNetConfig)]
pub struct ResNet {
    /// The stem's convolution, 7×7 with stride 2.
    #[module(init = conv(3, config.width, 7).stride(2).padding(3))]
    pub conv1: Conv2d,
    /// The stem's normalisation; ReLU and 3×3 maximum pooling with stride 2 follow.
    #[module(init = config.norm.of(config.width), then = [relu, MaxPool2d::new(3).stride(2).padding(1)])]
    pub bn1: Norm,
    /// The blocks of 64 channels, four times as many behind bottlenecks.
    #[module(init = config.stage(0))]
    pub layer1: Vec<ResNetBlock>,
    /// The blocks of 128 channels; the first halves the image, as in the next two stages.
    #[module(init = config.stage(1))]
    pub layer2: Vec<ResNetBlock>,
    /// The blocks of 256 channels.
    #[module(init = config.stage(2))]
    pub layer3: Vec<ResNetBlock>,
    /// The blocks of 512 channels.
    #[module(init = config.stage(3))]
    pub layer4: Vec<ResNetBlock>,
    /// From the mean over all pixels to the scores.
    #[module(init = Linear::new(config.outputs(3), config.classes), before = mean_over(&[2, 3]))]
    pub fc: Linear,
}

/// Describes a [`ResNet`]
#[derive(Debug, Clone, PartialEq)]
pub struct ResNetConfig {
    /// The number of blocks of each of the four stages, at least one each.
    pub depths: [usize; 4],
    /// Blocks of three convolutions, 1×1, 3×3 and 1×1, whose output has four times the channels, instead of two of 3×3.
    pub bottleneck: bool,
    /// The channels of the stem, and of the first stage without bottlenecks; each further stage has twice as many.
    pub width: usize,
    /// The groups of a bottleneck's 3×3 convolution: 32 in ResNeXt.
    pub groups: usize,
    /// The channels of each group inside a bottleneck of the first stage: 64 in ResNet.
    pub width_per_group: usize,
    /// Normalisation by batch or by group.
    pub norm: Normalization,
    /// The number of classes: 1,000 in the originals.
    pub classes: usize,
}

impl ResNetConfig {
    const fn new(bottleneck: bool, depths: [usize; 4]) -> Self {
        Self {
            depths,
            bottleneck,
            width: 64,
            groups: 1,
            width_per_group: 64,
            norm: Normalization::Batch,
            classes: 1000,
        }
    }

    /// ResNet-18: 11,689,512 parameters.
    #[must_use]
    pub const fn resnet18() -> Self {
        Self::new(false, [2, 2, 2, 2])
    }

    /// ResNet-34: 21,797,672 parameters.
    #[must_use]
    pub const fn resnet34() -> Self {
        Self::new(false, [3, 4, 6, 3])
    }

    /// ResNet-50: 25,557,032 parameters.
    #[must_use]
    pub const fn resnet50() -> Self {
        Self::new(true, [3, 4, 6, 3])
    }

    /// ResNet-101: 44,549,160 parameters.
    #[must_use]
    pub const fn resnet101() -> Self {
        Self::new(true, [3, 4, 23, 3])
    }

    /// ResNet-152: 60,192,808 parameters.
    #[must_use]
    pub const fn resnet152() -> Self {
        Self::new(true, [3, 8, 36, 3])
    }

    /// ResNeXt-50, 32×4d: [Xie et al., 2016](https://arxiv.org/abs/1611.05431).
    #[must_use]
    pub const fn resnext50_32x4d() -> Self {
        Self { groups: 32, width_per_group: 4, ..Self::resnet50() }
    }

    /// ResNeXt-101, 32×8d.
    #[must_use]
    pub const fn resnext101_32x8d() -> Self {
        Self { groups: 32, width_per_group: 8, ..Self::resnet101() }
    }

    /// Wide ResNet-50-2: [Zagoruyko and Komodakis, 2016](https://arxiv.org/abs/1605.07146).
    #[must_use]
    pub const fn wide_resnet50_2() -> Self {
        Self { width_per_group: 128, ..Self::resnet50() }
    }

    /// Wide ResNet-101-2.
    #[must_use]
    pub const fn wide_resnet101_2() -> Self {
        Self { width_per_group: 128, ..Self::resnet101() }
    }

    /// The channels behind a stage.
    const fn outputs(&self, stage: usize) -> usize {
        (self.width << stage) * if self.bottleneck { 4 } else { 1 }
    }

    fn stage(&self, stage: usize) -> Vec<ResNetBlockConfig> {
        let outputs = self.outputs(stage);
        let before = if stage == 0 { self.width } else { self.outputs(stage - 1) };
        // The first stage comes after the stem's pooling, which halved the image.
        let stride = if stage == 0 { 1 } else { 2 };
        let width = match self.bottleneck {
            true => (self.width << stage) * self.width_per_group / 64 * self.groups,
            false => outputs,
        };
        let block = |at| {
            let (inputs, stride) = if at == 0 { (before, stride) } else { (outputs, 1) };
            let Self { bottleneck, groups, norm, .. } = *self;
            ResNetBlockConfig { inputs, width, outputs, stride, bottleneck, groups, norm }
        };
        (0..self.depths[stage]).map(block).collect()
    }
}

/// A block of a [`ResNet`]: `relu(x + f(x))`, where `f` is two convolutions, or three if it is a bottleneck
#[derive(Module, Debug, Clone)]
#[module(config(
    /// Channels of the input.
    inputs: usize,
    /// Channels between the convolutions.
    width: usize,
    /// Channels of the output.
    outputs: usize,
    /// The factor by which the block shrinks the image.
    stride: usize,
    /// Three convolutions instead of two.
    bottleneck: bool,
    /// Groups of the bottleneck's 3×3 convolution.
    groups: usize,
    /// Normalisation by batch or by group.
    norm: Normalization,
))]
pub struct ResNetBlock {
    #[module(init = if bottleneck { conv(inputs, width, 1) } else { conv(inputs, width, 3).stride(stride).padding(1) })]
    conv1: Conv2d,
    #[module(init = norm.of(width))]
    bn1: Norm,
    #[module(init = match bottleneck {
        true => conv(width, width, 3).stride(stride).padding(1).groups(groups),
        false => conv(width, outputs, 3).padding(1),
    })]
    conv2: Conv2d,
    #[module(init = norm.of(width))]
    bn2: Norm,
    #[module(init = bottleneck.then(|| conv(width, outputs, 1)))]
    conv3: Option<Conv2d>,
    #[module(init = bottleneck.then(|| norm.of(outputs)))]
    bn3: Option<Norm>,
    #[module(init = (stride != 1 || inputs != outputs)
        .then(|| (conv(inputs, outputs, 1).stride(stride), norm.of(outputs))))]
    downsample: Option<(Conv2d, Norm)>,
}

impl Layer for ResNetBlock {
    fn forward(&self, x: &Var) -> Var {
        let mut y = self.bn1.forward(&self.conv1.forward(x)).relu();
        y = self.bn2.forward(&self.conv2.forward(&y));
        if let (Some(conv3), Some(bn3)) = (&self.conv3, &self.bn3) {
            y = bn3.forward(&conv3.forward(&y.relu()));
        }
        let skip = self.downsample.as_ref().map_or_else(|| x.clone(), |downsample| downsample.forward(x));
        (y + skip).relu()
    }
}

/// A convolution without bias that starts as in torchvision.
fn conv(inputs: usize, outputs: usize, kernel: usize) -> Conv2dConfig {
    let fan_out = Initializer::KaimingNormal { nonlinearity: Nonlinearity::Relu, fan: Fan::Out };
    Conv2d::new(inputs, outputs, kernel).bias(false).weight_init(fan_out)
}
