//! The 2-D convolution layer.

use meganeura_derive::Module;

use super::IntoPair;
use super::settings::{expect_channels, expect_positive, weight_and_bias};
use crate::init::Initializer;
use crate::module::{Init, Layer, Seed};
use crate::ops::{Conv2dOptions, Padding};
use crate::{Device, Param, Result, Shape, Var};

/// 2-D convolution: `y[n,o,p,q] = b[o] + Σ x[n,c,p·s+i·d−pad,q·s+j·d−pad] · w[o,c,i,j]`
///
/// Shapes: `x [N, C, H, W]`, `weight [O, C/groups, KH, KW]`, `bias [O]` → `y [N, O, P, Q]` with
/// `P = ⌊(H + 2·pad − d·(KH−1) − 1)/s⌋ + 1`, and `Q` likewise. An [adapter](crate::Lora) on the weight of a convolution
/// without groups is a convolution to `rank` channels, followed by a convolution with 1×1 kernels.
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let conv = Conv2d::new(3, 8, 3).stride(2).padding(1).init(&device, Seed::new(42))?;
///
/// let tape = Tape::new(&device);
/// let x = tape.input(&Tensor::zeros(&device, [4, 3, 16, 16])?);
/// assert_eq!(conv.forward(&x).shape(), Shape::from([4, 8, 8, 8]));
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone)]
#[non_exhaustive]
pub struct Conv2d {
    /// The kernels, `[O, C/groups, KH, KW]`.
    pub weight: Param,
    /// The number added to each output channel, `[O]`.
    pub bias: Option<Param>,
    /// Stride, padding, dilation and groups.
    #[module(skip)]
    pub options: Conv2dOptions,
    /// The values that pad the input.
    #[module(skip)]
    pub padding_mode: Padding,
}

impl Conv2d {
    /// A convolution from `inputs` to `outputs` channels, with a kernel of this extent, or of this height and width.
    #[expect(clippy::new_ret_no_self, reason = "a layer needs a device and a seed; this describes one without")]
    pub fn new(inputs: usize, outputs: usize, kernel: impl IntoPair) -> Conv2dConfig {
        Conv2dConfig {
            inputs,
            outputs,
            kernel: kernel.into_pair(),
            options: Conv2dOptions::default(),
            padding_mode: Padding::Zeros,
            bias: true,
            weight_init: Initializer::default(),
        }
    }
}

impl Layer for Conv2d {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        let padded;
        let (x, options) = match (self.padding_mode, self.options.padding, x.shape().rank()) {
            (Padding::Zeros, ..) | (_, [0, 0], _) => (x, self.options),
            // Not images: the operation reports it.
            (_, _, rank) if rank != 4 => (x, self.options),
            (mode, [p, q], _) => {
                padded = x.pad_with(&[(0, 0), (0, 0), (p, p), (q, q)], mode);
                (&padded, Conv2dOptions { padding: [0, 0], ..self.options })
            }
        };
        let y = match self.weight.adapter() {
            // One factor after the other, which needs no gradient of the whole weight. Kernels of groups are small.
            Some(adapter) if options.groups == 1 => {
                let [w, a, b, scale] = adapter.parts(x.tape(), &self.weight);
                let rank = adapter.rank();
                let a = a.reshape(w.shape().with(0, rank));
                let b = b.reshape([w.shape()[0], rank, 1, 1]);
                x.conv2d(&w, options) + x.conv2d(&a, options).conv2d(&b, Conv2dOptions::default()) * scale
            }
            _ => x.conv2d(&x.param(&self.weight), options),
        };
        match &self.bias {
            Some(bias) => y + x.param(bias).reshape([bias.shape().elements(), 1, 1]),
            None => y,
        }
    }

    fn flow(&self) -> crate::module::Flow {
        let weight = self.weight.shape();
        crate::module::Flow::unknown().takes_channels(weight[1] * self.options.groups).gives_channels(weight[0])
    }
}

/// Describes a [`Conv2d`]; [`Init::init`] builds it.
#[derive(Debug, Clone)]
#[must_use]
pub struct Conv2dConfig {
    inputs: usize,
    outputs: usize,
    kernel: [usize; 2],
    options: Conv2dOptions,
    padding_mode: Padding,
    bias: bool,
    weight_init: Initializer,
}

impl Conv2dConfig {
    /// The step of the kernel from one output to the next; 1 by default.
    pub fn stride(mut self, stride: impl IntoPair) -> Self {
        self.options.stride = stride.into_pair();
        self
    }

    /// Rows and columns of padding on each side of the input; none by default. They are zeros unless
    /// [`padding_mode`](Self::padding_mode) says otherwise.
    pub fn padding(mut self, padding: impl IntoPair) -> Self {
        self.options.padding = padding.into_pair();
        self
    }

    /// The values that pad the input; zeros by default. With other values, the padded input is first written to a
    /// buffer of its own.
    pub fn padding_mode(self, padding_mode: Padding) -> Self {
        Self { padding_mode, ..self }
    }

