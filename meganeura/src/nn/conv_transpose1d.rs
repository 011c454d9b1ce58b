//! The transposed 1-D convolution layer.

use meganeura_derive::Module;

use super::conv1d::as_row;
use super::extent::{Window, misfit};
use super::settings::{expect_channels, expect_positive, weight_and_bias};
use crate::error::bail;
use crate::init::Initializer;
use crate::module::{Init, Layer, Seed};
use crate::ops::ConvTranspose2dOptions;
use crate::{Device, Param, Result, Shape, TensorType, Var};

/// The geometry of a transposed 1-D convolution.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConvTranspose1dOptions {
    /// The distance in the output between the kernels of neighbouring inputs; at least 1.
    pub stride: usize,
    /// Elements cut off each side of the output.
    pub padding: usize,
    /// Extra elements at the end of the output; fewer than the stride or the dilation.
    pub output_padding: usize,
    /// The distance in the output between neighbouring weights; at least 1.
    pub dilation: usize,
    /// The number of groups of channels, each convolved on its own; a divisor of both channel counts.
    pub groups: usize,
}

impl Default for ConvTranspose1dOptions {
    fn default() -> Self {
        Self { stride: 1, padding: 0, output_padding: 0, dilation: 1, groups: 1 }
    }
}

impl ConvTranspose1dOptions {
    /// The output's shape, or the error for operands that do not fit.
    fn output(self, x: TensorType, weight: TensorType) -> Result<[usize; 3], String> {
        let Self { stride, padding, output_padding, dilation, groups } = self;
        if x.dtype != weight.dtype || !x.dtype.is_float() {
            return Err(format!("needs floats of one type, not {} and {}", x.dtype, weight.dtype));
        }
        let &[n, c, length] = x.shape.dims() else {
            return Err(format!("the input must be [N, C, L], it is {}", x.shape));
        };
        let &[inputs, per_group, kernel] = weight.shape.dims() else {
            return Err(format!("the weight must be [C, O/groups, K], it is {}", weight.shape));
        };
        if groups == 0 || !c.is_multiple_of(groups) {
            return Err(format!("{groups} groups do not divide {c} input channels"));
        }
        if inputs != c {
            return Err(format!("the input has {c} channels, the weight expects {inputs}"));
        }
        let window = Window { kernel, stride, padding, dilation };
        Ok([n, per_group * groups, window.spread("length", length, output_padding)?])
    }
}

impl Var {
    /// Transposed 1-D convolution with a weight `[C, O/groups, K]`:
    /// `y[n,o,p] = Σ x[n,c,l] · weight[c,o,i]` over all `l·s + i·d − pad = p`
    ///
    /// Shapes: `x [N, C, L]` → `y [N, O, P]` with `P = (L − 1)·s − 2·pad + d·(K − 1) + output_pad + 1`. Computed by
    /// [`Var::conv_transpose2d`] on images of one row.
    #[must_use]
    #[track_caller]
    pub fn conv_transpose1d(&self, weight: &Self, options: ConvTranspose1dOptions) -> Self {
        if let Some(error) = weight.error() {
            return self.fail(error);
        }
        let output = match options.output(self.ty(), weight.ty()) {
            Ok(output) => output,
            Err(message) => return misfit("conv_transpose1d", self, weight, message),
        };
        let ConvTranspose1dOptions { stride, padding, output_padding, dilation, groups } = options;
        let options = ConvTranspose2dOptions {
            stride: [1, stride],
            padding: [0, padding],
            output_padding: [0, output_padding],
            dilation: [1, dilation],
            groups,
        };
        as_row(self).conv_transpose2d(&as_row(weight), options).reshape(output)
    }
}

