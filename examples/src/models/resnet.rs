//! ResNet-18 for small images, with group normalisation: 11,173,962 parameters for three channels, a width of 64 and
//! ten classes.

use meganeura::prelude::*;

/// Maps images `[N, images, H, W]` to a score for each class, `[N, classes]`.
#[derive(Module, Debug)]
#[module(sequential, config(
    /// Channels of the images: 1 for grey ones, 3 for coloured ones.
    images: usize,
    /// Channels after the first layer; a multiple of the groups.
    width: usize,
    /// The groups of each normalisation, 32 in the reference.
    groups: usize,
    /// The number of classes.
    classes: usize,
))]
pub struct ResNet18Gn {
    #[module(init = Conv2d::new(images, width, 3).padding(1).bias(false))]
    stem: Conv2d,
    #[module(init = GroupNorm::new(groups, width), then = relu)]
    norm: GroupNorm,
    #[module(init = blocks(width, groups), then = mean_over(&[2, 3]))]
    blocks: Vec<Block>,
    #[module(init = Linear::new(8 * width, classes))]
    head: Linear,
}

/// Two blocks for each of four widths; each width except the first begins with a stride.
fn blocks(width: usize, groups: usize) -> Vec<BlockConfig> {
    let widths = [1, 1, 2, 2, 4, 4, 8, 8].map(|factor| factor * width);
    let block = |inputs, outputs| BlockConfig { inputs, outputs, stride: outputs / inputs, groups };
    [width].iter().chain(&widths).zip(&widths).map(|(&inputs, &outputs)| block(inputs, outputs)).collect()
}

#[derive(Module, Debug)]
#[module(sequential, residual = skip, then = relu, config(inputs: usize, outputs: usize, stride: usize, groups: usize))]
struct Block {
    #[module(init = Conv2d::new(inputs, outputs, 3).stride(stride).padding(1).bias(false))]
    conv1: Conv2d,
    #[module(init = GroupNorm::new(groups, outputs), then = relu)]
    norm1: GroupNorm,
    #[module(init = Conv2d::new(outputs, outputs, 3).padding(1).bias(false))]
    conv2: Conv2d,
    #[module(init = GroupNorm::new(groups, outputs))]
    norm2: GroupNorm,
    #[module(init = (inputs != outputs)
        .then(|| (Conv2d::new(inputs, outputs, 1).stride(stride).bias(false), GroupNorm::new(groups, outputs))))]
    skip: Option<(Conv2d, GroupNorm)>,
}
