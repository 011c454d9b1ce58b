//! Group normalisation.

use meganeura_derive::Module;

use crate::dtype::check_eps;
use crate::error::bail;
use crate::module::{Init, Layer, Seed};
use crate::{Device, Param, Result, Tensor, Var};

/// Group normalisation: `y = (x − mean)/√(variance + ε) · weight + bias`
///
/// Mean and variance are taken over each group of neighbouring channels in each example, the variance without Bessel's
/// correction. One group is layer normalisation over all axes but the batch, with a weight per channel instead of per
/// element; as many groups as channels is instance normalisation. No statistics are kept: training and inference
/// compute the same.
///
/// Shapes: `x [N, C, ..]`, `weight [C]`, `bias [C]` → `y [N, C, ..]`.
/// [Wu and He, 2018](https://arxiv.org/abs/1803.08494).
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let norm = GroupNorm::new(8, 32).init(&device, Seed::new(42))?;
///
/// let tape = Tape::new(&device);
/// let x = tape.input(&Tensor::zeros(&device, [4, 32, 7, 7])?);
/// assert_eq!(norm.forward(&x).shape(), x.shape());
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone)]
#[non_exhaustive]
pub struct GroupNorm {
    /// The factor of each normalised channel, `[C]`; initially ones.
    pub weight: Param,
    /// The offset of each channel, added last, `[C]`; initially zeros.
    pub bias: Param,
    /// The number of groups, a divisor of the number of channels.
    #[module(skip)]
    pub groups: usize,
    /// The number added to the variance, so that a constant group causes no division by 0.
    #[module(skip)]
    pub eps: f64,
}

impl GroupNorm {
    /// Normalises `channels` channels in `groups` groups, with ε = 1e-5.
    #[expect(clippy::new_ret_no_self, reason = "a layer needs a device and a seed; this describes one without")]
    pub fn new(groups: usize, channels: usize) -> GroupNormConfig {
        GroupNormConfig { groups, channels, eps: 1e-5 }
    }
}

impl Layer for GroupNorm {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        x.group_norm(self.groups, self.eps, &x.param(&self.weight), &x.param(&self.bias))
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::kept().takes_channels(self.weight.shape()[0])
    }
}

/// Describes a [`GroupNorm`]; [`Init::init`] builds it.
#[derive(Debug, Clone)]
#[must_use]
pub struct GroupNormConfig {
    groups: usize,
    channels: usize,
    eps: f64,
}

impl GroupNormConfig {
    /// The number added to the variance, at least 1.2e-38; 1e-5 by default.
    pub fn eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }
}

impl Init for GroupNormConfig {
    type Output = GroupNorm;

    fn build(self, device: &Device, _: Seed) -> Result<GroupNorm> {
        let Self { groups, channels, eps } = self;
        if groups == 0 || channels == 0 || channels % groups != 0 {
            bail!(Argument, "group_norm: {channels} channels do not fall into {groups} equal groups");
        }
        if let Err(message) = check_eps(eps) {
            bail!(Argument, "group_norm: {message}");
        }
        let weight = Param::new(Tensor::full(device, [channels], 1.0)?);
        let bias = Param::new(Tensor::zeros(device, [channels])?);
        Ok(GroupNorm { weight, bias, groups, eps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, Tape};

    #[test]
    fn computes_the_formula() {
        let device = Device::cpu();
        let mut norm = GroupNorm::new(2, 4).eps(0.25).init(&device, Seed::new(0)).unwrap();
        norm.weight.set(Tensor::from_slice(&device, [4], &[1.0, 2.0, 1.0, 1.0]).unwrap()).unwrap();
        norm.bias.set(Tensor::from_slice(&device, [4], &[0.0, 0.0, 0.0, 10.0]).unwrap()).unwrap();
        let x = Tensor::from_slice(&device, [1, 4, 1], &[0.0, 6.0, 2.0, 2.0]).unwrap();
        let y = norm.forward(&Tape::new(&device).input(&x)).to_vec().unwrap();
        // Group 0: mean 3, variance 9, 3/√9.25 = 0.98639392. Group 1 is constant.
        for (y, expected) in y.iter().zip([-0.986_393_9, 1.972_787_8, 0.0, 10.0f32]) {
            assert!((y - expected).abs() <= 1e-6 * expected.abs(), "{y} is not {expected}");
        }
    }

    #[test]
    fn starts_as_the_identity_on_normalised_values() {
        let norm = GroupNorm::new(3, 6).init(&Device::cpu(), Seed::new(0)).unwrap();
        assert_eq!(norm.weight.value().to_vec().unwrap(), [1.0; 6]);
        assert_eq!(norm.bias.value().to_vec().unwrap(), [0.0; 6]);
        assert_eq!((norm.groups, norm.eps), (3, 1e-5));
    }

    #[test]
    fn senseless_settings_are_errors() {
        let device = Device::cpu();
        let configs = [GroupNorm::new(0, 4), GroupNorm::new(3, 4), GroupNorm::new(1, 0)];
        for config in configs.into_iter().chain([0.0, -1.0, 1e-50, f64::NAN].map(|eps| GroupNorm::new(1, 1).eps(eps))) {
            assert_eq!(config.init(&device, Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
        }
    }

    #[test]
    fn other_channels_poison() {
        let device = Device::cpu();
        let norm = GroupNorm::new(2, 4).init(&device, Seed::new(0)).unwrap();
        let x = Tape::new(&device).input(&Tensor::zeros(&device, [1, 6, 2, 2]).unwrap());
        assert_eq!(norm.forward(&x).error().unwrap().kind(), ErrorKind::Shape);
    }
}
