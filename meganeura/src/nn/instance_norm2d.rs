//! Instance normalisation of images.

use std::panic::Location;

use meganeura_derive::Module;

use super::layer_norm::scale_or;
use crate::dtype::check_eps;
use crate::error::bail;
use crate::module::{Init, Layer, Seed};
use crate::{Device, Error, ErrorKind, Param, Result, Tensor, Var};

/// Instance normalisation of images: `y = (x − mean)/√(variance + ε)`, with [`affine`](InstanceNorm2dConfig::affine)
/// `· weight + bias`
///
/// Mean and variance are taken over each channel of each image, the variance without Bessel's correction. No statistics
/// are kept: training and inference compute the same. As in PyTorch, there are no weight and no bias by default.
///
/// Shapes: `x [N, C, H, W]`, `weight [C]`, `bias [C]` → `y [N, C, H, W]`.
/// [Ulyanov et al., 2016](https://arxiv.org/abs/1607.08022).
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let norm = InstanceNorm2d::new(32).affine(true).init(&device, Seed::new(42))?;
///
/// let tape = Tape::new(&device);
/// let x = tape.input(&Tensor::zeros(&device, [4, 32, 7, 7])?);
/// assert_eq!(norm.forward(&x).shape(), x.shape());
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone)]
#[non_exhaustive]
pub struct InstanceNorm2d {
    /// The factor of each normalised channel, `[C]`; initially ones.
    pub weight: Option<Param>,
    /// The offset of each channel, added last, `[C]`; initially zeros.
    pub bias: Option<Param>,
    /// The number of channels.
    #[module(skip)]
    pub channels: usize,
    /// The number added to the variance, so that a constant channel causes no division by 0.
    #[module(skip)]
    pub eps: f64,
}

impl InstanceNorm2d {
    /// Normalises each of `channels` channels by itself, with ε = 1e-5.
    #[expect(clippy::new_ret_no_self, reason = "a layer needs a device and a seed; this describes one without")]
    pub fn new(channels: usize) -> InstanceNorm2dConfig {
        InstanceNorm2dConfig { channels, eps: 1e-5, affine: false }
    }
}

impl Layer for InstanceNorm2d {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        let channels = self.channels;
        let message = match *x.shape().dims() {
            _ if !x.ty().dtype.is_float() => format!("needs floats, the input holds {}", x.ty().dtype),
            [_, c, h, w] if c == channels && h * w > 1 => {
                let weight = scale_or(self.weight.as_ref(), 1.0, x, channels);
                let bias = scale_or(self.bias.as_ref(), 0.0, x, channels);
                return x.group_norm(channels, self.eps, &weight, &bias);
            }
            [_, c, 1, 1] if c == channels => {
                "each channel is a single pixel, which normalised is 0 whatever it was".to_owned()
            }
            [_, c, _, _] => format!("normalises {channels} channels, the input has {c}"),
            _ => format!("the input must be [N, {channels}, H, W], it is {}", x.shape()),
        };
        let error = Error::new(ErrorKind::Shape, message).in_op("instance_norm2d").at(Location::caller());
        let error = error.operand(x.ty(), x.path());
        x.fail(match &self.weight {
            Some(weight) => error.operand(weight.ty(), weight.path()),
            None => error,
        })
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::kept().takes_channels(self.channels)
    }
}

/// Describes an [`InstanceNorm2d`]; [`Init::init`] builds it.
#[derive(Debug, Clone)]
#[must_use]
pub struct InstanceNorm2dConfig {
    channels: usize,
    eps: f64,
    affine: bool,
}

impl InstanceNorm2dConfig {
    /// The number added to the variance, at least 1.2e-38; 1e-5 by default.
    pub fn eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }

    /// Gives the layer a weight and a bias if `true`; `false` by default.
    pub fn affine(self, affine: bool) -> Self {
        Self { affine, ..self }
    }
}

impl Init for InstanceNorm2dConfig {
    type Output = InstanceNorm2d;

    fn build(self, device: &Device, _: Seed) -> Result<InstanceNorm2d> {
        let Self { channels, eps, affine } = self;
        if channels == 0 {
            bail!(Argument, "instance_norm2d: of 0 channels; there must be at least 1");
        }
        if let Err(message) = check_eps(eps) {
            bail!(Argument, "instance_norm2d: {message}");
        }
        let param =
            |value| affine.then(|| Tensor::full(device, [channels], value)).transpose().map(|x| x.map(Param::new));
        Ok(InstanceNorm2d { weight: param(1.0)?, bias: param(0.0)?, channels, eps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ModuleExt, Shape, Tape};

    fn input(device: &Device, shape: &[usize], x: &[f32]) -> Var {
        Tape::new(device).input(&Tensor::from_slice(device, Shape::new(shape), x).unwrap())
    }

    #[test]
    fn computes_the_formula() {
        let device = Device::cpu();
        let mut norm = InstanceNorm2d::new(2).eps(0.25).affine(true).init(&device, Seed::new(0)).unwrap();
        let set = |param: &mut Option<Param>, x: &[f32]| {
            param.as_mut().unwrap().set(Tensor::from_slice(&device, [2], x).unwrap()).unwrap();
        };
        set(&mut norm.weight, &[2.0, 1.0]);
        set(&mut norm.bias, &[1.0, 10.0]);
        let x = input(&device, &[1, 2, 1, 2], &[0.0, 6.0, 2.0, 2.0]);
        // The first channel: mean 3, variance 9, 3/√9.25 = 0.98639392. The second is constant.
        let near = |y: Vec<f32>, expected: [f32; 4]| {
            assert!(y.iter().zip(expected).all(|(y, e)| (y - e).abs() <= 1e-6 * e.abs()), "{y:?} is not {expected:?}");
        };
        near(norm.forward(&x).to_vec().unwrap(), [-0.972_787_8, 2.972_787_8, 10.0, 10.0]);
        let plain = InstanceNorm2d::new(2).eps(0.25).init(&device, Seed::new(0)).unwrap();
        assert!(plain.named_parameters().is_empty());
        near(plain.forward(&x).to_vec().unwrap(), [-0.986_393_9, 0.986_393_9, 0.0, 0.0]);
    }

    #[test]
    fn senseless_settings_are_errors() {
        let device = Device::cpu();
        let configs = [0.0, -1.0, 1e-50, f64::NAN].map(|eps| InstanceNorm2d::new(1).eps(eps));
        for config in configs.into_iter().chain([InstanceNorm2d::new(0)]) {
            assert_eq!(config.init(&device, Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
        }
    }

    #[test]
    fn misfits_poison() {
        let device = Device::cpu();
        let norm = InstanceNorm2d::new(2).init(&device, Seed::new(0)).unwrap();
        for (shape, part) in [
            // Four channels would also divide into two groups.
            (&[1, 4, 2, 2][..], "normalises 2 channels, the input has 4"),
            (&[2, 2], "[N, 2, H, W], it is [2, 2]"),
            (&[3, 2, 1, 1], "single pixel"),
        ] {
            let x = input(&device, shape, &vec![0.0; shape.iter().product()]);
            let (y, line) = (norm.forward(&x), line!());
            let error = y.error().unwrap();
            assert_eq!((error.kind(), error.location().unwrap().line()), (ErrorKind::Shape, line));
            assert!(error.to_string().starts_with("instance_norm2d: ") && error.to_string().contains(part), "{error}");
        }
    }
}
