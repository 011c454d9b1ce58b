//! A convolutional net that reads handwritten digits: 14,826 parameters.

use meganeura::prelude::*;

/// The model: images `[N, 1, 8, 8]` pass through the fields in order and give a score for each digit, `[N, 10]`.
#[derive(Module, Debug, Clone)]
#[module(sequential)]
pub struct Digits {
    #[module(init = Conv2d::new(1, 32, 3).padding(1))]
    stem: Conv2d,
    #[module(init = GroupNorm::new(8, 32), then = relu)]
    norm: GroupNorm,
    #[module(init, then = [MaxPool2d::new(2), flatten])]
    block: Residual,
    #[module(init = Linear::new(32 * 4 * 4, 10))]
    head: Linear,
}

/// Adds its input to the result of its layers.
#[derive(Module, Debug, Clone)]
#[module(sequential, residual, then = relu)]
struct Residual {
    #[module(init = Conv2d::new(32, 32, 3).padding(1))]
    conv: Conv2d,
    #[module(init = GroupNorm::new(8, 32))]
    norm: GroupNorm,
}
