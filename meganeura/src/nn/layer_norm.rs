//! Layer normalisation.

use std::panic::Location;

use meganeura_derive::Module;

use crate::dtype::check_eps;
use crate::error::bail;
use crate::module::{Init, Layer, Seed};
use crate::{Device, Error, ErrorKind, Param, Result, Shape, Tensor, Var};

/// Layer normalisation: `y = (x − mean)/√(variance + ε) · weight + bias`, elementwise over the last axes
///
/// Mean and variance are taken over the last axes of each example, as many as [`shape`](Self::shape) has, the variance
/// without Bessel's correction. No statistics are kept: training and inference compute the same.
///
/// In single precision, squares of numbers above about 1e19 are infinite, and the results of that example are NaN.
/// PyTorch's are 0 or NaN.
///
/// Shapes: `x [.., D₁, …, Dₖ]`, `weight` and `bias` `[D₁, …, Dₖ]` → `y` like `x`.
/// [Ba et al., 2016](https://arxiv.org/abs/1607.06450).
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let norm = LayerNorm::new([64]).init(&device, Seed::new(42))?;
///
/// let tape = Tape::new(&device);
/// let x = tape.input(&Tensor::zeros(&device, [4, 10, 64])?);
/// assert_eq!(norm.forward(&x).shape(), x.shape());
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone)]
#[non_exhaustive]
pub struct LayerNorm {
    /// The factor of each normalised element; initially ones.
    pub weight: Option<Param>,
    /// The offset of each element, added last; initially zeros.
    pub bias: Option<Param>,
    /// The extents of the axes that are normalised together, the last axes of the input.
    #[module(skip)]
    pub shape: Shape,
    /// The number added to the variance, so that a constant example causes no division by 0.
    #[module(skip)]
    pub eps: f64,
}

impl LayerNorm {
    /// Normalises over the last axes, of these extents, with ε = 1e-5.
    #[expect(clippy::new_ret_no_self, reason = "a layer needs a device and a seed; this describes one without")]
    pub fn new(shape: impl Into<Shape>) -> LayerNormConfig {
        LayerNormConfig { shape: shape.into(), eps: 1e-5, affine: true }
    }
}

impl Layer for LayerNorm {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        let floats = x.ty().dtype.is_float();
        if !floats || !x.shape().dims().ends_with(self.shape.dims()) {
            let message = match floats {
                true => format!("normalises the last axes {}, the input is {}", self.shape, x.shape()),
                false => format!("needs floats, the input holds {}", x.ty().dtype),
            };
            let error = Error::new(ErrorKind::Shape, message).in_op("layer_norm").at(Location::caller());
            let error = error.operand(x.ty(), x.path());
            return x.fail(match &self.weight {
                Some(weight) => error.operand(weight.ty(), weight.path()),
                None => error,
            });
        }
        let y = normalized(x, self.shape.elements(), self.eps);
        let y = match &self.weight {
            Some(weight) => y * x.param(weight),
            None => y,
        };
        match &self.bias {
            Some(bias) => y + x.param(bias),
            None => y,
        }
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::kept().takes_features(self.shape[self.shape.rank() - 1])
    }
}

/// Each run of `count` numbers, with mean 0 and variance 1.
///
/// Each run is a group of one channel. With elements as channels, the kernel would apply the weights as well, but their
/// gradients are sums over runs, which reductions compute faster.
#[track_caller]
pub(super) fn normalized(x: &Var, count: usize, eps: f64) -> Var {
    let examples = x.reshape([x.shape().elements() / count, 1, count]);
    let (one, zero) = (scale_or(None, 1.0, x, 1), scale_or(None, 0.0, x, 1));
    examples.group_norm(1, eps, &one, &zero).reshape(x.shape())
}

/// A parameter as a vector of `count` numbers on the tape of `x`, or the number `otherwise` without a parameter.
#[track_caller]
pub(super) fn scale_or(param: Option<&Param>, otherwise: f64, x: &Var, count: usize) -> Var {
    match param {
        Some(param) => x.param(param).reshape([count]),
        None => x.constant(otherwise).expand([count]),
    }
}

/// Describes a [`LayerNorm`]; [`Init::init`] builds it.
#[derive(Debug, Clone)]
#[must_use]
pub struct LayerNormConfig {
    shape: Shape,
    eps: f64,
    affine: bool,
}

