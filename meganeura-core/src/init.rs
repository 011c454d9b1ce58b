//! Initial values of parameters.
//!
//! Values are drawn on the host, in `f64`, and rounded to the device's precision: a seed gives the same model on every
//! device.

mod distribution;

use distribution::Distribution;

use crate::error::{bail, here};
use crate::module::Init;
use crate::seed::Seed;
use crate::{Device, Param, Result, Shape, Tensor, TensorType};

/// The distribution of a parameter's initial values.
///
/// The fans are those of a weight `[out, in, …]`: each output is a sum of `fan_in = in·…` numbers, and each input feeds
/// `fan_out = out·…` numbers, where `…` is the size of a convolution's kernel.
///
/// ```
/// use meganeura::init::{Initializer, Nonlinearity};
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let conv = Conv2d::new(3, 16, 3)
///     .weight_init(Initializer::kaiming_normal(Nonlinearity::Relu))
///     .init(&device, Seed::new(42))?;
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Initializer {
    /// 0 everywhere.
    Zeros,
    /// 1 everywhere.
    Ones,
    /// One number everywhere.
    Constant(f64),
    /// Uniform between `low` (included) and `high` (excluded).
    Uniform {
        /// The smallest value.
        low: f64,
        /// The upper bound, which a value reaches only by rounding to the device's precision.
        high: f64,
    },
    /// Gaussian.
    Normal {
        /// The mean.
        mean: f64,
        /// The standard deviation.
        std: f64,
    },
    /// Uniform in ±`gain·√(3/fan)`, which keeps the variance through a layer and its nonlinearity.
    /// [He et al., 2015](https://arxiv.org/abs/1502.01852).
    KaimingUniform {
        /// The nonlinearity next to the layer.
        nonlinearity: Nonlinearity,
        /// The variance to keep: that of activations or that of gradients.
        fan: Fan,
    },
    /// Gaussian with standard deviation `gain/√fan`; see [`KaimingUniform`](Self::KaimingUniform).
    KaimingNormal {
        /// The nonlinearity next to the layer.
        nonlinearity: Nonlinearity,
        /// The variance to keep: that of activations or that of gradients.
        fan: Fan,
    },
    /// Uniform in ±`gain·√(6/(fan_in + fan_out))`: a compromise between activations and gradients.
    /// [Glorot and Bengio, 2010](https://proceedings.mlr.press/v9/glorot10a.html).
    XavierUniform {
        /// The nonlinearity next to the layer.
        nonlinearity: Nonlinearity,
    },
    /// Gaussian with standard deviation `gain·√(2/(fan_in + fan_out))`; see [`XavierUniform`](Self::XavierUniform).
    XavierNormal {
        /// The nonlinearity next to the layer.
        nonlinearity: Nonlinearity,
    },
}

/// The nonlinearity next to a layer, which determines the gain of the layer's weights.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Nonlinearity {
    /// No nonlinearity: gain 1.
    Linear,
    /// Gain 1.
    Sigmoid,
    /// Gain 5/3.
    Tanh,
    /// Gain √2. Also fits GELU and SiLU.
    Relu,
    /// Leaky ReLU with this slope below 0: gain `√(2/(1 + slope²))`.
    LeakyRelu(f64),
}

/// The fan of a weight that an initializer uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fan {
    /// The number of terms summed into each output: activations keep their variance.
    In,
    /// The number of terms fed by each input: gradients keep their variance.
    Out,
}

impl Nonlinearity {
    /// The factor on the standard deviation of the weights.
    #[must_use]
    pub fn gain(self) -> f64 {
        match self {
            Self::Linear | Self::Sigmoid => 1.0,
            Self::Tanh => 5.0 / 3.0,
            Self::Relu => 2f64.sqrt(),
            Self::LeakyRelu(slope) => (2.0 / (1.0 + slope * slope)).sqrt(),
        }
    }
}

/// Uniform in ±1/√fan_in, as in PyTorch: Kaiming's distribution for a leaky ReLU of slope √5.
impl Default for Initializer {
    fn default() -> Self {
        Self::kaiming_uniform(Nonlinearity::LeakyRelu(5f64.sqrt()))
    }
}

impl Initializer {
    /// [`KaimingUniform`](Self::KaimingUniform) with [`Fan::In`].
    #[must_use]
    pub const fn kaiming_uniform(nonlinearity: Nonlinearity) -> Self {
        Self::KaimingUniform { nonlinearity, fan: Fan::In }
    }

    /// [`KaimingNormal`](Self::KaimingNormal) with [`Fan::In`].
    #[must_use]
    pub const fn kaiming_normal(nonlinearity: Nonlinearity) -> Self {
        Self::KaimingNormal { nonlinearity, fan: Fan::In }
    }

