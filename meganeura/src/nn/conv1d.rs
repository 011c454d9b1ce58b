//! The 1-D convolution layer.

use meganeura_derive::Module;

use super::extent::{Window, check_channels, misfit};
use super::settings::{expect_channels, expect_positive, weight_and_bias};
use crate::init::Initializer;
use crate::module::{Init, Layer, Seed};
use crate::ops::Conv2dOptions;
use crate::{Device, Param, Result, Shape, TensorType, Var};

/// The geometry of a 1-D convolution.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Conv1dOptions {
    /// The distance in the input between neighbouring output elements; at least 1.
    pub stride: usize,
    /// Zeros on each side of the input.
    pub padding: usize,
    /// The distance in the input between neighbouring weights; at least 1.
    pub dilation: usize,
    /// The number of groups of channels, each convolved on its own; a divisor of both channel counts.
    pub groups: usize,
}

impl Default for Conv1dOptions {
    fn default() -> Self {
        Self { stride: 1, padding: 0, dilation: 1, groups: 1 }
    }
}

impl Conv1dOptions {
    /// The output's shape, or the error for operands that do not fit.
    fn output(self, x: TensorType, weight: TensorType) -> Result<[usize; 3], String> {
        let Self { stride, padding, dilation, groups } = self;
        if x.dtype != weight.dtype || !x.dtype.is_float() {
            return Err(format!("needs floats of one type, not {} and {}", x.dtype, weight.dtype));
        }
        let &[n, c, length] = x.shape.dims() else {
            return Err(format!("the input must be [N, C, L], it is {}", x.shape));
        };
        let &[o, per_group, kernel] = weight.shape.dims() else {
            return Err(format!("the weight must be [O, C/groups, K], it is {}", weight.shape));
        };
        check_channels(c, [o, per_group], groups)?;
        Ok([n, o, Window { kernel, stride, padding, dilation }.slide("length", length)?])
    }
}

impl Var {
    /// 1-D convolution with a weight `[O, C/groups, K]`: `y[n,o,p] = Σ x[n,c,p·s+i·d−pad] · w[o,c,i]`
    ///
    /// Shapes: `x [N, C, L]` → `y [N, O, P]` with `P = ⌊(L + 2·pad − d·(K−1) − 1)/s⌋ + 1`. Computed by [`Var::conv2d`]
    /// on images of one row.
    #[must_use]
    #[track_caller]
    pub fn conv1d(&self, weight: &Self, options: Conv1dOptions) -> Self {
        if let Some(error) = weight.error() {
            return self.fail(error);
        }
        let output = match options.output(self.ty(), weight.ty()) {
            Ok(output) => output,
            Err(message) => return misfit("conv1d", self, weight, message),
        };
        let Conv1dOptions { stride, padding, dilation, groups } = options;
        let options = Conv2dOptions { stride: [1, stride], padding: [0, padding], dilation: [1, dilation], groups };
        as_row(self).conv2d(&as_row(weight), options).reshape(output)
    }
}

/// `[A, B, L]` as images of one row, `[A, B, 1, L]`.
#[track_caller]
pub(super) fn as_row(x: &Var) -> Var {
    let [a, b, length] = *x.shape().dims() else { unreachable!("three axes, as was checked") };
    x.reshape([a, b, 1, length])
}

/// 1-D convolution: `y[n,o,p] = b[o] + Σ x[n,c,p·s+i·d−pad] · w[o,c,i]`
///
/// Shapes: `x [N, C, L]`, `weight [O, C/groups, K]`, `bias [O]` → `y [N, O, P]` with
/// `P = ⌊(L + 2·pad − d·(K−1) − 1)/s⌋ + 1`.
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let conv = Conv1d::new(3, 8, 5).stride(2).padding(2).init(&device, Seed::new(42))?;
///
/// let tape = Tape::new(&device);
/// let x = tape.input(&Tensor::zeros(&device, [4, 3, 16])?);
/// assert_eq!(conv.forward(&x).shape(), Shape::from([4, 8, 8]));
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone)]
#[non_exhaustive]
pub struct Conv1d {
    /// The kernels, `[O, C/groups, K]`.
    pub weight: Param,
    /// The number added to each output channel, `[O]`.
    pub bias: Option<Param>,
    /// Stride, padding, dilation and groups.
    #[module(skip)]
    pub options: Conv1dOptions,
}

