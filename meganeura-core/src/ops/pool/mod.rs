//! Maximum and average pooling of sequences, images and volumes.

mod avg;
mod max;
mod rows;

#[doc(hidden)]
pub use avg::Divisor;
pub use avg::{AvgPool, AvgPoolGrad};
pub use max::{MaxPool, MaxPoolGrad};

use std::fmt;

use super::Bf16;
use super::terms::{self, Terms};
use super::window::{Depth, INPUTS, Window, axis_name, expect_axes, last, named, spatial, with_leading};
use crate::kernel::launch::{Caps, Channels, Define, Format, define};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Attribute};
use crate::{Shape, TensorType};

/// A window over `D` axes, and its steps.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub struct Pool<const D: usize> {
    pub kernel: [usize; D],
    pub stride: [usize; D],
    pub padding: [usize; D],
    pub dilation: [usize; D],
    /// `true` if the last window may reach past the padding: see [`Window::slide`].
    pub ceil_mode: bool,
}

/// A window over one, two or three axes, as an operation holds it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AnyPool {
    axes: usize,
    /// Over three axes. Those that the window lacks lead, with one element.
    pub(crate) all: Pool<3>,
}

impl<const D: usize> From<Pool<D>> for AnyPool {
    fn from(pool: Pool<D>) -> Self {
        let Pool { kernel, stride, padding, dilation, ceil_mode } = pool;
        let [kernel, stride, dilation] = [kernel, stride, dilation].map(|of| with_leading(of, 1));
        Self { axes: D, all: Pool { kernel, stride, padding: with_leading(padding, 0), dilation, ceil_mode } }
    }
}

impl AnyPool {
    /// The one of three names that belongs to so many axes.
    fn named(self, names: [&'static str; 3]) -> &'static str {
        names[self.axes - 1]
    }

    /// The window over the `D` axes that there are.
    fn of_axes<const D: usize>(self) -> Pool<D> {
        let Pool { kernel, stride, padding, dilation, ceil_mode } = self.all;
        let [kernel, stride, padding, dilation] = [kernel, stride, padding, dilation].map(last);
        Pool { kernel, stride, padding, dilation, ceil_mode }
    }

    /// The output's shape, or why an operand of this type has none.
    fn output(self, x: &TensorType) -> Result<Shape, String> {
        match self.axes {
            1 => self.of_axes::<1>().output(x),
            2 => self.of_axes::<2>().output(x),
            _ => self.all.output(x),
        }
    }

    /// The attributes of ONNX's pooling operators for an operand of this type. Rounding up is padding at the end.
    #[cfg(feature = "onnx")]
    fn onnx(self, x: &TensorType) -> Vec<(&'static str, Attribute)> {
        let Pool { kernel, stride, padding, dilation, .. } = self.all;
        let (g, first) = (PoolShape::of(x.shape, self), 3 - self.axes);
        let beyond = |axis: usize| padding[axis] + self.all.along(axis).beyond(g.inputs[axis], g.outputs[axis]);
        let after: Vec<_> = (first..3).map(beyond).collect();
        let ints = |numbers: &[usize]| Attribute::Ints(form::ints(numbers));
        vec![
            ("dilations", ints(&dilation[first..])),
            ("kernel_shape", ints(&kernel[first..])),
            ("pads", ints(&[&padding[first..], &after].concat())),
            ("strides", ints(&stride[first..])),
        ]
    }
}

impl fmt::Debug for AnyPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.axes {
            1 => self.of_axes::<1>().fmt(f),
            2 => self.of_axes::<2>().fmt(f),
            _ => self.all.fmt(f),
        }
    }
}

impl<const D: usize> Pool<D> {
    /// Non-overlapping windows.
    #[doc(hidden)]
    pub fn new(kernel: [usize; D]) -> Self {
        Self { kernel, stride: kernel, padding: [0; D], dilation: [1; D], ceil_mode: false }
    }

    /// The window along one axis.
    fn along(&self, axis: usize) -> Window {
        let [kernel, stride, padding, dilation] =
            [self.kernel, self.stride, self.padding, self.dilation].map(|of| of[axis]);
        Window { kernel, stride, padding, dilation }
    }

    /// The output's shape, or why an operand of this type has none.
    pub(crate) fn output(&self, x: &TensorType) -> Result<Shape, String> {
        if !x.dtype.is_float() {
            return Err(format!("needs floats, the operand holds {}", x.dtype));
        }
        let (_, extents) = expect_axes::<D>("input", &x.shape, INPUTS)?;
        let Self { kernel, padding, .. } = self;
        if (0..D).any(|axis| padding[axis] > kernel[axis] / 2) {
            return Err(format!("padding {padding:?} is more than half of the window {kernel:?}"));
        }
        let mut output = x.shape;
        for (axis, extent) in extents.into_iter().enumerate() {
            let windows = self.along(axis).slide(axis_name::<D>(axis), extent, self.ceil_mode)?;
            output = output.with(2 + axis, windows);
        }
        Ok(output)
    }
}

impl<const D: usize> fmt::Debug for Pool<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, stride, padding, dilation, ceil_mode } = self;
        let mut pool = f.debug_struct(named::<D>(["Pool1d", "Pool2d", "Pool3d"]));
        pool.field("kernel", kernel).field("stride", stride).field("padding", padding).field("dilation", dilation);
        if *ceil_mode {
            pool.field("ceil_mode", ceil_mode);
        }
        pool.finish()
    }
}

/// All extents of a pooling. `channels` is the number of images times channels.
#[derive(Clone, Copy)]
pub(crate) struct PoolShape {
    pub(crate) channels: usize,
    /// Planes, rows and columns, of which a sequence or an image lacks the first.
    pub(crate) inputs: [usize; 3],
    pub(crate) outputs: [usize; 3],
    pool: Pool<3>,
}

