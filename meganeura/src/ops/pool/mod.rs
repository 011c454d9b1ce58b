//! Maximum and average pooling over the last two axes of images.

mod avg;
mod max;

pub use avg::{AvgPool2d, AvgPool2dGrad};
pub use max::{MaxPool2d, MaxPool2dGrad};

use super::Bf16;
use super::terms::{self, Terms};
use super::window::Window;
use crate::kernel::launch::{Caps, Format, LINE, define};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Attribute};
use crate::{Shape, TensorType};

/// A window and its steps, per axis `[vertical, horizontal]`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Pool2d {
    pub(crate) kernel: [usize; 2],
    pub(crate) stride: [usize; 2],
    pub(crate) padding: [usize; 2],
    pub(crate) dilation: [usize; 2],
}

#[cfg(feature = "onnx")]
impl Pool2d {
    /// The attributes of ONNX's pooling operators.
    fn onnx(self) -> Vec<(&'static str, Attribute)> {
        let Self { kernel, stride, padding: [rows, columns], dilation } = self;
        let ints = |numbers: &[usize]| Attribute::Ints(form::ints(numbers));
        vec![
            ("dilations", ints(&dilation)),
            ("kernel_shape", ints(&kernel)),
            ("pads", ints(&[rows, columns, rows, columns])),
            ("strides", ints(&stride)),
        ]
    }
}

/// All extents of a pooling. `planes` is the number of images times channels.
#[derive(Clone, Copy)]
struct Geometry {
    planes: usize,
    h: usize,
    w: usize,
    p: usize,
    q: usize,
    pool: Pool2d,
}

impl Geometry {
    fn new(x: &TensorType, pool: Pool2d) -> Result<Self, String> {
        let &[n, c, h, w] = x.shape.dims() else {
            return Err(format!("the input must be [N, C, H, W], it is {}", x.shape));
        };
        if !x.dtype.is_float() {
            return Err(format!("needs floats, the operand holds {}", x.dtype));
        }
        let Pool2d { kernel, stride, padding, dilation } = pool;
        if padding[0] > kernel[0] / 2 || padding[1] > kernel[1] / 2 {
            return Err(format!("padding {padding:?} is more than half of the window {kernel:?}"));
        }
        let along = |axis: usize| {
            let [kernel, stride, padding, dilation] = [kernel, stride, padding, dilation].map(|of| of[axis]);
            Window { kernel, stride, padding, dilation }
        };
        let p = along(0).slide("height", h, false)?;
        let q = along(1).slide("width", w, false)?;
        Ok(Self { planes: n * c, h, w, p, q, pool })
    }

    fn of(x: Shape, pool: Pool2d) -> Self {
        Self::new(&TensorType::new(crate::DType::F32, x), pool).expect("checked when recorded")
    }

    fn output(&self, x: Shape) -> Shape {
        x.with(2, self.p).with(3, self.q)
    }

    /// The input pixels that window `(p, q)` covers, as indices in a plane.
    fn window(&self, p: usize, q: usize) -> impl Iterator<Item = usize> {
        let Pool2d { kernel, stride, padding, dilation } = self.pool;
        let (h, w) = (self.h, self.w);
        let along = move |axis: usize, o: usize, extent: usize| {
            (0..kernel[axis])
                .filter_map(move |i| (o * stride[axis] + i * dilation[axis]).checked_sub(padding[axis]))
                .filter(move |&place| place < extent)
        };
        along(0, p, h).flat_map(move |row| along(1, q, w).map(move |column| row * w + column))
    }

    /// The defines of kernels on planes, or on images in lines.
    fn defines(&self, format: Format) -> Vec<(&'static str, String)> {
        let Pool2d { kernel, stride, padding, dilation } = self.pool;
        let side = format.channels().map_or(1, |lines| lines.channels / LINE);
        let planes = format.channels().map_or(self.planes, |lines| self.planes / lines.channels);
        define![
            N: planes, SIDE: side, H: self.h, W: self.w, P: self.p, Q: self.q, KH: kernel[0], KW: kernel[1],
            SH: stride[0], SW: stride[1], PH: padding[0], PW: padding[1], DH: dilation[0], DW: dilation[1],
        ]
    }

    /// The most input elements that a window covers, vertically and horizontally, and the most outputs that cover one
    /// element; both at most the number of taps.
    fn extents(&self) -> [[usize; 2]; 2] {
        let [down, across] = self.pool.kernel;
        [[self.h, self.w], [self.p, self.q]].map(|[rows, columns]| [rows.min(down), columns.min(across)])
    }

    /// The kernel of the forward pass, for an operand in this format.
    fn forward(&self, kernel: &'static str, format: Format, results: usize) -> Terms {
        let [extent, _] = self.extents();
        Terms {
            kernel,
            defines: self.defines(format),
            bindings: (1, results),
            results: self.planes * self.p * self.q,
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
            results: self.planes * self.h * self.w,
            extent,
        }
    }
}

/// The operands and results that the forward pass takes as bf16, for images of these shapes.
fn bf16(pool: Pool2d, x: Shape, caps: &Caps) -> Option<Bf16> {
    let g = Geometry::of(x, pool);
    terms::bf16(&[0], [x, g.output(x)], g.extents()[0], caps)
}

/// The operands and results that the backward pass takes as bf16; its cotangent is operand `dy`.
fn bf16_backward(pool: Pool2d, x: Shape, dy: &'static [usize], caps: &Caps) -> Option<Bf16> {
    let g = Geometry::of(x, pool);
    terms::bf16(dy, [x, g.output(x)], g.extents()[1], caps)
}

/// Windows that overlap, leave remainders, and extend into the padding.
#[cfg(feature = "testing")]
fn cases() -> Vec<(Pool2d, [usize; 4])> {
    let of = |kernel, stride, padding, dilation| Pool2d { kernel, stride, padding, dilation };
    vec![
        (of([1, 1], [1, 1], [0, 0], [1, 1]), [1, 1, 1, 1]),
        (of([2, 2], [2, 2], [0, 0], [1, 1]), [2, 3, 6, 8]),
        (of([2, 2], [2, 2], [0, 0], [1, 1]), [1, 2, 7, 5]),
        (of([3, 3], [2, 2], [1, 1], [1, 1]), [2, 2, 8, 7]),
        (of([3, 2], [1, 3], [1, 0], [1, 1]), [1, 3, 5, 11]),
        (of([3, 3], [1, 1], [0, 0], [1, 1]), [2, 1, 3, 41]),
        // channels that divide into lines
        (of([3, 2], [2, 3], [1, 1], [1, 1]), [2, 24, 9, 7]),
    ]
}