/// Transposed 1-D convolution, which lengthens sequences where a [`Conv1d`](super::Conv1d) shortens them:
/// `y[n,o,p] = b[o] + Σ x[n,c,l] · weight[c,o,i]` over all `l·s + i·d − pad = p`
///
/// It maps the output shape of the convolution with the same settings back to the input shape of that convolution. With
/// a stride, several input shapes lead to the same output shape; the output padding selects one of them.
///
/// Shapes: `x [N, C, L]`, `weight [C, O/groups, K]`, `bias [O]` → `y [N, O, P]` with
/// `P = (L − 1)·s − 2·pad + d·(K − 1) + output_pad + 1`.
/// [Zeiler et al., 2010](https://doi.org/10.1109/CVPR.2010.5539957).
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let up = ConvTranspose1d::new(8, 3, 3).stride(2).padding(1).output_padding(1).init(&device, Seed::new(42))?;
///
/// let tape = Tape::new(&device);
/// let x = tape.input(&Tensor::zeros(&device, [4, 8, 16])?);
/// assert_eq!(up.forward(&x).shape(), Shape::from([4, 3, 32]));
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone)]
#[non_exhaustive]
pub struct ConvTranspose1d {
    /// The kernels, `[C, O/groups, K]`.
    pub weight: Param,
    /// The number added to each output channel, `[O]`.
    pub bias: Option<Param>,
    /// Stride, paddings, dilation and groups.
    #[module(skip)]
    pub options: ConvTranspose1dOptions,
}

impl ConvTranspose1d {
    /// A transposed convolution from `inputs` to `outputs` channels, with a kernel of this extent.
    #[expect(clippy::new_ret_no_self, reason = "a layer needs a device and a seed; this describes one without")]
    pub fn new(inputs: usize, outputs: usize, kernel: usize) -> ConvTranspose1dConfig {
        let (options, weight_init) = (ConvTranspose1dOptions::default(), Initializer::default());
        ConvTranspose1dConfig { inputs, outputs, kernel, options, bias: true, weight_init }
    }
}

impl Layer for ConvTranspose1d {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        let y = x.conv_transpose1d(&x.param(&self.weight), self.options);
        match &self.bias {
            Some(bias) => y + x.param(bias).reshape([bias.shape().elements(), 1]),
            None => y,
        }
    }

    fn flow(&self) -> crate::module::Flow {
        let weight = self.weight.shape();
        crate::module::Flow::unknown().takes_channels(weight[0]).gives_channels(weight[1] * self.options.groups)
    }
}

/// Describes a [`ConvTranspose1d`]; [`Init::init`] builds it.
#[derive(Debug, Clone)]
#[must_use]
pub struct ConvTranspose1dConfig {
    inputs: usize,
    outputs: usize,
    kernel: usize,
    options: ConvTranspose1dOptions,
    bias: bool,
    weight_init: Initializer,
}

impl ConvTranspose1dConfig {
    /// The distance in the output between the kernels of neighbouring inputs; 1 by default.
    pub fn stride(mut self, stride: usize) -> Self {
        self.options.stride = stride;
        self
    }

    /// Elements cut off each side of the output; none by default.
    pub fn padding(mut self, padding: usize) -> Self {
        self.options.padding = padding;
        self
    }

    /// Extra elements at the end of the output; none by default. Fewer than the stride or the dilation.
    pub fn output_padding(mut self, output_padding: usize) -> Self {
        self.options.output_padding = output_padding;
        self
    }

    /// The distance in the output between neighbouring weights of the kernel; 1 by default.
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

    /// The weight's initializer; uniform in ±1/√(O/groups·K) by default, as the bias always is. The fans are those of
    /// the weight's own layout: `fan_in` counts the output channels, as in PyTorch.
    pub fn weight_init(self, weight_init: Initializer) -> Self {
        Self { weight_init, ..self }
    }
}

impl Init for ConvTranspose1dConfig {
    type Output = ConvTranspose1d;

    fn build(self, device: &Device, seed: Seed) -> Result<ConvTranspose1d> {
        let Self { inputs, outputs, kernel, options, bias, weight_init } = self;
        let ConvTranspose1dOptions { stride, output_padding, dilation, groups, .. } = options;
        expect_channels("conv_transpose1d", [inputs, outputs], groups)?;
        expect_positive("conv_transpose1d", &[("kernel", [kernel]), ("stride", [stride]), ("dilation", [dilation])])?;
        if output_padding >= stride.max(dilation) {
            bail!(
                Argument,
                "conv_transpose1d: output padding {output_padding} must be less than the stride {stride} or the dilation \
                 {dilation}; to make the output longer, choose a larger stride or `pad` it"
            );
        }
        let shape = Shape::from([inputs, outputs / groups, kernel]);
        let (weight, bias) = weight_and_bias(device, seed, shape, &weight_init, bias.then_some(outputs))?;
        Ok(ConvTranspose1d { weight, bias, options })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, Tape, Tensor};

