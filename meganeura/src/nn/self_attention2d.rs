//! Attention over the pixels of feature maps.

use meganeura_derive::Module;

use super::multihead_attention::check_heads;
use super::{Conv2d, Conv2dConfig};
use crate::module::{Init, Layer, Seed, init_field};
use crate::{Device, ErrorKind, Result, Var};

/// Multi-head attention of every pixel to every pixel: `y = Wₒ·concat(head₁, …, headₕ)`, where each head is
/// `softmax(q·kᵀ/√d)·v` over its `d = C/heads` channels of the projected queries, keys and values
///
/// Projections are 1×1 convolutions. Normalisation and residual are up to the caller: `x + attention(norm(x))` in
/// U-Nets. Time grows with `(H·W)²`. Memory is that of [`Var::attention_with`](crate::Var::attention_with), which
/// keeps all `N·heads·(H·W)²` scores only in some cases.
///
/// Shapes: `x [N, C, H, W]` → `y [N, C, H, W]`.
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let attention = SelfAttention2d::new(8, 2).init(&device, Seed::new(42))?;
///
/// let tape = Tape::new(&device);
/// let x = tape.input(&Tensor::zeros(&device, [2, 8, 4, 4])?);
/// assert_eq!(attention.forward(&x).shape(), x.shape());
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone)]
#[non_exhaustive]
pub struct SelfAttention2d {
    /// The projection to queries, keys and values, `C` channels each, in one product.
    pub qkv: Conv2d,
    /// The projection of the heads' results to the output.
    pub output: Conv2d,
    /// The number of heads, a divisor of the number of channels.
    #[module(skip)]
    pub heads: usize,
}

impl SelfAttention2d {
    /// Multi-head attention over pixels of `channels` channels, with `heads` heads.
    #[expect(clippy::new_ret_no_self, reason = "a layer needs a device and a seed; this describes one without")]
    pub fn new(channels: usize, heads: usize) -> SelfAttention2dConfig {
        SelfAttention2dConfig { channels, heads, bias: true }
    }
}

impl Layer for SelfAttention2d {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        let channels = self.output.weight.shape()[0];
        match *x.shape().dims() {
            [n, c, h, w] if c == channels && x.ty().dtype.is_float() => {
                let heads = [n, self.heads, c / self.heads, h * w];
                let qkv = self.qkv.forward(x);
                // A pixel's features as a row.
                let query = qkv.slice(1, 0..c).reshape(heads).t();
                let key = qkv.slice(1, c..2 * c).reshape(heads).t();
                let value = qkv.slice(1, 2 * c..3 * c).reshape(heads).t();
                let y = query.attention(&key, &value, None);
                self.output.forward(&y.t().reshape([n, c, h, w]))
            }
            _ => {
                let message = format!("the input must be floats [N, {channels}, H, W], it is {}", x.ty());
                x.refuse("self_attention2d", ErrorKind::Shape, message)
            }
        }
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::kept().takes_channels(self.qkv.weight.shape()[1])
    }
}

/// Describes a [`SelfAttention2d`]; [`Init::init`] builds it.
#[derive(Debug, Clone)]
#[must_use]
pub struct SelfAttention2dConfig {
    channels: usize,
    heads: usize,
    bias: bool,
}

impl SelfAttention2dConfig {
    /// Gives the projections biases if `true`, the default.
    pub fn bias(self, bias: bool) -> Self {
        Self { bias, ..self }
    }
}

impl Init for SelfAttention2dConfig {
    type Output = SelfAttention2d;

    fn build(self, device: &Device, seed: Seed) -> Result<SelfAttention2d> {
        let Self { channels, heads, bias } = self;
        check_heads("self_attention2d", channels, heads)?;
        let project = |name, outputs| {
            let conv: Conv2dConfig = Conv2d::new(channels, outputs, 1).bias(bias);
            init_field(name, conv.build(device, seed.field(name)))
        };
        Ok(SelfAttention2d { qkv: project("qkv", 3 * channels)?, output: project("output", channels)?, heads })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::MultiheadAttention;
    use crate::{Tape, Tensor};

    #[test]
    fn is_attention_over_pixels_as_a_sequence() {
        let device = Device::cpu();
        let map = SelfAttention2d::new(4, 2).init(&device, Seed::new(1)).unwrap();
        let mut sequence = MultiheadAttention::new(4, 2).init(&device, Seed::new(2)).unwrap();
        let part = |conv: &Conv2d, k: usize, bias: bool| {
            let data = if bias { conv.bias.as_ref().unwrap() } else { &conv.weight }.value().to_vec().unwrap();
            let width = if bias { 4 } else { 16 };
            let data = &data[k * width..(k + 1) * width];
            if bias { Tensor::from_slice(&device, [4], data) } else { Tensor::from_slice(&device, [4, 4], data) }
                .unwrap()
        };
        let MultiheadAttention { query, key, value, output, .. } = &mut sequence;
        for (linear, conv, k) in
            [(query, &map.qkv, 0), (key, &map.qkv, 1), (value, &map.qkv, 2), (output, &map.output, 0)]
        {
            linear.weight.set(part(conv, k, false)).unwrap();
            linear.bias.as_mut().unwrap().set(part(conv, k, true)).unwrap();
        }
        let x: Vec<_> = (0..2 * 4 * 3 * 5u8).map(|i| (f32::from(i) * 0.7).sin()).collect();
        let tape = Tape::new(&device);
        let x = tape.input(&Tensor::from_slice(&device, [2, 4, 3, 5], &x).unwrap());
        let by_map = map.forward(&x).to_vec().unwrap();
        let by_sequence = sequence.forward(&x.reshape([2, 4, 15]).t()).t().reshape(x.shape()).to_vec().unwrap();
        assert!(by_map.iter().zip(&by_sequence).all(|(a, b)| (a - b).abs() < 1e-5), "{by_map:?} {by_sequence:?}");
    }

    #[test]
    fn misfits_are_errors() {
        let device = Device::cpu();
        for (channels, heads) in [(0, 1), (4, 0), (4, 3)] {
            let error = SelfAttention2d::new(channels, heads).init(&device, Seed::new(0)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument);
        }
        let attention = SelfAttention2d::new(4, 2).init(&device, Seed::new(0)).unwrap();
        let tape = Tape::new(&device);
        for x in [Tensor::zeros(&device, [2, 3, 4, 4]), Tensor::zeros(&device, [2, 4])] {
            let (y, line) = (attention.forward(&tape.input(&x.unwrap())), line!());
            let error = y.error().unwrap();
            assert_eq!((error.kind(), error.location().unwrap().line()), (ErrorKind::Shape, line));
            assert!(error.to_string().contains("self_attention2d: the input must be floats [N, 4, H, W]"), "{error}");
        }
    }
}
