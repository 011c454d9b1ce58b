//! The parts that U-Nets and autoencoders share, under diffusers' names.

use meganeura::ops::AttentionOptions;
use meganeura::prelude::*;

use crate::projected::{head_of, join_heads};

/// `shortcut(x) + f(x)`: twice normalisation, SiLU and 3×3 convolution, with the embedding of time in between;
/// diffusers' `ResnetBlock2D`
#[derive(Module, Debug, Clone)]
#[module(config(inputs: usize, outputs: usize, time: Option<usize>, groups: usize, eps: f64))]
pub(super) struct Resnet {
    #[module(init = GroupNorm::new(groups, inputs).eps(eps))]
    norm1: GroupNorm,
    #[module(init = Conv2d::new(inputs, outputs, 3).padding(1))]
    conv1: Conv2d,
    #[module(init = time.map(|time| Linear::new(time, outputs)))]
    time_emb_proj: Option<Linear>,
    #[module(init = GroupNorm::new(groups, outputs).eps(eps))]
    norm2: GroupNorm,
    #[module(init = Conv2d::new(outputs, outputs, 3).padding(1))]
    conv2: Conv2d,
    #[module(init = (inputs != outputs).then(|| Conv2d::new(inputs, outputs, 1)))]
    conv_shortcut: Option<Conv2d>,
}

impl Resnet {
    /// `time` is the embedding `[N, T]` behind its SiLU.
    #[track_caller]
    pub(super) fn forward(&self, x: &Var, time: Option<&Var>) -> Var {
        let mut y = self.conv1.forward(&self.norm1.forward(x).silu());
        if let (Some(project), Some(time)) = (&self.time_emb_proj, time) {
            let time = project.forward(time);
            let &[n, channels] = time.shape().dims() else { return time };
            y += time.reshape([n, channels, 1, 1]);
        }
        y = self.conv2.forward(&self.norm2.forward(&y).silu());
        match &self.conv_shortcut {
            Some(shortcut) => shortcut.forward(x) + y,
            None => x + y,
        }
    }
}

/// The projections of an attention: diffusers' `Attention`, with its result's projection in a list.
#[derive(Module, Debug, Clone)]
#[module(config(width: usize, context: usize, heads: usize, bias: bool))]
pub(super) struct Projections {
    #[module(init = Linear::new(width, width).bias(bias))]
    to_q: Linear,
    #[module(init = Linear::new(context, width).bias(bias))]
    to_k: Linear,
    #[module(init = Linear::new(context, width).bias(bias))]
    to_v: Linear,
    #[module(init = (Linear::new(width, width),))]
    to_out: (Linear,),
    #[module(skip, init = heads)]
    heads: usize,
}

impl Projections {
    /// From `x [N, L, width]` to `context [N, S, context]`.
    #[track_caller]
    pub(super) fn attend(&self, x: &Var, context: &Var) -> Var {
        let query = head_of(&self.to_q.forward(x), self.heads);
        let [key, value] = [&self.to_k, &self.to_v].map(|part| head_of(&part.forward(context), self.heads));
        let y = query.attention_with(&key, &value, AttentionOptions::default());
        self.to_out.0.forward(&join_heads(&y))
    }
}

/// Attention between the pixels of an image, added to it.
#[derive(Module, Debug, Clone)]
#[module(config(channels: usize, heads: usize, groups: usize, eps: f64))]
pub(super) struct PixelAttention {
    #[module(init = GroupNorm::new(groups, channels).eps(eps))]
    group_norm: GroupNorm,
    #[module(init = Linear::new(channels, channels))]
    to_q: Linear,
    #[module(init = Linear::new(channels, channels))]
    to_k: Linear,
    #[module(init = Linear::new(channels, channels))]
    to_v: Linear,
    #[module(init = (Linear::new(channels, channels),))]
    to_out: (Linear,),
    #[module(skip, init = heads)]
    heads: usize,
}

impl Layer for PixelAttention {
    #[track_caller]
    fn forward(&self, x: &Var) -> Var {
        let pixels = to_pixels(&self.group_norm.forward(x));
        let [query, key, value] =
            [&self.to_q, &self.to_k, &self.to_v].map(|part| head_of(&part.forward(&pixels), self.heads));
        let y = self.to_out.0.forward(&join_heads(&query.attention(&key, &value, None)));
        x + to_image(&y, x)
    }
}

/// `[N, C, H, W]` → `[N, H·W, C]`
#[track_caller]
pub(super) fn to_pixels(x: &Var) -> Var {
    let &[n, channels, rows, columns] = x.shape().dims() else { return x.clone() };
    x.reshape([n, channels, rows * columns]).permute(&[0, 2, 1])
}

/// The inverse of [`to_pixels`], to the shape of an image.
#[track_caller]
pub(super) fn to_image(pixels: &Var, like: &Var) -> Var {
    pixels.permute(&[0, 2, 1]).reshape(like.shape())
}

/// The list of one convolution that halves an image: diffusers' `downsamplers`.
#[derive(Module, Debug, Clone)]
#[module(config(channels: usize, padding: usize))]
pub(super) struct Halve {
    #[module(init = Conv2d::new(channels, channels, 3).stride(2).padding(padding))]
    conv: Conv2d,
}

impl Layer for Halve {
    #[track_caller]
    fn forward(&self, x: &Var) -> Var {
        // Without padding on all sides, a row below and a column on the right are padded.
        match self.conv.options.padding {
            [0, 0] if x.shape().rank() == 4 => self.conv.forward(&x.pad(&[(0, 0), (0, 0), (0, 1), (0, 1)], 0.0)),
            _ => self.conv.forward(x),
        }
    }
}

/// The list of one convolution that follows the doubling of an image: diffusers' `upsamplers`.
#[derive(Module, Debug, Clone)]
#[module(config(channels: usize))]
pub(super) struct Double {
    #[module(init = Conv2d::new(channels, channels, 3).padding(1))]
    conv: Conv2d,
}

impl Layer for Double {
    #[track_caller]
    fn forward(&self, x: &Var) -> Var {
        self.conv.forward(&x.upsample_nearest([2, 2]))
    }
}
