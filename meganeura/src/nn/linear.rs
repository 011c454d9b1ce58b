//! The fully connected layer.

use std::panic::Location;

use meganeura_derive::Module;

use super::dropout::{adapter_input, with_magnitudes};
use super::settings::weight_and_bias;
use crate::error::bail;
use crate::init::Initializer;
use crate::module::{Init, Layer, Seed};
use crate::param::Use;
use crate::{Device, Error, ErrorKind, Param, Result, Shape, Var};

/// Fully connected layer: `y = x·Wᵀ + b`
///
/// Shapes: `x [.., in]`, `weight [out, in]`, `bias [out]` → `y [.., out]`. With an [adapter](crate::Lora) on the
/// weight, `y = x·Wᵀ + s·(x·Aᵀ)·Bᵀ + b`.
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let linear = Linear::new(3, 2).init(&device, Seed::new(42))?;
///
/// let tape = Tape::new(&device);
/// let x = tape.input(&Tensor::zeros(&device, [4, 3])?);
/// assert_eq!(linear.forward(&x).shape(), Shape::from([4, 2]));
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone)]
pub struct Linear {
    /// The matrix, `[out, in]`.
    pub weight: Param,
    /// The number added to each output, `[out]`.
    pub bias: Option<Param>,
}

impl Linear {
    /// A layer from vectors of `inputs` numbers to vectors of `outputs` numbers.
    #[expect(clippy::new_ret_no_self, reason = "a layer needs a device and a seed; this describes one without")]
    pub fn new(inputs: usize, outputs: usize) -> LinearConfig {
        LinearConfig { inputs, outputs, bias: true, weight_init: Initializer::default() }
    }
}

impl Layer for Linear {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        let [outputs, inputs] = *self.weight.shape().dims() else { unreachable!("a matrix since it was built") };
        let Some(&extent) = x.shape().dims().last().filter(|&&extent| extent == inputs) else {
            let message = match x.shape().dims() {
                [] => format!("takes vectors of {inputs} numbers, this is a single number"),
                [.., extent] => {
                    format!("takes vectors of {inputs} numbers, these have {extent}; is a `flatten` missing?")
                }
            };
            let error = Error::new(ErrorKind::Shape, message).in_op("linear").at(Location::caller());
            return x.fail(error.operand(x.ty(), x.path()).operand(self.weight.ty(), self.weight.path()));
        };
        let rows = x.shape().elements() / extent;
        let y_shape = x.shape().with(x.shape().rank() - 1, outputs);
        let rows = x.reshape([rows, inputs]);
        let y = match self.weight.adapter() {
            None => rows.matmul(&x.param(&self.weight).t()),
            Some(adapter) if adapter.magnitude.is_some() => {
                let (weight, rest) = with_magnitudes(&rows, &self.weight, adapter, self);
                let y = rows.matmul(&weight.t());
                match rest {
                    Some((rows, difference)) => y + rows.matmul(&difference.t()),
                    None => y,
                }
            }
            // One factor after the other, which needs no gradient of the whole weight.
            Some(adapter) => {
                let [w, a, b, scale] = adapter.parts(x.tape(), &self.weight);
                let read = adapter_input(&rows, adapter.dropout, self);
                rows.matmul(&w.t()) + read.matmul(&a.t()).matmul(&b.t()) * scale
            }
        };
        let y = match &self.bias {
            Some(bias) => y + x.param(bias),
            None => y,
        };
        let y = match self.weight.adapter() {
            Some(adapter) if adapter.bias.is_some() => adapter.add_bias_to(&y, &[]),
            _ => y,
        };
        y.reshape(y_shape)
    }

    fn flow(&self) -> crate::module::Flow {
        let weight = self.weight.shape();
        crate::module::Flow::unknown().takes_features(weight[1]).gives_features(weight[0])
    }
}

/// Describes a [`Linear`] layer; [`Init::init`] builds it.
#[derive(Debug, Clone)]
#[must_use]
pub struct LinearConfig {
    inputs: usize,
    outputs: usize,
    bias: bool,
    weight_init: Initializer,
}

impl LinearConfig {
    /// Adds a bias if `true`, the default.
    pub fn bias(self, bias: bool) -> Self {
        Self { bias, ..self }
    }

