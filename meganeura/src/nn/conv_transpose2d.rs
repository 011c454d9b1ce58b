//! The transposed 2-D convolution layer.

use meganeura_derive::Module;

use super::IntoPair;
use super::settings::{expect_channels, expect_positive, weight_and_bias};
use crate::error::bail;
use crate::init::Initializer;
use crate::module::{Init, Layer, Seed};
use crate::ops::ConvTranspose2dOptions;
use crate::{Device, Param, Result, Shape, Var};

/// Transposed 2-D convolution, which enlarges images where a [`Conv2d`](super::Conv2d) shrinks them:
/// `y[n,o,p,q] = b[o] + Σ x[n,c,h,w] · weight[c,o,i,j]` over all `h·s + i·d − pad = p`, `w·s + j·d − pad = q`
///
/// It maps the output shape of the convolution with the same settings back to the input shape of that convolution. With
/// a stride, several input shapes lead to the same output shape; the output padding selects one of them.
///
/// Shapes: `x [N, C, H, W]`, `weight [C, O/groups, KH, KW]`, `bias [O]` → `y [N, O, P, Q]` with
/// `P = (H − 1)·s − 2·pad + d·(KH − 1) + output_pad + 1`, and `Q` likewise.
/// [Zeiler et al., 2010](https://doi.org/10.1109/CVPR.2010.5539957).
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let up = ConvTranspose2d::new(8, 3, 3).stride(2).padding(1).output_padding(1).init(&device, Seed::new(42))?;
///
/// let tape = Tape::new(&device);
/// let x = tape.input(&Tensor::zeros(&device, [4, 8, 16, 16])?);
/// assert_eq!(up.forward(&x).shape(), Shape::from([4, 3, 32, 32]));
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone)]
#[non_exhaustive]
pub struct ConvTranspose2d {
    /// The kernels, `[C, O/groups, KH, KW]`.
    pub weight: Param,
    /// The number added to each output channel, `[O]`.
    pub bias: Option<Param>,
    /// Stride, paddings, dilation and groups.
    #[module(skip)]
    pub options: ConvTranspose2dOptions,
}

impl ConvTranspose2d {
    /// A transposed convolution from `inputs` to `outputs` channels, with a kernel of this extent, or of this height
    /// and width.
    #[expect(clippy::new_ret_no_self, reason = "a layer needs a device and a seed; this describes one without")]
    pub fn new(inputs: usize, outputs: usize, kernel: impl IntoPair) -> ConvTranspose2dConfig {
        ConvTranspose2dConfig {
            inputs,
            outputs,
            kernel: kernel.into_pair(),
            options: ConvTranspose2dOptions::default(),
            bias: true,
            weight_init: Initializer::default(),
        }
    }
}

impl Layer for ConvTranspose2d {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        let y = x.conv_transpose2d(&x.param(&self.weight), self.options);
        match &self.bias {
            Some(bias) => y + x.param(bias).reshape([bias.shape().elements(), 1, 1]),
            None => y,
        }
    }

    fn flow(&self) -> crate::module::Flow {
        let weight = self.weight.shape();
        crate::module::Flow::unknown().takes_channels(weight[0]).gives_channels(weight[1] * self.options.groups)
    }
}

/// Describes a [`ConvTranspose2d`]; [`Init::init`] builds it.
#[derive(Debug, Clone)]
#[must_use]
pub struct ConvTranspose2dConfig {
    inputs: usize,
    outputs: usize,
    kernel: [usize; 2],
    options: ConvTranspose2dOptions,
    bias: bool,
    weight_init: Initializer,
}

impl ConvTranspose2dConfig {
    /// The distance in the output between the kernels of neighbouring inputs; 1 by default.
    pub fn stride(mut self, stride: impl IntoPair) -> Self {
        self.options.stride = stride.into_pair();
        self
    }

    /// Rows and columns cut off each side of the output; none by default.
    pub fn padding(mut self, padding: impl IntoPair) -> Self {
        self.options.padding = padding.into_pair();
        self
    }

    /// Extra rows and columns at the bottom and right of the output; none by default. Fewer than the stride or the
    /// dilation.
    pub fn output_padding(mut self, output_padding: impl IntoPair) -> Self {
        self.options.output_padding = output_padding.into_pair();
        self
    }

    /// The distance in the output between neighbouring weights of the kernel; 1 by default.
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

    /// The weight's initializer; uniform in ±1/√(O/groups·KH·KW) by default, as the bias always is. The fans are those
    /// of the weight's own layout: `fan_in` counts the output channels, as in PyTorch.
    pub fn weight_init(self, weight_init: Initializer) -> Self {
        Self { weight_init, ..self }
    }
}

impl Init for ConvTranspose2dConfig {
    type Output = ConvTranspose2d;

