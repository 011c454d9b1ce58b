//! The 3-D convolution layer.

use meganeura_derive::Module;

use super::IntoTriple;
use super::extent::{Window, check_channels, misfit};
use super::settings::{expect_channels, expect_positive, weight_and_bias};
use crate::init::Initializer;
use crate::module::{Init, Layer, Seed};
use crate::ops::Conv2dOptions;
use crate::{Device, Param, Result, Shape, TensorType, Var};

/// The geometry of a 3-D convolution, per axis `[depth, height, width]`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Conv3dOptions {
    /// The distance in the input between neighbouring output voxels; at least 1.
    pub stride: [usize; 3],
    /// Zeros around the input.
    pub padding: [usize; 3],
    /// The distance in the input between neighbouring weights; at least 1.
    pub dilation: [usize; 3],
    /// The number of groups of channels, each convolved on its own; a divisor of both channel counts.
    pub groups: usize,
}

impl Default for Conv3dOptions {
    fn default() -> Self {
        Self { stride: [1; 3], padding: [0; 3], dilation: [1; 3], groups: 1 }
    }
}

/// The names of the axes in messages.
pub(super) const AXES: [&str; 3] = ["depth", "height", "width"];

impl Conv3dOptions {
    /// The output's shape, or the error for operands that do not fit.
    fn output(self, x: TensorType, weight: TensorType) -> Result<[usize; 5], String> {
        if x.dtype != weight.dtype || !x.dtype.is_float() {
            return Err(format!("needs floats of one type, not {} and {}", x.dtype, weight.dtype));
        }
        let &[n, c, d, h, w] = x.shape.dims() else {
            return Err(format!("the input must be [N, C, D, H, W], it is {}", x.shape));
        };
        let &[o, per_group, kd, kh, kw] = weight.shape.dims() else {
            return Err(format!("the weight must be [O, C/groups, KD, KH, KW], it is {}", weight.shape));
        };
        check_channels(c, [o, per_group], self.groups)?;
        let mut output = [n, o, 0, 0, 0];
        for (axis, (extent, kernel)) in [(d, kd), (h, kh), (w, kw)].into_iter().enumerate() {
            let (stride, padding, dilation) = (self.stride[axis], self.padding[axis], self.dilation[axis]);
            output[2 + axis] = Window { kernel, stride, padding, dilation }.slide(AXES[axis], extent)?;
        }
        Ok(output)
    }
}

impl Var {
    /// 3-D convolution with a weight `[O, C/groups, KD, KH, KW]`:
    /// `y[n,o,p,q,r] = Σ x[n,c,p·s+i·d−pad,q·s+j·d−pad,r·s+k·d−pad] · w[o,c,i,j,k]`
    ///
    /// Shapes: `x [N, C, D, H, W]` → `y [N, O, P, Q, R]` with `P = ⌊(D + 2·pad − d·(KD−1) − 1)/s⌋ + 1`, and `Q`, `R`
    /// likewise.
    ///
    /// Computed by one [`Var::conv2d`] of `N·P` images. The slices that an output slice depends on become its channels,
    /// so the input is copied `KD` times.
    #[must_use]
    #[track_caller]
    pub fn conv3d(&self, weight: &Self, options: Conv3dOptions) -> Self {
        if let Some(error) = weight.error() {
            return self.fail(error);
        }
        let [n, o, p, q, r] = match options.output(self.ty(), weight.ty()) {
            Ok(output) => output,
            Err(message) => return misfit("conv3d", self, weight, message),
        };
        let Conv3dOptions { stride, padding, dilation, groups } = options;
        let (&[_, c, _, h, w], &[_, per_group, kd, kh, kw]) = (self.shape().dims(), weight.shape().dims()) else {
            unreachable!("five axes, as was checked")
        };
        let depth = Depth { kernel: kd, stride: stride[0], padding: padding[0], dilation: dilation[0], output: p };
        let mut slices = Vec::with_capacity(kd);
        for slice in depth.slices(self) {
            // [N, C, P, H, W] of each group.
            slices.push(slice.reshape([n, groups, per_group, p, h, w]).permute(&[0, 3, 1, 2, 4, 5]));
        }
        let images = match &slices[..] {
            [slice] => slice.clone(),
            slices => Self::concat(&slices.iter().collect::<Vec<_>>(), 3),
        };
        let weight = weight.permute(&[0, 2, 1, 3, 4]).reshape([o, kd * per_group, kh, kw]);
        let options = Conv2dOptions {
            stride: [stride[1], stride[2]],
            padding: [padding[1], padding[2]],
            dilation: [dilation[1], dilation[2]],
            groups,
        };
        let y = images.reshape([n * p, kd * c, h, w]).conv2d(&weight, options);
        y.reshape([n, p, o, q, r]).permute(&[0, 2, 1, 3, 4])
    }
}

