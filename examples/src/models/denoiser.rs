//! A residual perceptron that draws digits of 8×8 pixels on request: small enough to learn in a browser.

use meganeura::prelude::*;

use crate::digits::CLASSES;

/// Pixels of an image.
const PIXELS: usize = 8 * 8;

/// Maps noisy images `[N, 1, 8, 8]`, their timesteps `[N]` and their digits `u32 [N]` to the noise in them.
#[derive(Module, Debug, Clone)]
#[module(config(
    /// Numbers in a hidden layer.
    width: usize,
))]
pub struct Denoiser {
    #[module(init = (SinusoidalEmbedding::new(64), Linear::new(64, width), Silu, Linear::new(width, width)))]
    time: (SinusoidalEmbedding, Linear, Silu, Linear),
    #[module(init = Embedding::new(CLASSES, width))]
    digit: Embedding,
    #[module(init = Linear::new(PIXELS, width))]
    stem: Linear,
    #[module(init = [BlockConfig { width }, BlockConfig { width }, BlockConfig { width }])]
    blocks: [Block; 3],
    #[module(init = LayerNorm::new([width]))]
    norm: LayerNorm,
    #[module(init = Linear::new(width, PIXELS))]
    head: Linear,
}

impl Denoiser {
    /// The noise in images `x` of these `digits` at timesteps `t`.
    pub fn forward(&self, x: &Var, t: &Var, digits: &Var) -> Var {
        let shape = x.shape();
        let about = (self.time.forward(t) + self.digit.forward(digits)).silu();
        let mut h = self.stem.forward(&x.reshape([shape[0], PIXELS]));
        for block in &self.blocks {
            h = block.forward(&h, &about);
        }
        self.head.forward(&self.norm.forward(&h).silu()).reshape(shape)
    }
}

/// Adds to `h` the result of two layers on `h` and on `about`, which encodes the time and the digit.
#[derive(Module, Debug, Clone)]
#[module(config(width: usize))]
struct Block {
    #[module(init = LayerNorm::new([width]))]
    norm: LayerNorm,
    #[module(init = Linear::new(width, width))]
    inward: Linear,
    #[module(init = Linear::new(width, width))]
    about: Linear,
    #[module(init = Linear::new(width, width))]
    outward: Linear,
}

impl Block {
    fn forward(&self, h: &Var, about: &Var) -> Var {
        let inner = self.inward.forward(&self.norm.forward(h)) + self.about.forward(about);
        h + self.outward.forward(&inner.silu())
    }
}