    /// The weight's initializer; uniform in ±1/√in by default, as the bias always is.
    pub fn weight_init(self, weight_init: Initializer) -> Self {
        Self { weight_init, ..self }
    }
}

impl Init for LinearConfig {
    type Output = Linear;

    fn build(self, device: &Device, seed: Seed) -> Result<Linear> {
        let Self { inputs, outputs, bias, weight_init } = self;
        if inputs == 0 || outputs == 0 {
            bail!(Argument, "linear: from {inputs} to {outputs} numbers; both must be at least 1");
        }
        let shape = Shape::from([outputs, inputs]);
        let (weight, bias) = weight_and_bias(device, seed, shape, &weight_init, bias.then_some(outputs))?;
        let weight = weight.used_as(Use::Linear);
        Ok(Linear { weight, bias })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Tape, Tensor};

    /// `W = [[1, 2, 3], [4, 5, 6]]`, `b = [10, 20]`.
    fn linear(device: &Device) -> Linear {
        Linear {
            weight: Param::new(Tensor::from_slice(device, [2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap()),
            bias: Some(Param::new(Tensor::from_slice(device, [2], &[10.0, 20.0]).unwrap())),
        }
    }

    fn apply(linear: &Linear, shape: &[usize], x: &[f32]) -> Var {
        let weight = linear.weight.value();
        let x = Tensor::from_slice(weight.device(), Shape::new(shape), x).unwrap();
        linear.forward(&Tape::new(weight.device()).input(&x))
    }

    #[test]
    fn computes_the_formula_over_any_leading_axes() {
        let linear = linear(&Device::cpu());
        let y = apply(&linear, &[2, 3], &[1.0, 0.0, -1.0, 0.5, 1.0, 2.0]);
        assert_eq!(y.to_vec().unwrap(), [8.0, 18.0, 18.5, 39.0]);
        let y = apply(&linear, &[3], &[1.0, 0.0, -1.0]);
        assert_eq!((y.shape(), y.to_vec().unwrap()), (Shape::from([2]), vec![8.0, 18.0]));
        let y = apply(&linear, &[1, 2, 3], &[1.0, 0.0, -1.0, 0.5, 1.0, 2.0]);
        assert_eq!((y.shape(), y.to_vec().unwrap()), (Shape::from([1, 2, 2]), vec![8.0, 18.0, 18.5, 39.0]));
    }

    #[test]
    fn a_misfit_names_both_shapes_and_the_parameter() {
        let linear = linear(&Device::cpu());
        linear.weight.set_path("head.weight");
        let error = apply(&linear, &[1, 4], &[0.0; 4]).error().unwrap();
        assert_eq!(error.kind(), ErrorKind::Shape);
        let message = error.to_string();
        for part in
            ["linear: takes vectors of 3 numbers, these have 4", "f32[1, 4]", "f32[2, 3] (parameter head.weight)"]
        {
            assert!(message.contains(part), "{message}");
        }
        assert!(apply(&linear, &[], &[0.0]).error().unwrap().to_string().contains("single number"));
    }

    #[test]
    fn a_misfit_names_the_callers_line() {
        let linear = linear(&Device::cpu());
        let weight = linear.weight.value();
        let x = Tape::new(weight.device()).input(&weight.reshape([3, 2]).unwrap());
        let (y, line) = (linear.forward(&x), line!());
        assert_eq!(y.error().unwrap().location().unwrap().line(), line);
    }

    #[test]
    fn initial_values_lie_within_the_bound() {
        let linear = Linear::new(16, 8).init(&Device::cpu(), Seed::new(1)).unwrap();
        for param in [&linear.weight, linear.bias.as_ref().unwrap()] {
            assert!(param.value().to_vec().unwrap().iter().all(|x| x.abs() <= 0.25 && *x != 0.0));
        }
        assert!(Linear::new(16, 8).bias(false).init(&Device::cpu(), Seed::new(1)).unwrap().bias.is_none());
    }

    #[test]
    fn empty_sizes_are_an_error() {
        for config in [Linear::new(0, 1), Linear::new(1, 0)] {
            assert_eq!(config.init(&Device::cpu(), Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
        }
    }
}