/// The geometry of the kernel along the depth.
struct Depth {
    kernel: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
    /// The number of output slices.
    output: usize,
}

impl Depth {
    /// For each slice of the kernel, the input slices that it meets: `[N, C, P, H, W]`.
    #[track_caller]
    fn slices(&self, x: &Var) -> Vec<Var> {
        let Self { kernel, stride, padding, dilation, output } = *self;
        // With a single output slice, the stride does not matter.
        let stride = if output == 1 { 1 } else { stride };
        let [n, c, d, h, w] = *x.shape().dims() else { unreachable!("five axes, as was checked") };
        // A multiple of the stride, which a reshape can split: zeros are appended, or the end of the input is cut off.
        let needed = (kernel - 1) * dilation + output * stride;
        let after = needed.saturating_sub(padding + d);
        let x = match (padding, after) {
            (0, 0) => x.clone(),
            widths => x.pad(&[(0, 0), (0, 0), widths, (0, 0), (0, 0)], 0.0),
        };
        let mut slices = Vec::with_capacity(kernel);
        for tap in 0..kernel {
            let first = tap * dilation;
            let met = x.slice(2, first..first + output * stride);
            slices.push(match stride {
                1 => met,
                _ => met.reshape([n, c, output, stride, h, w]).slice(3, 0..1).reshape([n, c, output, h, w]),
            });
        }
        slices
    }
}

/// 3-D convolution: `y[n,o,p,q,r] = b[o] + Σ x[n,c,p·s+i·d−pad,q·s+j·d−pad,r·s+k·d−pad] · w[o,c,i,j,k]`
///
/// Shapes: `x [N, C, D, H, W]`, `weight [O, C/groups, KD, KH, KW]`, `bias [O]` → `y [N, O, P, Q, R]` with
/// `P = ⌊(D + 2·pad − d·(KD−1) − 1)/s⌋ + 1`, and `Q`, `R` likewise.
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let conv = Conv3d::new(3, 8, 3).stride((1, 2, 2)).padding(1).init(&device, Seed::new(42))?;
///
/// let tape = Tape::new(&device);
/// let x = tape.input(&Tensor::zeros(&device, [2, 3, 5, 8, 8])?);
/// assert_eq!(conv.forward(&x).shape(), Shape::from([2, 8, 5, 4, 4]));
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone)]
#[non_exhaustive]
pub struct Conv3d {
    /// The kernels, `[O, C/groups, KD, KH, KW]`.
    pub weight: Param,
    /// The number added to each output channel, `[O]`.
    pub bias: Option<Param>,
    /// Stride, padding, dilation and groups.
    #[module(skip)]
    pub options: Conv3dOptions,
}

impl Conv3d {
    /// A convolution from `inputs` to `outputs` channels, with a kernel of this extent, or of these three.
    #[expect(clippy::new_ret_no_self, reason = "a layer needs a device and a seed; this describes one without")]
    pub fn new(inputs: usize, outputs: usize, kernel: impl IntoTriple) -> Conv3dConfig {
        let (options, weight_init) = (Conv3dOptions::default(), Initializer::default());
        Conv3dConfig { inputs, outputs, kernel: kernel.into_triple(), options, bias: true, weight_init }
    }
}

impl Layer for Conv3d {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        let y = x.conv3d(&x.param(&self.weight), self.options);
        match &self.bias {
            Some(bias) => y + x.param(bias).reshape([bias.shape().elements(), 1, 1, 1]),
            None => y,
        }
    }

    fn flow(&self) -> crate::module::Flow {
        let weight = self.weight.shape();
        crate::module::Flow::unknown().takes_channels(weight[1] * self.options.groups).gives_channels(weight[0])
    }
}

/// Describes a [`Conv3d`]; [`Init::init`] builds it.
#[derive(Debug, Clone)]
#[must_use]
pub struct Conv3dConfig {
    inputs: usize,
    outputs: usize,
    kernel: [usize; 3],
    options: Conv3dOptions,
    bias: bool,
    weight_init: Initializer,
}

impl Conv3dConfig {
    /// The step of the kernel from one output to the next; 1 by default.
    pub fn stride(mut self, stride: impl IntoTriple) -> Self {
        self.options.stride = stride.into_triple();
        self
    }

    /// Zeros on each side of the input; none by default.
    pub fn padding(mut self, padding: impl IntoTriple) -> Self {
        self.options.padding = padding.into_triple();
        self
    }