    fn build(self, device: &Device, seed: Seed) -> Result<ConvTranspose2d> {
        let Self { inputs, outputs, kernel, options, bias, weight_init } = self;
        let ConvTranspose2dOptions { stride, output_padding, dilation, groups, .. } = options;
        expect_channels("conv_transpose2d", [inputs, outputs], groups)?;
        expect_positive("conv_transpose2d", &[("kernel", kernel), ("stride", stride), ("dilation", dilation)])?;
        if (0..2).any(|axis| output_padding[axis] >= stride[axis].max(dilation[axis])) {
            bail!(
                Argument,
                "conv_transpose2d: output padding {output_padding:?} must be less than the stride {stride:?} or the \
                 dilation {dilation:?}; to make the output larger, choose a larger stride or `pad` it"
            );
        }
        let [height, width] = kernel;
        let shape = Shape::from([inputs, outputs / groups, height, width]);
        let (weight, bias) = weight_and_bias(device, seed, shape, &weight_init, bias.then_some(outputs))?;
        Ok(ConvTranspose2d { weight, bias, options })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, Tape, Tensor};

    fn init(config: ConvTranspose2dConfig) -> Result<ConvTranspose2d> {
        config.init(&Device::cpu(), Seed::new(42))
    }

    fn apply(layer: &ConvTranspose2d, shape: [usize; 4]) -> Var {
        let (weight, numbers) = (layer.weight.value(), 1..=Shape::from(shape).elements());
        let x: Vec<_> = numbers.map(|i| i as f32).collect();
        let x = Tensor::from_slice(weight.device(), shape, &x).unwrap();
        layer.forward(&Tape::new(weight.device()).input(&x))
    }

    #[test]
    fn computes_the_formula() {
        let mut layer = init(ConvTranspose2d::new(2, 1, (1, 2)).stride((1, 3)).padding((0, 1))).unwrap();
        let device = layer.weight.value().device().clone();
        layer.weight.set(Tensor::from_slice(&device, [2, 1, 1, 2], &[1.0, 10.0, 0.0, 100.0]).unwrap()).unwrap();
        layer.bias.as_mut().unwrap().set(Tensor::from_slice(&device, [1], &[0.5]).unwrap()).unwrap();
        // Channels [1, 2] and [3, 4]: [1, 10 + 300, 0, 2, 20 + 400] without its first and last column.
        let y = apply(&layer, [1, 2, 1, 2]);
        assert_eq!(y.shape(), Shape::from([1, 1, 1, 3]));
        assert_eq!(y.to_vec().unwrap(), [310.5, 0.5, 2.5]);
    }

    #[test]
    fn settings_reach_the_operation() {
        let config = ConvTranspose2d::new(4, 6, 3).stride(2).padding([2, 1]).output_padding((1, 0)).dilation((1, 2));
        let layer = init(config.groups(2).bias(false)).unwrap();
        assert_eq!(layer.weight.shape(), Shape::from([4, 3, 3, 3]));
        assert!(layer.bias.is_none());
        // 8·2 − 4 + 2 + 1 + 1 = 16 and 7·2 − 2 + 4 + 1 = 17.
        assert_eq!(apply(&layer, [2, 4, 9, 8]).shape(), Shape::from([2, 6, 16, 17]));
    }

    #[test]
    fn initial_values_lie_within_the_bound() {
        let layer = init(ConvTranspose2d::new(3, 8, 2).groups(1)).unwrap();
        for param in [&layer.weight, layer.bias.as_ref().unwrap()] {
            // 1/√(8·2·2)
            assert!(param.value().to_vec().unwrap().iter().all(|x| x.abs() <= 0.176_777 && *x != 0.0));
        }
    }

    #[test]
    fn senseless_settings_are_errors() {
        let fails = |config| {
            let error = init(config).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument);
            error.to_string()
        };
        let new = || ConvTranspose2d::new(4, 6, 3);
        assert!(fails(ConvTranspose2d::new(0, 1, 1)).contains("channels"));
        assert!(fails(ConvTranspose2d::new(1, 1, (3, 0))).contains("kernel [3, 0]"));
        assert!(fails(new().stride(0)).contains("stride"));
        assert!(fails(new().dilation(0)).contains("dilation"));
        assert!(fails(new().groups(4)).contains("4 groups must divide the 4 input and 6 output"));
        assert!(fails(new().output_padding(1)).contains("output padding [1, 1] must be less than the stride [1, 1]"));
        assert!(fails(new().stride(2).output_padding((0, 2))).contains("output padding [0, 2]"));
        assert!(init(new().dilation(3).output_padding(2)).is_ok());
    }

    #[test]
    fn a_misfit_names_the_parameter_and_the_callers_line() {
        let layer = init(ConvTranspose2d::new(3, 4, 3).padding(2)).unwrap();
        layer.weight.set_path("up.weight");
        let weight = layer.weight.value();
        for shape in [[1, 2, 8, 8], [1, 3, 2, 8]] {
            let x = Tensor::zeros(weight.device(), shape).unwrap();
            let (y, line) = (layer.forward(&Tape::new(weight.device()).input(&x)), line!());
            let error = y.error().unwrap();
            assert_eq!(error.kind(), ErrorKind::Shape);
            assert!(error.to_string().starts_with("conv_transpose2d: "), "{error}");
            assert!(error.to_string().contains("(parameter up.weight)"), "{error}");
            assert_eq!(error.location().unwrap().line(), line, "{error}");
        }
    }
}
