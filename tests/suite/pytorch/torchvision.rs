//! A residual net in torchvision's style, with batch normalisation, under our own names.

use meganeura::io::Names;
use meganeura::prelude::*;

#[derive(Module, Debug)]
#[module(sequential, config(depths: [usize; 4], width: usize, classes: usize))]
pub(super) struct ResNet {
    #[module(init = Conv2d::new(3, width, 7).stride(2).padding(3).bias(false))]
    stem: Conv2d,
    #[module(init = BatchNorm2d::new(width), then = [relu, MaxPool2d::new(3).stride(2).padding(1)])]
    norm: BatchNorm2d,
    #[module(init = stages(depths, width), then = mean_over(&[2, 3]))]
    stages: Vec<Vec<Block>>,
    #[module(init = Linear::new(8 * width, classes))]
    head: Linear,
}

/// The first block of each stage changes the width and, except in the first stage, halves the images.
fn stages(depths: [usize; 4], width: usize) -> Vec<Vec<BlockConfig>> {
    let stage = |index: usize| {
        let outputs = width << index;
        let before = if index == 0 { width } else { outputs / 2 };
        let block = |block| BlockConfig { inputs: if block == 0 { before } else { outputs }, outputs };
        (0..depths[index]).map(block).collect()
    };
    (0..4).map(stage).collect()
}

#[derive(Module, Debug)]
#[module(sequential, residual = skip, then = relu, config(inputs: usize, outputs: usize))]
struct Block {
    #[module(init = Conv2d::new(inputs, outputs, 3).stride(outputs / inputs).padding(1).bias(false))]
    conv1: Conv2d,
    #[module(init = BatchNorm2d::new(outputs), then = relu)]
    norm1: BatchNorm2d,
    #[module(init = Conv2d::new(outputs, outputs, 3).padding(1).bias(false))]
    conv2: Conv2d,
    #[module(init = BatchNorm2d::new(outputs))]
    norm2: BatchNorm2d,
    #[module(init = (inputs != outputs)
        .then(|| (Conv2d::new(inputs, outputs, 1).stride(outputs / inputs).bias(false), BatchNorm2d::new(outputs))))]
    skip: Option<(Conv2d, BatchNorm2d)>,
}

/// Torchvision's names of the parts.
pub(super) fn names() -> Names {
    let names = Names::new().rename("conv1.*", "stem.*").rename("bn1.*", "norm.*").rename("fc.*", "head.*");
    let stage = |names: Names, k: usize| names.rename(format!("layer{}.**", k + 1), format!("stages.{k}.**"));
    (0..4).fold(names, stage).rename("stages.**.bn*.*", "stages.**.norm*.*").rename("**.downsample.**", "**.skip.**")
}