    fn init(config: ConvTranspose1dConfig) -> Result<ConvTranspose1d> {
        config.init(&Device::cpu(), Seed::new(42))
    }

    #[test]
    fn computes_the_formula() {
        let mut layer = init(ConvTranspose1d::new(2, 1, 2).stride(3).padding(1)).unwrap();
        let device = layer.weight.value().device().clone();
        layer.weight.set(Tensor::from_slice(&device, [2, 1, 2], &[1.0, 10.0, 0.0, 100.0]).unwrap()).unwrap();
        layer.bias.as_mut().unwrap().set(Tensor::from_slice(&device, [1], &[0.5]).unwrap()).unwrap();
        let x = Tensor::from_slice(&device, [1, 2, 2], &[1.0, 2.0, 3.0, 4.0]).unwrap();
        // Channels [1, 2] and [3, 4]: [1, 10 + 300, 0, 2, 20 + 400] without its first and last element.
        let y = layer.forward(&Tape::new(&device).input(&x));
        assert_eq!(y.shape(), Shape::from([1, 1, 3]));
        assert_eq!(y.to_vec().unwrap(), [310.5, 0.5, 2.5]);
    }

    #[test]
    fn settings_reach_the_operation() {
        let config = ConvTranspose1d::new(4, 6, 3).stride(2).padding(2).output_padding(1).dilation(2);
        let layer = init(config.groups(2).bias(false)).unwrap();
        assert_eq!(layer.weight.shape(), Shape::from([4, 3, 3]));
        assert!(layer.bias.is_none());
        let x = Tensor::zeros(&Device::cpu(), [2, 4, 9]).unwrap();
        // 8·2 − 4 + 4 + 1 + 1 = 18.
        assert_eq!(layer.forward(&Tape::new(x.device()).input(&x)).shape(), Shape::from([2, 6, 18]));
    }

    #[test]
    fn senseless_settings_are_errors() {
        let fails = |config, why: &str| {
            let error = init(config).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument);
            assert!(error.to_string().contains(why), "{error}");
        };
        let new = || ConvTranspose1d::new(4, 6, 3);
        fails(ConvTranspose1d::new(0, 1, 1), "channels");
        fails(ConvTranspose1d::new(1, 1, 0), "kernel 0");
        fails(new().stride(0), "stride 0");
        fails(new().dilation(0), "dilation 0");
        fails(new().groups(4), "4 groups must divide the 4 input and 6 output");
        fails(new().stride(2).output_padding(2), "output padding 2 must be less than the stride 2");
        assert!(init(new().dilation(3).output_padding(2)).is_ok());
    }

    #[test]
    fn a_misfit_names_the_parameter_and_the_callers_line() {
        let layer = init(ConvTranspose1d::new(3, 4, 3).padding(2)).unwrap();
        layer.weight.set_path("up.weight");
        let tape = Tape::new(&Device::cpu());
        for (shape, why) in [
            (&[1, 2, 8][..], "the input has 2 channels, the weight expects 3"),
            (&[1, 3, 2], "the padding cuts off 4 elements"),
            (&[1, 3, 1, 8], "must be [N, C, L], it is [1, 3, 1, 8]"),
        ] {
            let x = Tensor::zeros(&tape.device(), Shape::new(shape)).unwrap();
            let (y, line) = (layer.forward(&tape.input(&x)), line!());
            let error = y.error().unwrap();
            assert_eq!((error.kind(), error.location().unwrap().line()), (ErrorKind::Shape, line));
            let message = error.to_string();
            assert!(message.starts_with("conv_transpose1d: ") && message.contains(why), "{message}");
            assert!(message.contains("(parameter up.weight)"), "{message}");
        }
    }
}
