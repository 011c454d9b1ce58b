//! ResNet-50: 25,557,032 parameters for a width of 64 and 1,000 classes.

use meganeura::prelude::*;

/// Maps images `[N, 3, H, W]` to a score for each class, `[N, classes]`.
///
/// [He et al., 2015](https://arxiv.org/abs/1512.03385), with the stride of a block in its 3×3 convolution.
#[derive(Module, Debug)]
#[module(sequential, config(
    /// Channels after the first layer: 64 in the reference.
    width: usize,
    /// Blocks of each stage: 3, 4, 6 and 3 in the reference.
    depths: [usize; 4],
    /// The number of classes.
    classes: usize,
))]
pub struct ResNet50 {
    #[module(init = Conv2d::new(3, width, 7).stride(2).padding(3).bias(false))]
    stem: Conv2d,
    #[module(init = BatchNorm2d::new(width), then = [relu, MaxPool2d::new(3).stride(2).padding(1)])]
    norm: BatchNorm2d,
    #[module(init = blocks(depths, width), then = mean_over(&[2, 3]))]
    blocks: Vec<Bottleneck>,
    #[module(init = Linear::new(32 * width, classes))]
    head: Linear,
}

/// The first block of each stage changes the width and, except in the first stage, halves the images.
fn blocks(depths: [usize; 4], width: usize) -> Vec<BottleneckConfig> {
    let stages = depths.into_iter().enumerate().flat_map(|(stage, depth)| vec![stage; depth]);
    let mut inputs = width;
    let block = |stage: usize| {
        let middle = width << stage;
        let stride = if stage > 0 && inputs != 4 * middle { 2 } else { 1 };
        BottleneckConfig { inputs: std::mem::replace(&mut inputs, 4 * middle), middle, stride }
    };
    stages.map(block).collect()
}

#[derive(Module, Debug)]
#[module(sequential, residual = skip, then = relu, config(inputs: usize, middle: usize, stride: usize))]
struct Bottleneck {
    #[module(init = Conv2d::new(inputs, middle, 1).bias(false))]
    conv1: Conv2d,
    #[module(init = BatchNorm2d::new(middle), then = relu)]
    norm1: BatchNorm2d,
    #[module(init = Conv2d::new(middle, middle, 3).stride(stride).padding(1).bias(false))]
    conv2: Conv2d,
    #[module(init = BatchNorm2d::new(middle), then = relu)]
    norm2: BatchNorm2d,
    #[module(init = Conv2d::new(middle, 4 * middle, 1).bias(false))]
    conv3: Conv2d,
    #[module(init = BatchNorm2d::new(4 * middle))]
    norm3: BatchNorm2d,
    #[module(init = (inputs != 4 * middle)
        .then(|| (Conv2d::new(inputs, 4 * middle, 1).stride(stride).bias(false), BatchNorm2d::new(4 * middle))))]
    skip: Option<(Conv2d, BatchNorm2d)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_has_its_parameters() {
        let config = ResNet50Config { width: 64, depths: [3, 4, 6, 3], classes: 1000 };
        assert_eq!(ResNet50::init(&Device::cpu(), 1, config).unwrap().parameter_count(), 25_557_032);
    }
}
