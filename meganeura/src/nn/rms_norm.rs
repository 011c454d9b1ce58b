//! Normalisation by the root mean square.

use std::panic::Location;

use meganeura_derive::Module;

use crate::dtype::check_eps;
use crate::error::bail;
use crate::module::{Init, Layer, Seed};
use crate::{Device, Error, ErrorKind, Param, Result, Shape, Tensor, Var};

/// Normalisation by the root mean square: `y = x/√(mean x² + ε) · weight`, elementwise over the last axes
///
/// The mean is taken over the last axes of each example, as many as [`shape`](Self::shape) has. Unlike
/// [`LayerNorm`](super::LayerNorm), this layer does not subtract the mean of `x` and has no bias.
///
/// In single precision, squares of numbers above about 1e19 are infinite, and the results of that example are NaN.
/// PyTorch's are 0.
///
/// Shapes: `x [.., D₁, …, Dₖ]`, `weight [D₁, …, Dₖ]` → `y` like `x`.
/// [Zhang and Sennrich, 2019](https://arxiv.org/abs/1910.07467).
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let norm = RmsNorm::new([2]).init(&device, Seed::new(42))?;
///
/// let x = Tape::new(&device).input(&Tensor::from_slice(&device, [1, 2], &[1.0, 7.0])?);
/// let y = norm.forward(&x).to_vec()?; // the root mean square is 5
/// assert!((y[0] - 0.2).abs() < 1e-6 && (y[1] - 1.4).abs() < 1e-6);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone)]
#[non_exhaustive]
pub struct RmsNorm {
    /// The factor of each element; initially ones.
    pub weight: Option<Param>,
    /// The extents of the axes that are normalised together, the last axes of the input.
    #[module(skip)]
    pub shape: Shape,
    /// The number added to the mean square, so that zeros cause no division by 0.
    #[module(skip)]
    pub eps: f64,
}

impl RmsNorm {
    /// Normalises over the last axes, of these extents, with ε = 2⁻²³, PyTorch's in single precision.
    #[expect(clippy::new_ret_no_self, reason = "a layer needs a device and a seed; this describes one without")]
    pub fn new(shape: impl Into<Shape>) -> RmsNormConfig {
        RmsNormConfig { shape: shape.into(), eps: f64::from(f32::EPSILON), affine: true }
    }
}

impl Layer for RmsNorm {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        let floats = x.ty().dtype.is_float();
        if !floats || !x.shape().dims().ends_with(self.shape.dims()) {
            let message = match floats {
                true => format!("normalises the last axes {}, the input is {}", self.shape, x.shape()),
                false => format!("needs floats, the input holds {}", x.ty().dtype),
            };
            let error = Error::new(ErrorKind::Shape, message).in_op("rms_norm").at(Location::caller());
            let error = error.operand(x.ty(), x.path());
            return x.fail(match &self.weight {
                Some(weight) => error.operand(weight.ty(), weight.path()),
                None => error,
            });
        }
        let count = self.shape.elements();
        let examples = x.reshape([x.shape().elements() / count, count]);
        let scale = examples.square().mean_keep(&[1]).reciprocal_deviation(self.eps);
        let y = (examples * scale).reshape(x.shape());
        match &self.weight {
            Some(weight) => y * x.param(weight),
            None => y,
        }
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::kept().takes_features(self.shape[self.shape.rank() - 1])
    }
}

/// Describes an [`RmsNorm`]; [`Init::init`] builds it.
#[derive(Debug, Clone)]
#[must_use]
pub struct RmsNormConfig {
    shape: Shape,
    eps: f64,
    affine: bool,
}

impl RmsNormConfig {
    /// The number added to the mean square, at least 1.2e-38; 2⁻²³ by default. Models of the Llama family use 1e-5 or
    /// 1e-6.
    pub fn eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }

    /// Gives the layer a weight if `true`, the default.
    pub fn affine(self, affine: bool) -> Self {
        Self { affine, ..self }
    }
}

impl Init for RmsNormConfig {
    type Output = RmsNorm;

    fn build(self, device: &Device, _: Seed) -> Result<RmsNorm> {
        let Self { shape, eps, affine } = self;
        if shape.rank() == 0 || shape.elements() == 0 {
            bail!(Argument, "rms_norm: over axes {shape}; name at least one, and each with an extent of at least 1");
        }
        if let Err(message) = check_eps(eps) {
            bail!(Argument, "rms_norm: {message}");
        }
        let weight = affine.then(|| Tensor::full(device, shape, 1.0)).transpose()?.map(Param::new);
        Ok(RmsNorm { weight, shape, eps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ModuleExt, Tape};

    fn input(device: &Device, shape: &[usize], x: &[f32]) -> Var {
        Tape::new(device).input(&Tensor::from_slice(device, Shape::new(shape), x).unwrap())
    }

    #[test]
    fn computes_the_formula() {
        let device = Device::cpu();
        let mut norm = RmsNorm::new([1, 2]).eps(0.25).init(&device, Seed::new(0)).unwrap();
        norm.weight.as_mut().unwrap().set(Tensor::from_slice(&device, [1, 2], &[1.0, 2.0]).unwrap()).unwrap();
        let y = norm.forward(&input(&device, &[2, 1, 2], &[1.5, 2.0, 0.0, 0.0])).to_vec().unwrap();
        // The first row: mean square 3.125, 1/√3.375 = 0.54433105.
        for (y, expected) in y.iter().zip([0.816_496_6, 2.177_324_3, 0.0, 0.0f32]) {
            assert!((y - expected).abs() <= 1e-6, "{y} is not {expected}");
        }
        let plain = RmsNorm::new([2]).affine(false).init(&device, Seed::new(0)).unwrap();
        assert!(plain.named_parameters().is_empty());
    }

    #[test]
    fn senseless_settings_are_errors() {
        let device = Device::cpu();
        let configs = [RmsNorm::new([]), RmsNorm::new([4, 0])];
        for config in configs.into_iter().chain([0.0, -1.0, 1e-50, f64::NAN].map(|eps| RmsNorm::new([1]).eps(eps))) {
            assert_eq!(config.init(&device, Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
        }
    }

    #[test]
    fn other_axes_poison_and_name_the_parameter() {
        let device = Device::cpu();
        let norm = RmsNorm::new([4, 3]).init(&device, Seed::new(0)).unwrap();
        norm.weight.as_ref().unwrap().set_path("norm.weight");
        for shape in [&[2, 4, 2][..], &[3], &[3, 4]] {
            let x = input(&device, shape, &vec![0.0; shape.iter().product()]);
            let (y, line) = (norm.forward(&x), line!());
            let error = y.error().unwrap();
            assert_eq!((error.kind(), error.location().unwrap().line()), (ErrorKind::Shape, line));
            let message = error.to_string();
            assert!(message.contains("rms_norm: normalises the last axes [4, 3]"), "{message}");
            assert!(message.contains("(parameter norm.weight)"), "{message}");
        }
    }
}
