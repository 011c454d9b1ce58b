//! The convolution layers.

use std::fmt;

use meganeura_derive::Module;

use super::IntoExtents;
use super::dropout::{adapter_input, with_magnitudes};
use super::settings::{expect_channels, expect_positive, per_channel, weight_and_bias};
use crate::error::bail;
use crate::init::Initializer;
use crate::module::{Init, Layer, Seed};
use crate::ops::window::named;
use crate::ops::{ConvOptions, Padding};
use crate::param::Use;
use crate::{Device, ErrorKind, Param, Result, Shape, Var};

/// Convolution over `D` axes: [`Conv1d`] of sequences, [`Conv2d`] of images, [`Conv3d`] of volumes.
///
/// An [adapter](crate::Lora) on the weight of a convolution without groups is a convolution to `rank` channels,
/// followed by a convolution with kernels of one element.
#[derive(Module, Clone)]
#[non_exhaustive]
pub struct Conv<const D: usize> {
    /// The kernels, `[O, C/groups, K…]`.
    pub weight: Param,
    /// The number added to each output channel, `[O]`.
    pub bias: Option<Param>,
    /// Stride, padding, dilation and groups.
    #[module(skip)]
    pub options: ConvOptions<D>,
    /// The values that pad the input.
    #[module(skip)]
    pub padding_mode: Padding,
    /// `true` if the padding is what keeps the input's extents, instead of that of the options.
    #[module(skip)]
    pub padding_same: bool,
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
pub type Conv1d = Conv<1>;

/// 2-D convolution: `y[n,o,p,q] = b[o] + Σ x[n,c,p·s+i·d−pad,q·s+j·d−pad] · w[o,c,i,j]`
///
/// Shapes: `x [N, C, H, W]`, `weight [O, C/groups, KH, KW]`, `bias [O]` → `y [N, O, P, Q]` with
/// `P = ⌊(H + 2·pad − d·(KH−1) − 1)/s⌋ + 1`, and `Q` likewise.
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
pub type Conv2d = Conv<2>;

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
pub type Conv3d = Conv<3>;

impl<const D: usize> Conv<D> {
    /// A convolution from `inputs` to `outputs` channels, with a kernel of this extent, or of one for each axis.
    #[expect(clippy::new_ret_no_self, reason = "a layer needs a device and a seed; this describes one without")]
    pub fn new(inputs: usize, outputs: usize, kernel: impl IntoExtents<D>) -> ConvConfig<D> {
        ConvConfig {
            inputs,
            outputs,
            kernel: kernel.into_extents(),
            options: ConvOptions::default(),
            padding_mode: Padding::Zeros,
            padding_same: false,
            bias: true,
            weight_init: Initializer::default(),
        }
    }

    /// The elements of padding before and after each axis.
    fn widths(&self) -> [(usize, usize); D] {
        let weight = self.weight.shape();
        std::array::from_fn(|axis| match self.padding_same {
            // As in PyTorch, the end gets the odd element.
            true => {
                let both = self.options.dilation[axis].saturating_mul(weight[2 + axis] - 1);
                (both / 2, both - both / 2)
            }
            false => (self.options.padding[axis], self.options.padding[axis]),
        })
    }
}

impl<const D: usize> Layer for Conv<D> {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        if self.padding_same && self.options.stride != [1; D] {
            return x.refuse(name::<D>(), ErrorKind::Argument, same_needs_stride_1(self.options.stride));
        }
        let widths = self.widths();
        let is_even = self.padding_mode == Padding::Zeros && widths.iter().all(|(before, after)| before == after);
        let padded;
        let (x, padding) = if is_even || widths == [(0, 0); D] || x.shape().rank() != D + 2 {
            // Of another number of axes, the operation reports it.
            (x, widths.map(|(before, _)| before))
        } else {
            padded = x.pad_with(&[&[(0, 0); 2], &widths[..]].concat(), self.padding_mode);
            (&padded, [0; D])
        };
        let options = ConvOptions { padding, ..self.options };
        let y = match self.weight.adapter() {
            Some(adapter) if adapter.magnitude.is_some() => {
                let (weight, rest) = with_magnitudes(x, &self.weight, adapter, self);
                let y = x.convolve(&weight, options);
                match rest {
                    Some((x, difference)) => y + x.convolve(&difference, options),
                    None => y,
                }
            }
            // One factor after the other, which needs no gradient of the whole weight. Kernels of groups are small.
            Some(adapter) if options.groups == 1 => {
                let [w, a, b, scale] = adapter.parts(x.tape(), &self.weight);
                let rank = adapter.rank();
                let a = a.reshape(w.shape().with(0, rank));
                let b = b.reshape(&[&[w.shape()[0], rank], &[1; D][..]].concat()[..]);
                let read = adapter_input(x, adapter.dropout, self);
                x.convolve(&w, options) + read.convolve(&a, options).convolve(&b, ConvOptions::<D>::default()) * scale
            }
            // PEFT's: the first factor reads the channels of all groups.
            Some(adapter) if adapter.is_across_groups() => {
                let [w, a, b, scale] = adapter.parts(x.tape(), &self.weight);
                let (rank, groups) = (adapter.rank(), options.groups);
                let a = a.reshape(w.shape().with(0, rank).with(1, groups * w.shape()[1]));
                let b = b.reshape(&[&[w.shape()[0], rank / groups], &[1; D][..]].concat()[..]);
                let read = adapter_input(x, adapter.dropout, self).convolve(&a, ConvOptions { groups: 1, ..options });
                x.convolve(&w, options)
                    + read.convolve(&b, ConvOptions::<D> { groups, ..ConvOptions::default() }) * scale
            }
            Some(adapter) if adapter.dropout > 0.0 => {
                let [w, a, b, scale] = adapter.parts(x.tape(), &self.weight);
                let product = (b.matmul(&a) * scale).reshape(w.shape());
                x.convolve(&w, options) + adapter_input(x, adapter.dropout, self).convolve(&product, options)
            }
            _ => x.convolve(&x.param(&self.weight), options),
        };
        let y = match &self.bias {
            Some(bias) => y + per_channel::<D>(&x.param(bias)),
            None => y,
        };
        match self.weight.adapter() {
            Some(adapter) if adapter.bias.is_some() => adapter.add_bias_to(&y, &[1; D]),
            _ => y,
        }
    }