    /// The distance in the input between neighbouring weights of the kernel; 1 by default.
    pub fn dilation(mut self, dilation: impl IntoTriple) -> Self {
        self.options.dilation = dilation.into_triple();
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

    /// The weight's initializer; uniform in ±1/√(C/groups·KD·KH·KW) by default, as the bias always is.
    pub fn weight_init(self, weight_init: Initializer) -> Self {
        Self { weight_init, ..self }
    }
}

impl Init for Conv3dConfig {
    type Output = Conv3d;

    fn build(self, device: &Device, seed: Seed) -> Result<Conv3d> {
        let Self { inputs, outputs, kernel, options, bias, weight_init } = self;
        expect_channels("conv3d", [inputs, outputs], options.groups)?;
        expect_positive("conv3d", &[("kernel", kernel), ("stride", options.stride), ("dilation", options.dilation)])?;
        let [depth, height, width] = kernel;
        let shape = Shape::from([outputs, inputs / options.groups, depth, height, width]);
        let (weight, bias) = weight_and_bias(device, seed, shape, &weight_init, bias.then_some(outputs))?;
        Ok(Conv3d { weight, bias, options })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, Tape, Tensor};

    fn init(config: Conv3dConfig) -> Result<Conv3d> {
        config.init(&Device::cpu(), Seed::new(42))
    }

    fn input(shape: &[usize]) -> Var {
        let device = Device::cpu();
        let x: Vec<_> = (0..shape.iter().product::<usize>()).map(|i| i as f32).collect();
        Tape::new(&device).input(&Tensor::from_slice(&device, Shape::new(shape), &x).unwrap())
    }

    #[test]
    fn computes_the_formula() {
        let mut conv = init(Conv3d::new(1, 1, (2, 1, 1)).stride((2, 1, 1)).padding((1, 0, 0))).unwrap();
        let device = conv.weight.value().device().clone();
        conv.weight.set(Tensor::from_slice(&device, [1, 1, 2, 1, 1], &[1.0, 10.0]).unwrap()).unwrap();
        conv.bias.as_mut().unwrap().set(Tensor::from_slice(&device, [1], &[0.5]).unwrap()).unwrap();
        // Slices [0, 1], [2, 3], [4, 5], padded with zero slices, in windows of two: (zeros, first) and (second,
        // third).
        let y = conv.forward(&input(&[1, 1, 3, 1, 2]));
        assert_eq!(y.shape(), Shape::from([1, 1, 2, 1, 2]));
        assert_eq!(y.to_vec().unwrap(), [0.5, 10.5, 42.5, 53.5]);
    }

    #[test]
    fn settings_reach_the_operation() {
        let conv = Conv3d::new(4, 6, 3).stride((2, 1, 3)).padding([2, 1, 0]).dilation((2, 1, 1)).groups(2).bias(false);
        let conv = init(conv).unwrap();
        assert_eq!(conv.weight.shape(), Shape::from([6, 2, 3, 3, 3]));
        assert!(conv.bias.is_none());
        // (9 + 4 − 4 − 1)/2 + 1 = 5, 4 + 2 − 2 = 4, (8 − 2 − 1)/3 + 1 = 2.
        assert_eq!(conv.forward(&input(&[2, 4, 9, 4, 8])).shape(), Shape::from([2, 6, 5, 4, 2]));
    }

    #[test]
    fn initial_values_lie_within_the_bound() {
        let conv = init(Conv3d::new(4, 8, (1, 2, 2))).unwrap();
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
        fails(Conv3d::new(0, 1, 1), "channels");
        fails(Conv3d::new(1, 1, (3, 0, 1)), "kernel [3, 0, 1]");
        fails(Conv3d::new(1, 1, 1).stride(0), "stride");
        fails(Conv3d::new(1, 1, 1).dilation((1, 1, 0)), "dilation");
        fails(Conv3d::new(4, 6, 1).groups(4), "4 groups must divide the 4 input and 6 output");
    }

    #[test]
    fn a_misfit_names_the_parameter_and_the_callers_line() {
        let conv = init(Conv3d::new(3, 4, 3)).unwrap();
        conv.weight.set_path("stem.weight");
        for (shape, why) in [
            (&[1, 2, 8, 8, 8][..], "the input has 2 channels, the weight expects 3"),
            (&[1, 3, 2, 8, 8], "depth: a kernel of 3 spans 3 elements"),
            (&[1, 3, 8, 8, 2], "width: a kernel"),
            (&[1, 3, 8, 8], "must be [N, C, D, H, W], it is [1, 3, 8, 8]"),
        ] {
            let (y, line) = (conv.forward(&input(shape)), line!());
            let error = y.error().unwrap();
            assert_eq!((error.kind(), error.location().unwrap().line()), (ErrorKind::Shape, line));
            let message = error.to_string();
            assert!(message.starts_with("conv3d: ") && message.contains(why), "{message}");
            assert!(message.contains("(parameter stem.weight)"), "{message}");
        }
    }
}