impl PoolShape {
    fn new(x: &TensorType, pool: AnyPool) -> Result<Self, String> {
        let output = pool.output(x)?;
        let [inputs, outputs] = [x.shape, output].map(spatial);
        Ok(Self { channels: x.shape[0] * x.shape[1], inputs, outputs, pool: pool.all })
    }

    pub(crate) fn of(x: Shape, pool: AnyPool) -> Self {
        Self::new(&TensorType::new(crate::DType::F32, x), pool).expect("checked when recorded")
    }

    pub(crate) fn output(&self, x: Shape) -> Shape {
        let missing = 5 - x.rank();
        (2..x.rank()).fold(x, |shape, axis| shape.with(axis, self.outputs[axis - 2 + missing]))
    }

    /// Elements of a channel of the input.
    pub(crate) fn pixels(&self) -> usize {
        self.inputs.iter().product()
    }

    /// Elements of a channel of the output.
    pub(crate) fn windows(&self) -> usize {
        self.outputs.iter().product()
    }

    /// The place of window number `at` of a channel.
    pub(crate) fn place(&self, at: usize) -> [usize; 3] {
        let [_, p, q] = self.outputs;
        [at / (p * q), at / q % p, at % q]
    }

    /// The input pixels that a window covers, as indices in a channel.
    pub(crate) fn window(&self, place: [usize; 3]) -> impl Iterator<Item = usize> {
        let Pool { kernel, stride, padding, dilation, .. } = self.pool;
        let inputs @ [_, h, w] = self.inputs;
        let along = move |axis: usize| {
            (0..kernel[axis])
                .filter_map(move |i| (place[axis] * stride[axis] + i * dilation[axis]).checked_sub(padding[axis]))
                .filter(move |&at| at < inputs[axis])
        };
        along(0).flat_map(move |plane| {
            along(1).flat_map(move |row| along(2).map(move |column| (plane * h + row) * w + column))
        })
    }

    /// `true` if there is no depth: the window has one plane of one.
    fn is_flat(&self) -> bool {
        self.depth().is_flat()
    }

    fn depth(&self) -> Depth {
        let Pool { kernel, stride, padding, dilation, .. } = self.pool;
        Depth {
            inputs: self.inputs[0],
            outputs: self.outputs[0],
            kernel: kernel[0],
            stride: stride[0],
            padding: padding[0].cast_signed(),
            dilation: dilation[0],
            apart: 1,
        }
    }

    /// The defines of kernels on channels, or on tensors in lines.
    fn defines(&self, format: Format) -> Vec<Define> {
        let Pool { kernel, stride, padding, dilation, .. } = self.pool;
        let side = format.channels().map_or(1, Channels::lines);
        let channels = format.channels().map_or(1, |of| of.channels);
        let ([_, h, w], [_, p, q]) = (self.inputs, self.outputs);
        let of_planes = define![
            N: self.channels / channels, SIDE: side, H: h, W: w, P: p, Q: q, KH: kernel[1], KW: kernel[2],
            SH: stride[1], SW: stride[2], PH: padding[1], PW: padding[2], DH: dilation[1], DW: dilation[2],
        ];
        [of_planes, self.depth().defines()].concat()
    }

    /// The most input elements that a window covers, rows of all planes and columns, and the most outputs that cover
    /// one element; both at most the number of taps.
    fn extents(&self) -> [[usize; 2]; 2] {
        let [depth, down, across] = self.pool.kernel;
        [self.inputs, self.outputs]
            .map(|[planes, rows, columns]| [planes.min(depth) * rows.min(down), columns.min(across)])
    }

    /// The further defines of kernels on channels, or on tensors in lines, that also read or write words of each
    /// channel.
    fn of_channels(format: Format) -> Vec<Define> {
        format.channels().map_or(Vec::new(), |of| define![CHANNELS: of.channels])
    }

    /// Elements in memory of a result with so many pixels, in the format of the operand.
    fn results(&self, format: Format, pixels: usize) -> usize {
        let channels = format.channels().map_or(self.channels, |of| self.channels / of.channels * of.pitch());
        channels * pixels
    }

    /// The kernel of the forward pass, for an operand in this format.
    fn forward(&self, kernel: &'static str, format: Format, results: usize) -> Terms {
        let [extent, _] = self.extents();
        Terms {
            kernel,
            defines: self.defines(format),
            bindings: (1, results),
            results: self.results(format, self.windows()),
            extent,
        }
    }

    /// The kernel of the backward pass, for a cotangent in this format.
    fn backward(&self, kernel: &'static str, format: Format, operands: usize) -> Terms {
        let [_, extent] = self.extents();
        Terms {
            kernel,
            defines: self.defines(format),
            bindings: (operands, 1),
            results: self.results(format, self.pixels()),
            extent,
        }
    }
}

/// The operands and results that the forward pass takes as bf16, for tensors of these shapes.
fn bf16(pool: AnyPool, x: Shape, caps: &Caps) -> Option<Bf16> {
    let g = PoolShape::of(x, pool);
    terms::bf16(&[0], [x, g.output(x)], g.extents()[0], caps)
}

/// The operands and results that the backward pass takes as bf16; its cotangent is operand `dy`.
fn bf16_backward(pool: AnyPool, x: Shape, dy: &'static [usize], caps: &Caps) -> Option<Bf16> {
    let g = PoolShape::of(x, pool);
    terms::bf16(dy, [x, g.output(x)], g.extents()[1], caps)
}
