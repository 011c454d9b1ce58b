//! A rectifier whose slope is learned.

use meganeura_derive::Module;

use crate::error::bail;
use crate::module::{Init, Layer, Seed};
use crate::{Device, ErrorKind, Param, Result, Tensor, Var};

/// `x` above 0, `weight·x` below, where the slopes are learned: one for all, or one for each channel, the second axis.
///
/// Shapes: `x [N, C, ..]`, `weight [1]` or `[C]` → `y` like `x`. [He et al., 2015](https://arxiv.org/abs/1502.01852).
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let prelu = PRelu::new(2).init(&device, Seed::new(42))?; // slopes of 0.25
/// let x = Tape::new(&device).input(&Tensor::from_slice(&device, [1, 2], &[-4.0, 3.0])?);
/// assert_eq!(prelu.forward(&x).to_vec()?, [-1.0, 3.0]);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone)]
#[non_exhaustive]
pub struct PRelu {
    /// The slopes below 0; initially 0.25.
    pub weight: Param,
}

impl PRelu {
    /// A slope for each of these channels, or with 1 the same for all.
    #[expect(clippy::new_ret_no_self, reason = "a layer needs a device and a seed; this describes one without")]
    pub fn new(channels: usize) -> PReluConfig {
        PReluConfig { channels, slope: 0.25 }
    }
}

impl Layer for PRelu {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        let (shape, slopes) = (x.shape(), self.weight.shape().elements());
        if slopes != 1 && shape.dims().get(1) != Some(&slopes) {
            return x.refuse("prelu", ErrorKind::Shape, format!("{slopes} slopes for the channels of {shape}"));
        }
        let mut dims = vec![1; shape.rank()];
        if slopes != 1 {
            dims[1] = slopes;
        }
        let slope = x.param(&self.weight).reshape(&dims[..]);
        x.gt(0.0).where_cond(x, &(slope * x))
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::kept()
    }
}

/// Describes a [`PRelu`].
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct PReluConfig {
    channels: usize,
    slope: f32,
}

impl PReluConfig {
    /// The slopes before training.
    pub fn slope(self, slope: f32) -> Self {
        Self { slope, ..self }
    }
}

impl Init for PReluConfig {
    type Output = PRelu;

    fn build(self, device: &Device, _: Seed) -> Result<PRelu> {
        if self.channels == 0 {
            bail!(Argument, "PRelu: 0 channels");
        }
        Ok(PRelu { weight: Param::new(Tensor::full(device, [self.channels], self.slope)?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tape;

    #[test]
    fn misuse_is_an_error() {
        let device = Device::cpu();
        assert_eq!(PRelu::new(0).init(&device, Seed::new(1)).unwrap_err().kind(), ErrorKind::Argument);
        let prelu = PRelu::new(3).slope(0.5).init(&device, Seed::new(1)).unwrap();
        let x = Tape::new(&device).input(&Tensor::zeros(&device, [2, 4]).unwrap());
        let error = prelu.forward(&x).to_vec().unwrap_err();
        assert!(error.to_string().contains("3 slopes for the channels of [2, 4]"), "{error}");
    }
}