    /// The distance in the input between neighbouring weights of the kernel; 1 by default.
    pub fn dilation(mut self, dilation: impl IntoPair) -> Self {
        self.options.dilation = dilation.into_pair();
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

    /// The weight's initializer; uniform in ±1/√(C/groups·KH·KW) by default, as the bias always is.
    pub fn weight_init(self, weight_init: Initializer) -> Self {
        Self { weight_init, ..self }
    }
}

impl Init for Conv2dConfig {
    type Output = Conv2d;

    fn build(self, device: &Device, seed: Seed) -> Result<Conv2d> {
        let Self { inputs, outputs, kernel, options, padding_mode, bias, weight_init } = self;
        expect_channels("conv2d", [inputs, outputs], options.groups)?;
        expect_positive("conv2d", &[("kernel", kernel), ("stride", options.stride), ("dilation", options.dilation)])?;
        let [height, width] = kernel;
        let shape = Shape::from([outputs, inputs / options.groups, height, width]);
        let (weight, bias) = weight_and_bias(device, seed, shape, &weight_init, bias.then_some(outputs))?;
        Ok(Conv2d { weight, bias, options, padding_mode })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, Tape, Tensor};

    fn init(config: Conv2dConfig) -> Result<Conv2d> {
        config.init(&Device::cpu(), Seed::new(42))
    }

    fn apply(conv: &Conv2d, shape: [usize; 4]) -> Var {
        let (weight, numbers) = (conv.weight.value(), 0..Shape::from(shape).elements());
        let x: Vec<_> = numbers.map(|i| i as f32).collect();
        let x = Tensor::from_slice(weight.device(), shape, &x).unwrap();
        conv.forward(&Tape::new(weight.device()).input(&x))
    }

    #[test]
    fn computes_the_formula() {
        let mut conv = init(Conv2d::new(1, 2, (2, 1)).stride((1, 2)).padding((0, 1))).unwrap();
        let device = conv.weight.value().device().clone();
        conv.weight.set(Tensor::from_slice(&device, [2, 1, 2, 1], &[1.0, 10.0, -1.0, 0.0]).unwrap()).unwrap();
        conv.bias.as_mut().unwrap().set(Tensor::from_slice(&device, [2], &[0.5, 0.25]).unwrap()).unwrap();
        // x = [[0, 1, 2], [3, 4, 5]], padded to [[0, 0, 1, 2, 0], [0, 3, 4, 5, 0]]; columns 0, 2 and 4 are read.
        let y = apply(&conv, [1, 1, 2, 3]);
        assert_eq!(y.shape(), Shape::from([1, 2, 1, 3]));
        assert_eq!(y.to_vec().unwrap(), [0.5, 41.5, 0.5, 0.25, -0.75, 0.25]);
    }

    #[test]
    fn settings_reach_the_operation() {
        let conv = init(Conv2d::new(4, 6, 3).stride(2).padding([2, 1]).dilation(2).groups(2).bias(false)).unwrap();
        assert_eq!(conv.weight.shape(), Shape::from([6, 2, 3, 3]));
        assert!(conv.bias.is_none());
        // (9 + 2·2 − 2·2 − 1)/2 + 1 = 5 and (8 + 2·1 − 2·2 − 1)/2 + 1 = 3.
        assert_eq!(apply(&conv, [2, 4, 9, 8]).shape(), Shape::from([2, 6, 5, 3]));
    }

    #[test]
    fn initial_values_lie_within_the_bound() {
        let conv = init(Conv2d::new(4, 8, 2)).unwrap();
        for param in [&conv.weight, conv.bias.as_ref().unwrap()] {
            assert!(param.value().to_vec().unwrap().iter().all(|x| x.abs() <= 0.25 && *x != 0.0));
        }
    }

    #[test]
    fn senseless_settings_are_errors() {
        let fails = |config| {
            let error = init(config).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument);
            error.to_string()
        };
        assert!(fails(Conv2d::new(0, 1, 1)).contains("channels"));
        assert!(fails(Conv2d::new(1, 1, (3, 0))).contains("kernel [3, 0]"));
        assert!(fails(Conv2d::new(1, 1, 1).stride(0)).contains("stride"));
        assert!(fails(Conv2d::new(1, 1, 1).dilation(0)).contains("dilation"));
        assert!(fails(Conv2d::new(4, 4, 1).groups(0)).contains("groups"));
        assert!(fails(Conv2d::new(4, 6, 1).groups(4)).contains("4 groups must divide the 4 input and 6 output"));
    }

    #[test]
    fn a_misfit_names_the_parameter_and_the_callers_line() {
        let conv = init(Conv2d::new(3, 4, 3)).unwrap();
        conv.weight.set_path("stem.weight");
        let weight = conv.weight.value();
        for shape in [[1, 2, 8, 8], [1, 3, 2, 8]] {
            let x = Tensor::zeros(weight.device(), shape).unwrap();
            let (y, line) = (conv.forward(&Tape::new(weight.device()).input(&x)), line!());
            let error = y.error().unwrap();
            assert_eq!(error.kind(), ErrorKind::Shape);
            assert!(error.to_string().contains("(parameter stem.weight)"), "{error}");
            assert_eq!(error.location().unwrap().line(), line, "{error}");
        }
    }
}