impl Conv1d {
    /// A convolution from `inputs` to `outputs` channels, with a kernel of this extent.
    #[expect(clippy::new_ret_no_self, reason = "a layer needs a device and a seed; this describes one without")]
    pub fn new(inputs: usize, outputs: usize, kernel: usize) -> Conv1dConfig {
        let (options, weight_init) = (Conv1dOptions::default(), Initializer::default());
        Conv1dConfig { inputs, outputs, kernel, options, bias: true, weight_init }
    }
}

impl Layer for Conv1d {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        let y = x.conv1d(&x.param(&self.weight), self.options);
        match &self.bias {
            Some(bias) => y + x.param(bias).reshape([bias.shape().elements(), 1]),
            None => y,
        }
    }

    fn flow(&self) -> crate::module::Flow {
        let weight = self.weight.shape();
        crate::module::Flow::unknown().takes_channels(weight[1] * self.options.groups).gives_channels(weight[0])
    }
}

/// Describes a [`Conv1d`]; [`Init::init`] builds it.
#[derive(Debug, Clone)]
#[must_use]
pub struct Conv1dConfig {
    inputs: usize,
    outputs: usize,
    kernel: usize,
    options: Conv1dOptions,
    bias: bool,
    weight_init: Initializer,
}

impl Conv1dConfig {
    /// The step of the kernel from one output to the next; 1 by default.
    pub fn stride(mut self, stride: usize) -> Self {
        self.options.stride = stride;
        self
    }

    /// Zeros on each side of the input; none by default.
    pub fn padding(mut self, padding: usize) -> Self {
        self.options.padding = padding;
        self
    }

    /// The distance in the input between neighbouring weights of the kernel; 1 by default.
    pub fn dilation(mut self, dilation: usize) -> Self {
        self.options.dilation = dilation;
        self
    }

    /// The number of groups of channels, each convolved on its own; 1 by default.
    pub fn groups(mut self, groups: usize) -> Self {
        self.options.groups = groups;
        self
    }

    /// Adds a bias if `true`, the default.
    pub fn bias(self, bias: bool) -> Self {
        Self { bias, ..self }
    }

    /// The weight's initializer; uniform in ±1/√(C/groups·K) by default, as the bias always is.
    pub fn weight_init(self, weight_init: Initializer) -> Self {
        Self { weight_init, ..self }
    }
}

impl Init for Conv1dConfig {
    type Output = Conv1d;

    fn build(self, device: &Device, seed: Seed) -> Result<Conv1d> {
        let Self { inputs, outputs, kernel, options, bias, weight_init } = self;
        expect_channels("conv1d", [inputs, outputs], options.groups)?;
        expect_positive(
            "conv1d",
            &[("kernel", [kernel]), ("stride", [options.stride]), ("dilation", [options.dilation])],
        )?;
        let shape = Shape::from([outputs, inputs / options.groups, kernel]);
        let (weight, bias) = weight_and_bias(device, seed, shape, &weight_init, bias.then_some(outputs))?;
        Ok(Conv1d { weight, bias, options })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, Tape, Tensor};

    fn init(config: Conv1dConfig) -> Result<Conv1d> {
        config.init(&Device::cpu(), Seed::new(42))
    }

