//! Layer normalisation of the channels of images.

use std::panic::Location;

use meganeura_derive::Module;

use super::layer_norm::normalized;
use crate::dtype::check_eps;
use crate::error::bail;
use crate::module::{Init, Layer, Seed};
use crate::{Device, Error, ErrorKind, Param, Result, Tensor, Var};

/// Layer normalisation of each pixel's channels: `y = (x − mean)/√(variance + ε) · weight + bias`
///
/// Mean and variance are those of one pixel's channels, unlike those of a [`GroupNorm`](super::GroupNorm) of one group,
/// which are those of the whole image. PyTorch's users permute the axes around a `LayerNorm`.
///
/// Shapes: `x [N, C, H, W]`, `weight [C]`, `bias [C]` → `y [N, C, H, W]`.
/// [Liu et al., 2022](https://arxiv.org/abs/2201.03545).
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let norm = LayerNorm2d::new(2).init(&device, Seed::new(42))?;
/// let x = Tensor::from_slice(&device, [1, 2, 1, 2], &[1.0, 8.0, 3.0, 4.0])?;
/// let y = x.map(|x| norm.forward(x))?.to_vec()?;
/// assert!(y.iter().zip([-1.0, 1.0, 1.0, -1.0]).all(|(y, expected)| (y - expected).abs() < 1e-4));
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone)]
#[non_exhaustive]
pub struct LayerNorm2d {
    /// The factor of each channel, `[C]`.
    pub weight: Param,
    /// The number added to each channel, `[C]`.
    pub bias: Param,
    /// Added to the variance.
    #[module(skip)]
    pub eps: f64,
}

impl LayerNorm2d {
    /// Normalises `channels` channels with ε = 1e-5.
    #[expect(clippy::new_ret_no_self, reason = "a layer needs a device and a seed; this describes one without")]
    pub fn new(channels: usize) -> LayerNorm2dConfig {
        LayerNorm2dConfig { channels, eps: 1e-5 }
    }
}

impl Layer for LayerNorm2d {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        let channels = self.weight.shape()[0];
        if !matches!(x.shape().dims(), &[_, c, _, _] if c == channels) || !x.ty().dtype.is_float() {
            let message = format!("normalises images [N, {channels}, H, W], the input is {}", x.ty());
            let error = Error::new(ErrorKind::Shape, message).in_op("layer_norm2d").at(Location::caller());
            return x.fail(error.operand(x.ty(), x.path()).operand(self.weight.ty(), self.weight.path()));
        }
        let y = normalized(&x.permute(&[0, 2, 3, 1]), channels, self.eps);
        (y * x.param(&self.weight) + x.param(&self.bias)).permute(&[0, 3, 1, 2])
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::kept().takes_channels(self.weight.shape()[0])
    }
}

/// Describes a [`LayerNorm2d`]; [`Init::init`] builds it.
#[derive(Debug, Clone)]
#[must_use]
pub struct LayerNorm2dConfig {
    channels: usize,
    eps: f64,
}

impl LayerNorm2dConfig {
    /// The number added to the variance, at least 1.2e-38; 1e-5 by default.
    pub fn eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }
}

impl Init for LayerNorm2dConfig {
    type Output = LayerNorm2d;

    fn build(self, device: &Device, _: Seed) -> Result<LayerNorm2d> {
        let Self { channels, eps } = self;
        if channels == 0 {
            bail!(Argument, "layer_norm2d: of 0 channels; there must be at least 1");
        }
        if let Err(message) = check_eps(eps) {
            bail!(Argument, "layer_norm2d: {message}");
        }
        let weight = Param::new(Tensor::full(device, [channels], 1.0)?);
        let bias = Param::new(Tensor::zeros(device, [channels])?);
        Ok(LayerNorm2d { weight, bias, eps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tape;

    #[test]
    fn computes_the_formula() {
        let device = Device::cpu();
        let mut norm = LayerNorm2d::new(2).eps(0.25).init(&device, Seed::new(0)).unwrap();
        norm.weight.set(Tensor::from_slice(&device, [2], &[1.0, 2.0]).unwrap()).unwrap();
        norm.bias.set(Tensor::from_slice(&device, [2], &[0.0, 10.0]).unwrap()).unwrap();
        let x = Tensor::from_slice(&device, [1, 2, 1, 2], &[0.0, 2.0, 6.0, 2.0]).unwrap();
        let y = norm.forward(&Tape::new(&device).input(&x)).to_vec().unwrap();
        // The first pixel: mean 3, variance 9, 3/√9.25 = 0.98639392. The second is constant.
        for (y, expected) in y.iter().zip([-0.986_393_9, 0.0, 11.972_788, 10.0f32]) {
            assert!((y - expected).abs() <= 1e-6 * expected.abs(), "{y} is not {expected}");
        }
    }

    #[test]
    fn misfits_are_errors() {
        let device = Device::cpu();
        for config in [LayerNorm2d::new(0), LayerNorm2d::new(1).eps(0.0), LayerNorm2d::new(1).eps(f64::NAN)] {
            assert_eq!(config.init(&device, Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
        }
        let norm = LayerNorm2d::new(4).init(&device, Seed::new(0)).unwrap();
        for shape in [[1, 3, 2, 4], [4, 2, 4, 4]] {
            let x = Tape::new(&device).input(&Tensor::zeros(&device, shape).unwrap());
            let (y, line) = (norm.forward(&x), line!());
            let error = y.error().unwrap();
            assert_eq!((error.kind(), error.location().unwrap().line()), (ErrorKind::Shape, line));
            assert!(error.to_string().contains("normalises images [N, 4, H, W]"), "{error}");
        }
    }
}