impl LayerNormConfig {
    /// The number added to the variance, at least 1.2e-38; 1e-5 by default.
    pub fn eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }

    /// Gives the layer a weight and a bias if `true`, the default.
    pub fn affine(self, affine: bool) -> Self {
        Self { affine, ..self }
    }
}

impl Init for LayerNormConfig {
    type Output = LayerNorm;

    fn build(self, device: &Device, _: Seed) -> Result<LayerNorm> {
        let Self { shape, eps, affine } = self;
        if shape.rank() == 0 || shape.elements() == 0 {
            bail!(Argument, "layer_norm: over axes {shape}; name at least one, and each with an extent of at least 1");
        }
        if let Err(message) = check_eps(eps) {
            bail!(Argument, "layer_norm: {message}");
        }
        let param = |value| affine.then(|| Tensor::full(device, shape, value)).transpose().map(|x| x.map(Param::new));
        Ok(LayerNorm { weight: param(1.0)?, bias: param(0.0)?, shape, eps })
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
        let mut norm = LayerNorm::new([1, 2]).eps(0.25).init(&device, Seed::new(0)).unwrap();
        let set = |param: &mut Option<Param>, x: &[f32]| {
            param.as_mut().unwrap().set(Tensor::from_slice(&device, [1, 2], x).unwrap()).unwrap();
        };
        set(&mut norm.weight, &[1.0, 2.0]);
        set(&mut norm.bias, &[0.0, 10.0]);
        let y = norm.forward(&input(&device, &[2, 1, 2], &[0.0, 6.0, 2.0, 2.0])).to_vec().unwrap();
        // The first row: mean 3, variance 9, 3/√9.25 = 0.98639392. The second is constant.
        for (y, expected) in y.iter().zip([-0.986_393_9, 11.972_788, 0.0, 10.0f32]) {
            assert!((y - expected).abs() <= 1e-6 * expected.abs(), "{y} is not {expected}");
        }
        let plain = LayerNorm::new([2]).eps(0.25).affine(false).init(&device, Seed::new(0)).unwrap();
        assert!(plain.named_parameters().is_empty());
        let y = plain.forward(&input(&device, &[2], &[0.0, 6.0])).to_vec().unwrap();
        assert!((y[0] + 0.986_393_9).abs() < 1e-6 && (y[1] - 0.986_393_9).abs() < 1e-6, "{y:?}");
    }

    #[test]
    fn starts_as_the_identity_on_normalised_values() {
        let norm = LayerNorm::new([2, 3]).init(&Device::cpu(), Seed::new(0)).unwrap();
        let values = |param: &Option<Param>| param.as_ref().unwrap().value().to_vec().unwrap();
        assert_eq!((values(&norm.weight), values(&norm.bias)), (vec![1.0; 6], vec![0.0; 6]));
        assert_eq!((norm.shape, norm.eps), (Shape::from([2, 3]), 1e-5));
    }

    #[test]
    fn senseless_settings_are_errors() {
        let device = Device::cpu();
        let configs = [LayerNorm::new([]), LayerNorm::new([4, 0])];
        for config in configs.into_iter().chain([0.0, -1.0, 1e-50, f64::NAN].map(|eps| LayerNorm::new([1]).eps(eps))) {
            assert_eq!(config.init(&device, Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
        }
    }

    #[test]
    fn other_axes_poison_and_name_the_parameter() {
        let device = Device::cpu();
        let norm = LayerNorm::new([4, 3]).init(&device, Seed::new(0)).unwrap();
        norm.weight.as_ref().unwrap().set_path("norm.weight");
        for shape in [&[2, 4, 2][..], &[3], &[3, 4]] {
            let x = input(&device, shape, &vec![0.0; shape.iter().product()]);
            let (y, line) = (norm.forward(&x), line!());
            let error = y.error().unwrap();
            assert_eq!((error.kind(), error.location().unwrap().line()), (ErrorKind::Shape, line));
            let message = error.to_string();
            assert!(message.contains("layer_norm: normalises the last axes [4, 3]"), "{message}");
            assert!(message.contains("(parameter norm.weight)"), "{message}");
        }
    }
}