    #[test]
    fn computes_the_formula() {
        let mut conv = init(Conv1d::new(1, 2, 2).stride(2).padding(1)).unwrap();
        let device = conv.weight.value().device().clone();
        conv.weight.set(Tensor::from_slice(&device, [2, 1, 2], &[1.0, 10.0, -1.0, 0.0]).unwrap()).unwrap();
        conv.bias.as_mut().unwrap().set(Tensor::from_slice(&device, [2], &[0.5, 0.25]).unwrap()).unwrap();
        // [0, 1, 2, 3, 0] in windows [0, 1] and [2, 3].
        let x = Tape::new(&device).input(&Tensor::from_slice(&device, [1, 1, 3], &[1.0, 2.0, 3.0]).unwrap());
        let y = conv.forward(&x);
        assert_eq!(y.shape(), Shape::from([1, 2, 2]));
        assert_eq!(y.to_vec().unwrap(), [10.5, 32.5, 0.25, -1.75]);
    }

    #[test]
    fn settings_reach_the_operation() {
        let conv = init(Conv1d::new(4, 6, 3).stride(2).padding(2).dilation(2).groups(2).bias(false)).unwrap();
        assert_eq!(conv.weight.shape(), Shape::from([6, 2, 3]));
        assert!(conv.bias.is_none());
        let x = Tensor::zeros(&Device::cpu(), [2, 4, 9]).unwrap();
        // (9 + 2·2 − 2·2 − 1)/2 + 1 = 5.
        assert_eq!(conv.forward(&Tape::new(x.device()).input(&x)).shape(), Shape::from([2, 6, 5]));
    }

    #[test]
    fn initial_values_lie_within_the_bound() {
        let conv = init(Conv1d::new(4, 8, 4)).unwrap();
        for param in [&conv.weight, conv.bias.as_ref().unwrap()] {
            assert!(param.value().to_vec().unwrap().iter().all(|x| x.abs() <= 0.25 && *x != 0.0));
        }
    }

    #[test]
    fn senseless_settings_are_errors() {
        let fails = |config, why: &str| {
            let error = init(config).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument);
            assert!(error.to_string().contains(why), "{error}");
        };
        fails(Conv1d::new(0, 1, 1), "channels");
        fails(Conv1d::new(1, 1, 0), "kernel 0");
        fails(Conv1d::new(1, 1, 1).stride(0), "stride 0");
        fails(Conv1d::new(1, 1, 1).dilation(0), "dilation 0");
        fails(Conv1d::new(4, 4, 1).groups(0), "groups");
        fails(Conv1d::new(4, 6, 1).groups(4), "4 groups must divide the 4 input and 6 output");
    }

    #[test]
    fn a_misfit_names_the_parameter_and_the_callers_line() {
        let conv = init(Conv1d::new(3, 4, 3)).unwrap();
        conv.weight.set_path("stem.weight");
        let tape = Tape::new(&Device::cpu());
        for (shape, why) in [
            (&[1, 2, 8][..], "the input has 2 channels, the weight expects 3"),
            (&[1, 3, 2], "spans 3 elements"),
            (&[3, 8], "must be [N, C, L], it is [3, 8]"),
        ] {
            let x = Tensor::zeros(&tape.device(), Shape::new(shape)).unwrap();
            let (y, line) = (conv.forward(&tape.input(&x)), line!());
            let error = y.error().unwrap();
            assert_eq!((error.kind(), error.location().unwrap().line()), (ErrorKind::Shape, line));
            let message = error.to_string();
            assert!(message.starts_with("conv1d: ") && message.contains(why), "{message}");
            assert!(message.contains("(parameter stem.weight)"), "{message}");
        }
    }

    #[test]
    fn the_first_error_is_the_one_reported() {
        let tape = Tape::new(&Device::cpu());
        let x = tape.input(&Tensor::zeros(&tape.device(), [1, 3, 8]).unwrap());
        let weight = x.slice(1, 2..5);
        let y = x.conv1d(&weight, Conv1dOptions::default());
        assert!(y.error().unwrap().to_string().starts_with("slice: "));
    }
}
