//! MobileNetV2: 3,504,872 parameters for 1,000 classes.

use meganeura::prelude::*;

/// Maps images `[N, 3, H, W]` to a score for each class, `[N, classes]`.
///
/// [Sandler et al., 2018](https://arxiv.org/abs/1801.04381), with ReLU in the place of ReLU6, and without dropout.
#[derive(Module, Debug)]
#[module(sequential, config(
    /// Channels after the first layer: 32 in the reference.
    first: usize,
    /// Blocks of one width: [`MobileNetV2::STAGES`] in the reference.
    stages: Vec<Stage>,
    /// Channels before the head: 1,280 in the reference.
    last: usize,
    /// The number of classes.
    classes: usize,
))]
pub struct MobileNetV2 {
    #[module(init = Conv2d::new(3, first, 3).stride(2).padding(1).bias(false))]
    stem: Conv2d,
    #[module(init = BatchNorm2d::new(first), then = relu)]
    norm: BatchNorm2d,
    #[module(init = blocks(first, &stages))]
    blocks: Vec<InvertedResidual>,
    #[module(init = Conv2d::new(stages.last().map_or(first, |stage| stage.width), last, 1).bias(false))]
    top: Conv2d,
    #[module(init = BatchNorm2d::new(last), then = [relu, mean_over(&[2, 3])])]
    top_norm: BatchNorm2d,
    #[module(init = Linear::new(last, classes))]
    head: Linear,
}

/// Blocks of one width.
#[derive(Clone, Copy, Debug)]
pub struct Stage {
    /// Channels inside a block for each of its inputs'.
    pub expansion: usize,
    /// Channels after each block.
    pub width: usize,
    /// The number of blocks.
    pub blocks: usize,
    /// The stride of the first block.
    pub stride: usize,
}

impl MobileNetV2 {
    /// The stages of the reference, 17 blocks.
    pub const STAGES: [Stage; 7] = [
        Stage { expansion: 1, width: 16, blocks: 1, stride: 1 },
        Stage { expansion: 6, width: 24, blocks: 2, stride: 2 },
        Stage { expansion: 6, width: 32, blocks: 3, stride: 2 },
        Stage { expansion: 6, width: 64, blocks: 4, stride: 2 },
        Stage { expansion: 6, width: 96, blocks: 3, stride: 1 },
        Stage { expansion: 6, width: 160, blocks: 3, stride: 2 },
        Stage { expansion: 6, width: 320, blocks: 1, stride: 1 },
    ];
}

fn blocks(first: usize, stages: &[Stage]) -> Vec<InvertedResidualConfig> {
    let mut blocks = Vec::new();
    let mut inputs = first;
    for stage in stages {
        for block in 0..stage.blocks {
            let stride = if block == 0 { stage.stride } else { 1 };
            let (outputs, expansion) = (stage.width, stage.expansion);
            blocks.push(InvertedResidualConfig { inputs, outputs, expansion, stride });
            inputs = outputs;
        }
    }
    blocks
}

/// Widens, convolves each channel by itself, and narrows. Blocks that keep the shape add their input.
#[derive(Module, Debug)]
#[module(config(inputs: usize, outputs: usize, expansion: usize, stride: usize))]
struct InvertedResidual {
    #[module(init = (expansion != 1).then(|| {
        (Conv2d::new(inputs, expansion * inputs, 1).bias(false), BatchNorm2d::new(expansion * inputs), Relu)
    }))]
    widen: Option<(Conv2d, BatchNorm2d, Relu)>,
    #[module(init = depthwise(expansion * inputs, stride))]
    depthwise: Conv2d,
    #[module(init = BatchNorm2d::new(expansion * inputs))]
    norm: BatchNorm2d,
    #[module(init = Conv2d::new(expansion * inputs, outputs, 1).bias(false))]
    narrow: Conv2d,
    #[module(init = BatchNorm2d::new(outputs))]
    narrow_norm: BatchNorm2d,
    #[module(skip, init = stride == 1 && inputs == outputs)]
    is_residual: bool,
}

fn depthwise(channels: usize, stride: usize) -> Conv2dConfig {
    Conv2d::new(channels, channels, 3).stride(stride).padding(1).groups(channels).bias(false)
}

impl Layer for InvertedResidual {
    fn forward(&self, x: &Var) -> Var {
        let wide = self.widen.as_ref().map_or_else(|| x.clone(), |widen| widen.forward(x));
        let wide = self.norm.forward(&self.depthwise.forward(&wide)).relu();
        let y = self.narrow_norm.forward(&self.narrow.forward(&wide));
        if self.is_residual { y + x } else { y }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_has_its_parameters() {
        let stages = MobileNetV2::STAGES.to_vec();
        let config = MobileNetV2Config { first: 32, stages, last: 1280, classes: 1000 };
        assert_eq!(MobileNetV2::init(&Device::cpu(), 1, config).unwrap().parameter_count(), 3_504_872);
    }
}