    fn flow(&self) -> crate::module::Flow {
        let weight = self.weight.shape();
        crate::module::Flow::unknown().takes_channels(weight[1] * self.options.groups).gives_channels(weight[0])
    }
}

impl<const D: usize> fmt::Debug for Conv<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { weight, bias, options, padding_mode, padding_same } = self;
        f.debug_struct(named::<D>(["Conv1d", "Conv2d", "Conv3d"]))
            .field("weight", weight)
            .field("bias", bias)
            .field("options", options)
            .field("padding_mode", padding_mode)
            .field("padding_same", padding_same)
            .finish()
    }
}

/// Describes a [`Conv`]; [`Init::init`] builds it.
#[derive(Clone)]
#[must_use]
pub struct ConvConfig<const D: usize> {
    inputs: usize,
    outputs: usize,
    kernel: [usize; D],
    options: ConvOptions<D>,
    padding_mode: Padding,
    padding_same: bool,
    bias: bool,
    weight_init: Initializer,
}

/// Describes a [`Conv1d`]; [`Init::init`] builds it.
pub type Conv1dConfig = ConvConfig<1>;

/// Describes a [`Conv2d`]; [`Init::init`] builds it.
pub type Conv2dConfig = ConvConfig<2>;

/// Describes a [`Conv3d`]; [`Init::init`] builds it.
pub type Conv3dConfig = ConvConfig<3>;

impl<const D: usize> ConvConfig<D> {
    /// The step of the kernel from one output to the next; 1 by default.
    pub fn stride(mut self, stride: impl IntoExtents<D>) -> Self {
        self.options.stride = stride.into_extents();
        self
    }

    /// Elements of padding on each side of the input; none by default. They are zeros unless
    /// [`padding_mode`](Self::padding_mode) says otherwise.
    pub fn padding(mut self, padding: impl IntoExtents<D>) -> Self {
        self.options.padding = padding.into_extents();
        Self { padding_same: false, ..self }
    }

    /// Pads so that the output has the input's extents, like PyTorch's `padding='same'`: by `d·(K − 1)` elements, of
    /// which the end gets the odd one. The stride must be 1.
    pub fn padding_same(self) -> Self {
        Self { padding_same: true, ..self }
    }

    /// The values that pad the input; zeros by default. With other values, the padded input is first written to a
    /// buffer of its own.
    pub fn padding_mode(self, padding_mode: Padding) -> Self {
        Self { padding_mode, ..self }
    }

    /// The distance in the input between neighbouring weights of the kernel; 1 by default.
    pub fn dilation(mut self, dilation: impl IntoExtents<D>) -> Self {
        self.options.dilation = dilation.into_extents();
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

    /// The weight's initializer; uniform in ±1/√(C/groups·K) by default, for a kernel of `K` elements, as the bias
    /// always is.
    pub fn weight_init(self, weight_init: Initializer) -> Self {
        Self { weight_init, ..self }
    }
}

impl<const D: usize> Init for ConvConfig<D> {
    type Output = Conv<D>;

    fn build(self, device: &Device, seed: Seed) -> Result<Conv<D>> {
        let Self { inputs, outputs, kernel, options, padding_mode, padding_same, bias, weight_init } = self;
        expect_channels(name::<D>(), [inputs, outputs], options.groups)?;
        let positive = [("kernel", kernel), ("stride", options.stride), ("dilation", options.dilation)];
        expect_positive(name::<D>(), &positive)?;
        if padding_same && options.stride != [1; D] {
            bail!(Argument, "{}: {}", name::<D>(), same_needs_stride_1(options.stride));
        }
        let shape = Shape::new(&[&[outputs, inputs / options.groups], &kernel[..]].concat());
        let (weight, bias) = weight_and_bias(device, seed, shape, &weight_init, bias.then_some(outputs))?;
        let is_plain = padding_mode == Padding::Zeros && (options.dilation == [1; D] || kernel == [1; D]);
        let weight = weight.used_as(Use::Conv { groups: options.groups, is_plain });
        Ok(Conv { weight, bias, options, padding_mode, padding_same })
    }
}

impl<const D: usize> fmt::Debug for ConvConfig<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { inputs, outputs, kernel, options, padding_mode, padding_same, bias, weight_init } = self;
        f.debug_struct(named::<D>(["Conv1dConfig", "Conv2dConfig", "Conv3dConfig"]))
            .field("inputs", inputs)
            .field("outputs", outputs)
            .field("kernel", kernel)
            .field("options", options)
            .field("padding_mode", padding_mode)
            .field("padding_same", padding_same)
            .field("bias", bias)
            .field("weight_init", weight_init)
            .finish()
    }
}

/// The name in messages.
fn name<const D: usize>() -> &'static str {
    named::<D>(["conv1d", "conv2d", "conv3d"])
}

fn same_needs_stride_1(stride: impl fmt::Debug) -> String {
    format!("padding that keeps the extents needs a stride of 1, not {stride:?}; set `padding` instead")
}

#[cfg(test)]
mod tests;