    /// Uniform in ±1/√fan_in for a bias beside a weight of this shape, as in PyTorch.
    #[doc(hidden)]
    pub fn bias_beside(weight: Shape) -> Result<Self> {
        let bound = fan(weight, Fan::In)?.sqrt().recip();
        Ok(Self::Uniform { low: -bound, high: bound })
    }

    /// A tensor on `device` with values drawn from `seed`.
    ///
    /// The `i`-th value depends only on the seed, the settings and, if they are used, the fans. A uniform value takes
    /// 53 bits of one PCG number; Gaussian values come in pairs from two such values, by Box and Muller's method.
    ///
    /// # Errors
    ///
    /// Fails if a setting is not finite or a spread is negative, if fans are needed and the shape has fewer than two
    /// axes, or if the device runs out of memory.
    #[track_caller]
    pub fn sample(self, device: &Device, shape: impl Into<Shape>, seed: impl Into<Seed>) -> Result<Tensor> {
        here(|| {
            let shape = shape.into();
            Tensor::from_f64(device, shape, &self.draw(device, shape, seed.into())?)
        })
    }

    /// The values of a tensor for `device`, on the host.
    #[doc(hidden)]
    pub fn draw(self, device: &Device, shape: Shape, seed: Seed) -> Result<Vec<f64>> {
        device.expect_fits(TensorType::new(device.precision().dtype(), shape))?;
        self.distribution(shape)?.draw(shape, seed)
    }

    /// A builder for a parameter of this shape with these initial values, for a field of your own layer.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// #[derive(Module)]
    /// #[module(config(channels: usize))]
    /// struct Affine {
    ///     #[module(init = Initializer::Ones.param([channels, 1, 1]))]
    ///     scale: Param,
    ///     #[module(init = Initializer::Zeros.param([channels, 1, 1]))]
    ///     shift: Param,
    /// }
    ///
    /// let affine = Affine::init(&Device::cpu(), 42, AffineConfig { channels: 8 })?;
    /// assert_eq!(affine.parameter_count(), 16);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    pub fn param(self, shape: impl Into<Shape>) -> ParamConfig {
        ParamConfig { initializer: self, shape: shape.into() }
    }

    fn distribution(self, shape: Shape) -> Result<Distribution> {
        let around_zero = |bound: f64| Distribution::Uniform(-bound, bound);
        let both_fans = || Ok::<_, crate::Error>(fan(shape, Fan::In)? + fan(shape, Fan::Out)?);
        let distribution = match self {
            Self::Zeros => Distribution::Constant(0.0),
            Self::Ones => Distribution::Constant(1.0),
            Self::Constant(value) => Distribution::Constant(value),
            Self::Uniform { low, high } => Distribution::Uniform(low, high),
            Self::Normal { mean, std } => Distribution::Normal(mean, std),
            Self::KaimingUniform { nonlinearity, fan: which } => {
                around_zero(nonlinearity.gain() * (3.0 / fan(shape, which)?).sqrt())
            }
            Self::KaimingNormal { nonlinearity, fan: which } => {
                Distribution::Normal(0.0, nonlinearity.gain() / fan(shape, which)?.sqrt())
            }
            Self::XavierUniform { nonlinearity } => around_zero(nonlinearity.gain() * (6.0 / both_fans()?).sqrt()),
            Self::XavierNormal { nonlinearity } => {
                Distribution::Normal(0.0, nonlinearity.gain() * (2.0 / both_fans()?).sqrt())
            }
        };
        if !distribution.makes_sense() {
            bail!(Argument, "cannot draw from {self:?}: settings must be finite and a spread not negative");
        }
        Ok(distribution)
    }
}

/// Describes a [`Param`]; [`Initializer::param`] returns it, and [`Init::init`] builds it.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct ParamConfig {
    initializer: Initializer,
    shape: Shape,
}

/// Fails like [`Initializer::sample`].
impl Init for ParamConfig {
    type Output = Param;

    fn build(self, device: &Device, seed: Seed) -> Result<Param> {
        self.initializer.sample(device, self.shape, seed).map(Param::new)
    }
}

/// The chosen fan of a weight `[out, in, …]`.
fn fan(weight: Shape, which: Fan) -> Result<f64> {
    let [outputs, inputs, kernel @ ..] = weight.dims() else {
        bail!(
            Shape,
            "fans are those of a weight [out, in, …], but the shape is {weight}; choose `Uniform` or `Normal`"
        );
    };
    let channels = match which {
        Fan::In => *inputs,
        Fan::Out => *outputs,
    };
    Ok(kernel.iter().fold(channels as f64, |product, &extent| product * extent as f64))
}

