//! The transformer of a U-Net that sees a text, under diffusers' names.

use meganeura::prelude::*;

use super::parts::{Projections, ProjectionsConfig, to_image, to_pixels};
use crate::one_of::one_of;

/// Attention between the pixels of an image, and from them to a text: diffusers' `Transformer2DModel`
#[derive(Module, Debug, Clone)]
#[module(config(channels: usize, heads: usize, text: usize, groups: usize, linear: bool))]
pub(super) struct Transformer {
    #[module(init = GroupNorm::new(groups, channels).eps(1e-6))]
    norm: GroupNorm,
    #[module(init = projection(channels, linear))]
    proj_in: Projection,
    #[module(init = (BlockConfig { width: channels, heads, text },))]
    transformer_blocks: (Block,),
    #[module(init = projection(channels, linear))]
    proj_out: Projection,
}

one_of! {
    pub(crate) enum Projection of ProjectionConfig {
        Convolution(Conv2d, Conv2dConfig),
        Matrix(Linear, LinearConfig),
    }
}

fn projection(channels: usize, linear: bool) -> ProjectionConfig {
    match linear {
        true => ProjectionConfig::Matrix(Linear::new(channels, channels)),
        false => ProjectionConfig::Convolution(Conv2d::new(channels, channels, 1)),
    }
}

impl Transformer {
    #[track_caller]
    pub(super) fn forward(&self, x: &Var, text: &Var) -> Var {
        let y = self.norm.forward(x);
        let pixels = match &self.proj_in {
            Projection::Convolution(conv) => to_pixels(&conv.forward(&y)),
            Projection::Matrix(linear) => linear.forward(&to_pixels(&y)),
        };
        let pixels = self.transformer_blocks.0.forward(&pixels, text);
        let y = match &self.proj_out {
            Projection::Convolution(conv) => conv.forward(&to_image(&pixels, x)),
            Projection::Matrix(linear) => to_image(&linear.forward(&pixels), x),
        };
        x + y
    }
}

/// diffusers' `BasicTransformerBlock`.
#[derive(Module, Debug, Clone)]
#[module(config(width: usize, heads: usize, text: usize))]
pub(crate) struct Block {
    #[module(init = LayerNorm::new([width]))]
    norm1: LayerNorm,
    #[module(init = ProjectionsConfig { width, context: width, heads, bias: false })]
    attn1: Projections,
    #[module(init = LayerNorm::new([width]))]
    norm2: LayerNorm,
    #[module(init = ProjectionsConfig { width, context: text, heads, bias: false })]
    attn2: Projections,
    #[module(init = LayerNorm::new([width]))]
    norm3: LayerNorm,
    #[module(init = FeedForwardConfig { width })]
    ff: FeedForward,
}

#[derive(Module, Debug, Clone)]
#[module(sequential, config(width: usize))]
struct FeedForward {
    #[module(init = NetConfig { width })]
    net: Net,
}

/// The list of the layers, by their places.
#[derive(Module, Debug, Clone)]
#[module(sequential, config(width: usize))]
struct Net {
    #[module(rename = "0", init = GatedConfig { width })]
    gated: Gated,
    #[module(rename = "2", init = Linear::new(4 * width, width))]
    narrow: Linear,
}

/// `a·gelu(b)`, where `a` and `b` are the halves of a product.
#[derive(Module, Debug, Clone)]
#[module(config(width: usize))]
struct Gated {
    #[module(init = Linear::new(width, 8 * width))]
    proj: Linear,
}

impl Layer for Gated {
    #[track_caller]
    fn forward(&self, x: &Var) -> Var {
        let both = self.proj.forward(x);
        let axis = both.shape().rank().saturating_sub(1);
        let parts = both.chunk(2, axis);
        &parts[0] * parts[1].gelu()
    }
}

impl Block {
    #[track_caller]
    fn forward(&self, x: &Var, text: &Var) -> Var {
        let y = self.norm1.forward(x);
        let x = x + self.attn1.attend(&y, &y);
        let x = &x + self.attn2.attend(&self.norm2.forward(&x), text);
        &x + self.ff.forward(&self.norm3.forward(&x))
    }
}
