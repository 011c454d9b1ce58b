//! Maximum and average pooling over the last two axes of images.

mod avg;
mod max;

#[doc(hidden)]
pub use avg::Divisor;
pub use avg::{AvgPool2d, AvgPool2dGrad};
pub use max::{MaxPool2d, MaxPool2dGrad};

use std::fmt;

use super::Bf16;
use super::terms::{self, Terms};
use super::window::{INPUTS, Window, axis_name, expect_axes, named};
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

/// A window over images, per axis `[vertical, horizontal]`.
pub(crate) type Pool2d = Pool<2>;

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

    /// The window along these two axes; one element for an axis that is missing.
    pub(crate) fn plane(&self, axes: [Option<usize>; 2]) -> Pool2d {
        let of = |setting: [usize; D], one| axes.map(|axis| axis.map_or(one, |axis| setting[axis]));
        let (kernel, stride) = (of(self.kernel, 1), of(self.stride, 1));
        let (padding, dilation) = (of(self.padding, 0), of(self.dilation, 1));
        Pool { kernel, stride, padding, dilation, ceil_mode: self.ceil_mode }
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

#[cfg(feature = "onnx")]
impl Pool2d {
    /// The attributes of ONNX's pooling operators for images of this shape. Rounding up is padding at the end.
    fn onnx(&self, x: &TensorType) -> Vec<(&'static str, Attribute)> {
        let ints = |numbers: &[usize]| Attribute::Ints(form::ints(numbers));
        let g = PoolShape::of(x.shape, *self);
        let [rows, columns] = self.padding;
        let (below, right) = (self.along(0).beyond(g.h, g.p), self.along(1).beyond(g.w, g.q));
        vec![
            ("dilations", ints(&self.dilation)),
            ("kernel_shape", ints(&self.kernel)),
            ("pads", ints(&[rows, columns, rows + below, columns + right])),
            ("strides", ints(&self.stride)),
        ]
    }
}

/// All extents of a pooling. `planes` is the number of images times channels.
#[derive(Clone, Copy)]
pub(crate) struct PoolShape {
    pub(crate) planes: usize,
    pub(crate) h: usize,
    pub(crate) w: usize,
    pub(crate) p: usize,
    pub(crate) q: usize,
    pub(crate) pool: Pool2d,
}

impl PoolShape {
    fn new(x: &TensorType, pool: Pool2d) -> Result<Self, String> {
        let output = pool.output(x)?;
        let (&[n, c, h, w], &[.., p, q]) = (x.shape.dims(), output.dims()) else {
            unreachable!("images, as was checked")
        };
        Ok(Self { planes: n * c, h, w, p, q, pool })
    }

    pub(crate) fn of(x: Shape, pool: Pool2d) -> Self {
        Self::new(&TensorType::new(crate::DType::F32, x), pool).expect("checked when recorded")
    }

    pub(crate) fn output(&self, x: Shape) -> Shape {
        x.with(2, self.p).with(3, self.q)
    }

    /// The input pixels that window `(p, q)` covers, as indices in a plane.
    pub(crate) fn window(&self, p: usize, q: usize) -> impl Iterator<Item = usize> {
        let Pool2d { kernel, stride, padding, dilation, .. } = self.pool;
        let (h, w) = (self.h, self.w);
        let along = move |axis: usize, o: usize, extent: usize| {
            (0..kernel[axis])
                .filter_map(move |i| (o * stride[axis] + i * dilation[axis]).checked_sub(padding[axis]))
                .filter(move |&place| place < extent)
        };
        along(0, p, h).flat_map(move |row| along(1, q, w).map(move |column| row * w + column))
    }

    /// The defines of kernels on planes, or on images in lines.
    fn defines(&self, format: Format) -> Vec<Define> {
        let Pool2d { kernel, stride, padding, dilation, .. } = self.pool;
        let side = format.channels().map_or(1, Channels::lines);
        let channels = format.channels().map_or(1, |of| of.channels);
        define![
            N: self.planes / channels, SIDE: side, H: self.h, W: self.w, P: self.p, Q: self.q, KH: kernel[0], KW: kernel[1],
            SH: stride[0], SW: stride[1], PH: padding[0], PW: padding[1], DH: dilation[0], DW: dilation[1],
        ]
    }

    /// The most input elements that a window covers, vertically and horizontally, and the most outputs that cover one
    /// element; both at most the number of taps.
    fn extents(&self) -> [[usize; 2]; 2] {
        let [down, across] = self.pool.kernel;
        [[self.h, self.w], [self.p, self.q]].map(|[rows, columns]| [rows.min(down), columns.min(across)])
    }

    /// The further defines of kernels on planes, or on images in lines, that also read or write words of each channel.
    fn of_channels(format: Format) -> Vec<Define> {
        format.channels().map_or(Vec::new(), |of| define![CHANNELS: of.channels])
    }

    /// Elements in memory of a result with so many pixels, in the format of the operand.
    fn results(&self, format: Format, pixels: usize) -> usize {
        let planes = format.channels().map_or(self.planes, |of| self.planes / of.channels * of.pitch());
        planes * pixels
    }

    /// The kernel of the forward pass, for an operand in this format.
    fn forward(&self, kernel: &'static str, format: Format, results: usize) -> Terms {
        let [extent, _] = self.extents();
        Terms {
            kernel,
            defines: self.defines(format),
            bindings: (1, results),
            results: self.results(format, self.p * self.q),
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
            results: self.results(format, self.h * self.w),
            extent,
        }
    }
}

/// The operands and results that the forward pass takes as bf16, for images of these shapes.
fn bf16(pool: Pool2d, x: Shape, caps: &Caps) -> Option<Bf16> {
    let g = PoolShape::of(x, pool);
    terms::bf16(&[0], [x, g.output(x)], g.extents()[0], caps)
}

/// The operands and results that the backward pass takes as bf16; its cotangent is operand `dy`.
fn bf16_backward(pool: Pool2d, x: Shape, dy: &'static [usize], caps: &Caps) -> Option<Bf16> {
    let g = PoolShape::of(x, pool);
    terms::bf16(dy, [x, g.output(x)], g.extents()[1], caps)
}