impl Tensor {
    /// Uniform random numbers from 0 to 1. They are drawn below 1 in `f64`; about one in 2²⁵ rounds to 1 in `f32`. A
    /// seed gives the same numbers on every device.
    ///
    /// # Errors
    ///
    /// Fails if the shape has no elements, or if the device has no room.
    #[track_caller]
    pub fn rand(device: &Device, shape: impl Into<Shape>, seed: impl Into<Seed>) -> Result<Self> {
        Initializer::Uniform { low: 0.0, high: 1.0 }.sample(device, shape, seed.into())
    }

    /// Gaussian random numbers with mean 0 and variance 1. A seed gives the same numbers on every device.
    ///
    /// # Errors
    ///
    /// Fails like [`Tensor::rand`].
    #[track_caller]
    pub fn randn(device: &Device, shape: impl Into<Shape>, seed: impl Into<Seed>) -> Result<Self> {
        Initializer::Normal { mean: 0.0, std: 1.0 }.sample(device, shape, seed.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn values(initializer: Initializer, shape: &[usize]) -> Vec<f64> {
        let shape = Shape::new(shape);
        initializer.distribution(shape).unwrap().draw(shape, Seed::new(42)).unwrap()
    }

    /// The mean, the variance and the largest magnitude.
    fn moments(values: &[f64]) -> (f64, f64, f64) {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        (mean, variance, values.iter().fold(0.0, |max, x| max.max(x.abs())))
    }

    #[test]
    fn moments_are_those_of_the_distribution() {
        // fan_in = 16·9 = 144, fan_out = 256·9 = 2304. 36,864 samples: the relative error of a variance is about
        // √(2/36864) = 0.7 %, so 3 % is four standard deviations.
        let shape = [256, 16, 3, 3];
        let nonlinearity = Nonlinearity::Relu;
        for (initializer, variance, bound) in [
            (Initializer::default(), 1.0 / 144.0 / 3.0, Some(1.0 / 12.0)),
            (Initializer::kaiming_uniform(nonlinearity), 2.0 / 144.0, Some((6f64 / 144.0).sqrt())),
            (Initializer::kaiming_normal(nonlinearity), 2.0 / 144.0, None),
            (Initializer::KaimingNormal { nonlinearity, fan: Fan::Out }, 2.0 / 2304.0, None),
            (Initializer::XavierUniform { nonlinearity }, 4.0 / 2448.0, Some((12f64 / 2448.0).sqrt())),
            (Initializer::XavierNormal { nonlinearity: Nonlinearity::Linear }, 2.0 / 2448.0, None),
            (Initializer::Normal { mean: 0.0, std: 0.5 }, 0.25, None),
        ] {
            let (mean, found, largest) = moments(&values(initializer, &shape));
            assert!((found / variance - 1.0).abs() < 0.03, "{initializer:?}: variance {found}, expected {variance}");
            assert!(mean.abs() < 4.0 * (variance / 36_864.0).sqrt(), "{initializer:?}: mean {mean}");
            if let Some(bound) = bound {
                assert!(largest <= bound && largest > 0.999 * bound, "{initializer:?}: reaches {largest} of {bound}");
            }
        }
    }

    #[test]
    fn constants_are_constant() {
        assert_eq!(values(Initializer::Zeros, &[2]), [0.0; 2]);
        assert_eq!(values(Initializer::Ones, &[2]), [1.0; 2]);
        assert_eq!(values(Initializer::Constant(0.5), &[1, 2]), [0.5; 2]);
    }

    #[test]
    fn values_are_rounded_to_the_device() {
        let tensor = Initializer::Constant(0.1).sample(&Device::cpu(), [1], Seed::new(0)).unwrap();
        assert_eq!(tensor.to_vec().unwrap(), [0.1f32]);
    }

    #[test]
    fn senseless_settings_are_errors() {
        let fails = |initializer: Initializer, shape: &[usize]| {
            initializer.sample(&Device::cpu(), Shape::new(shape), Seed::new(0)).unwrap_err().kind()
        };
        assert_eq!(fails(Initializer::Constant(f64::NAN), &[2]), ErrorKind::Argument);
        assert_eq!(fails(Initializer::Uniform { low: 1.0, high: 0.0 }, &[2]), ErrorKind::Argument);
        assert_eq!(fails(Initializer::Normal { mean: 0.0, std: -1.0 }, &[2]), ErrorKind::Argument);
        assert_eq!(fails(Initializer::default(), &[2]), ErrorKind::Shape);
        assert_eq!(fails(Initializer::Zeros, &[usize::MAX, 2]), ErrorKind::OutOfMemory);
        assert_eq!(fails(Initializer::default(), &[2, 0]), ErrorKind::Argument);
    }
}
