//! The transposed convolution layers.

use std::fmt;

use meganeura_derive::Module;

use super::IntoExtents;
use super::dropout::adapter_input;
use super::settings::{expect_channels, expect_positive, per_channel, weight_and_bias};
use crate::error::bail;
use crate::init::Initializer;
use crate::module::{Init, Layer, Seed};
use crate::ops::window::named;
use crate::ops::{ConvOptions, ConvTransposeOptions};
use crate::param::Use;
use crate::{Device, Param, Result, Shape, Var};

/// Transposed convolution over `D` axes: [`ConvTranspose1d`], [`ConvTranspose2d`] and [`ConvTranspose3d`], which
/// enlarge what a [`Conv`](super::Conv) shrinks.
///
/// It maps the output shape of the convolution with the same settings back to the input shape of that convolution. With
/// a stride, several input shapes lead to the same output shape; the output padding selects one of them.
///
/// An [adapter](crate::Lora) on the weight of a layer without groups is a convolution to `rank` channels with kernels
/// of one element, followed by a transposed convolution.
#[derive(Module, Clone)]
#[non_exhaustive]
pub struct ConvTranspose<const D: usize> {
    /// The kernels, `[C, O/groups, K…]`.
    pub weight: Param,
    /// The number added to each output channel, `[O]`.
    pub bias: Option<Param>,
    /// Stride, paddings, dilation and groups.
    #[module(skip)]
    pub options: ConvTransposeOptions<D>,
}

/// Transposed 1-D convolution, which lengthens sequences where a [`Conv1d`](super::Conv1d) shortens them:
/// `y[n,o,p] = b[o] + Σ x[n,c,l] · weight[c,o,i]` over all `l·s + i·d − pad = p`
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
pub type ConvTranspose1d = ConvTranspose<1>;

/// Transposed 2-D convolution, which enlarges images where a [`Conv2d`](super::Conv2d) shrinks them:
/// `y[n,o,p,q] = b[o] + Σ x[n,c,h,w] · weight[c,o,i,j]` over all `h·s + i·d − pad = p`, `w·s + j·d − pad = q`
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
pub type ConvTranspose2d = ConvTranspose<2>;

/// Transposed 3-D convolution, which enlarges volumes where a [`Conv3d`](super::Conv3d) shrinks them: see
/// [`Var::conv_transpose3d`]
///
/// Shapes: `x [N, C, D, H, W]`, `weight [C, O/groups, KD, KH, KW]`, `bias [O]` → `y [N, O, P, Q, R]` with
/// `P = (D − 1)·s − 2·pad + d·(KD − 1) + output_pad + 1`, and `Q`, `R` likewise.
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let up = ConvTranspose3d::new(8, 3, 2).stride(2).init(&device, Seed::new(42))?;
///
/// let tape = Tape::new(&device);
/// let x = tape.input(&Tensor::zeros(&device, [2, 8, 3, 4, 5])?);
/// assert_eq!(up.forward(&x).shape(), Shape::from([2, 3, 6, 8, 10]));
/// # Ok::<(), meganeura::Error>(())
/// ```
pub type ConvTranspose3d = ConvTranspose<3>;

impl<const D: usize> ConvTranspose<D> {
    /// A transposed convolution from `inputs` to `outputs` channels, with a kernel of this extent, or of one for each
    /// axis.
    #[expect(clippy::new_ret_no_self, reason = "a layer needs a device and a seed; this describes one without")]
    pub fn new(inputs: usize, outputs: usize, kernel: impl IntoExtents<D>) -> ConvTransposeConfig<D> {
        let (options, weight_init) = (ConvTransposeOptions::default(), Initializer::default());
        ConvTransposeConfig { inputs, outputs, kernel: kernel.into_extents(), options, bias: true, weight_init }
    }
}

impl<const D: usize> Layer for ConvTranspose<D> {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        let y = match self.weight.adapter() {
            // As in `Conv`, one factor after the other; the second one of the product comes first here.
            Some(adapter) if self.options.groups == 1 && adapter.is_plain() => {
                let [w, a, b, scale] = adapter.parts(x.tape(), &self.weight);
                let rank = adapter.rank();
                let a = a.reshape(w.shape().with(0, rank));
                let b = b.t().reshape(&[&[rank, w.shape()[0]], &[1; D][..]].concat()[..]);
                let between = adapter_input(x, adapter.dropout, self).convolve(&b, ConvOptions::<D>::default());
                x.convolve_transposed(&w, self.options) + between.convolve_transposed(&a, self.options) * scale
            }
            _ => x.convolve_transposed(&x.param(&self.weight), self.options),
        };
        match &self.bias {
            Some(bias) => y + per_channel::<D>(&x.param(bias)),
            None => y,
        }
    }

    fn flow(&self) -> crate::module::Flow {
        let weight = self.weight.shape();
        crate::module::Flow::unknown().takes_channels(weight[0]).gives_channels(weight[1] * self.options.groups)
    }
}

