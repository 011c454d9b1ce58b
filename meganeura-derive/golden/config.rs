#[module(no_display, sequential, residual = shortcut, then = relu, config(
    /// Channels of the input.
    inputs: usize,
    outputs: usize,
))]
pub struct Block {
    #[module(init = Conv2d::new(inputs, outputs, 3))]
    conv: Conv2d,
    #[module(init = |device, seed| GroupNorm::new(8, outputs).init(device, seed), then = relu)]
    norm: GroupNorm,
    #[module(init = (inputs != outputs).then(|| Conv2d::new(inputs, outputs, 1)))]
    shortcut: Option<Conv2d>,
}