impl<const D: usize> fmt::Debug for ConvTranspose<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { weight, bias, options } = self;
        f.debug_struct(named::<D>(["ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]))
            .field("weight", weight)
            .field("bias", bias)
            .field("options", options)
            .finish()
    }
}

/// Describes a [`ConvTranspose`]; [`Init::init`] builds it.
#[derive(Clone)]
#[must_use]
pub struct ConvTransposeConfig<const D: usize> {
    inputs: usize,
    outputs: usize,
    kernel: [usize; D],
    options: ConvTransposeOptions<D>,
    bias: bool,
    weight_init: Initializer,
}

/// Describes a [`ConvTranspose1d`]; [`Init::init`] builds it.
pub type ConvTranspose1dConfig = ConvTransposeConfig<1>;

/// Describes a [`ConvTranspose2d`]; [`Init::init`] builds it.
pub type ConvTranspose2dConfig = ConvTransposeConfig<2>;

/// Describes a [`ConvTranspose3d`]; [`Init::init`] builds it.
pub type ConvTranspose3dConfig = ConvTransposeConfig<3>;

impl<const D: usize> ConvTransposeConfig<D> {
    /// The distance in the output between the kernels of neighbouring inputs; 1 by default.
    pub fn stride(mut self, stride: impl IntoExtents<D>) -> Self {
        self.options.stride = stride.into_extents();
        self
    }

    /// Elements cut off each side of the output; none by default.
    pub fn padding(mut self, padding: impl IntoExtents<D>) -> Self {
        self.options.padding = padding.into_extents();
        self
    }

    /// Extra elements at the end of the output; none by default. Fewer than the stride or the dilation.
    pub fn output_padding(mut self, output_padding: impl IntoExtents<D>) -> Self {
        self.options.output_padding = output_padding.into_extents();
        self
    }

    /// The distance in the output between neighbouring weights of the kernel; 1 by default.
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

    /// The weight's initializer; uniform in ±1/√(O/groups·K) by default, for a kernel of `K` elements, as the bias
    /// always is. The fans are those of the weight's own layout: `fan_in` counts the output channels, as in PyTorch.
    pub fn weight_init(self, weight_init: Initializer) -> Self {
        Self { weight_init, ..self }
    }
}

impl<const D: usize> Init for ConvTransposeConfig<D> {
    type Output = ConvTranspose<D>;

    fn build(self, device: &Device, seed: Seed) -> Result<ConvTranspose<D>> {
        let name = named::<D>(["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]);
        let Self { inputs, outputs, kernel, options, bias, weight_init } = self;
        let ConvTransposeOptions { stride, output_padding, dilation, groups, .. } = options;
        expect_channels(name, [inputs, outputs], groups)?;
        expect_positive(name, &[("kernel", kernel), ("stride", stride), ("dilation", dilation)])?;
        if (0..D).any(|axis| output_padding[axis] >= stride[axis].max(dilation[axis])) {
            bail!(
                Argument,
                "{name}: output padding {output_padding:?} must be less than the stride {stride:?} or the dilation \
                 {dilation:?}; to make the output larger, choose a larger stride or `pad` it"
            );
        }
        let shape = Shape::new(&[&[inputs, outputs / groups], &kernel[..]].concat());
        let (weight, bias) = weight_and_bias(device, seed, shape, &weight_init, bias.then_some(outputs))?;
        let weight = weight.used_as(Use::ConvTranspose);
        Ok(ConvTranspose { weight, bias, options })
    }
}

impl<const D: usize> fmt::Debug for ConvTransposeConfig<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { inputs, outputs, kernel, options, bias, weight_init } = self;
        let names = ["ConvTranspose1dConfig", "ConvTranspose2dConfig", "ConvTranspose3dConfig"];
        f.debug_struct(named::<D>(names))
            .field("inputs", inputs)
            .field("outputs", outputs)
            .field("kernel", kernel)
            .field("options", options)
            .field("bias", bias)
            .field("weight_init", weight_init)
            .finish()
    }
}

#[cfg(test)]
mod tests;
