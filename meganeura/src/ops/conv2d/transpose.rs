//! Transposed convolution: the input gradient of a convolution, recorded for its own sake. Its gradients are therefore
//! those of [`Conv2dGradInput`], a convolution and a weight gradient; there is no kernel of its own.

use std::panic::Location;

use super::{Conv2dGradInput, Conv2dOptions};
use crate::tape::Var;
use crate::{Error, ErrorKind, Shape, TensorType};

/// The geometry of a transposed 2-D convolution, per axis `[vertical, horizontal]`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConvTranspose2dOptions {
    /// The distance, in output pixels, between neighbouring input pixels; at least 1.
    pub stride: [usize; 2],
    /// Rows and columns that are cut off each side of the output.
    pub padding: [usize; 2],
    /// Extra rows at the bottom and columns at the right of the output; fewer than the stride or the dilation.
    pub output_padding: [usize; 2],
    /// The distance, in output pixels, between neighbouring weights; at least 1.
    pub dilation: [usize; 2],
    /// The number of groups of channels, each convolved on its own; a divisor of both numbers of channels.
    pub groups: usize,
}

impl Default for ConvTranspose2dOptions {
    fn default() -> Self {
        Self { stride: [1, 1], padding: [0, 0], output_padding: [0, 0], dilation: [1, 1], groups: 1 }
    }
}

impl ConvTranspose2dOptions {
    /// The convolution that this is the transpose of.
    fn convolution(self) -> Conv2dOptions {
        let Self { stride, padding, dilation, groups, .. } = self;
        Conv2dOptions { stride, padding, dilation, groups }
    }

    /// The output's shape, or why operands of these types have none.
    fn output(self, x: TensorType, weight: TensorType) -> Result<Shape, String> {
        if x.dtype != weight.dtype || !x.dtype.is_float() {
            return Err(format!("needs floats of one type, not {} and {}", x.dtype, weight.dtype));
        }
        let &[n, c, h, w] = x.shape.dims() else {
            return Err(format!("the input must be [N, C, H, W], it is {}", x.shape));
        };
        let &[inputs, per_group, kh, kw] = weight.shape.dims() else {
            return Err(format!("the weight must be [C, O/groups, KH, KW], it is {}", weight.shape));
        };
        if self.groups == 0 || c % self.groups != 0 {
            return Err(format!("{} groups do not divide {c} input channels", self.groups));
        }
        if inputs != c {
            return Err(format!("the input has {c} channels, the weight expects {inputs}"));
        }
        let height = self.extent(0, "height", h, kh)?;
        let width = self.extent(1, "width", w, kw)?;
        Ok(Shape::from([n, per_group * self.groups, height, width]))
    }

    /// Output pixels along one axis, or why there are none.
    fn extent(self, axis: usize, name: &str, extent: usize, kernel: usize) -> Result<usize, String> {
        let of_axis = |pair: [usize; 2]| pair[axis];
        let [stride, padding, more, dilation] =
            [self.stride, self.padding, self.output_padding, self.dilation].map(of_axis);
        if stride == 0 || dilation == 0 || kernel == 0 {
            return Err(format!("{name}: kernel {kernel}, stride {stride} and dilation {dilation} must be at least 1"));
        }
        if more >= stride && more >= dilation {
            return Err(format!(
                "{name}: the output padding, {more}, must be less than the stride, {stride}, or the dilation, {dilation}"
            ));
        }
        let reach = dilation.checked_mul(kernel - 1).and_then(|gaps| gaps.checked_add(more)?.checked_add(1));
        let full = stride.checked_mul(extent - 1).and_then(|steps| steps.checked_add(reach?));
        let (Some(full), Some(cut)) = (full, padding.checked_mul(2)) else {
            return Err(format!(
                "{name}: kernel {kernel}, stride {stride}, padding {padding} or dilation {dilation} is too large"
            ));
        };
        if full <= cut {
            return Err(format!("{name}: the padding cuts off {cut} pixels, the output has {full} before that"));
        }
        Ok(full - cut)
    }
}

impl Var {
    /// Transposed 2-D convolution with a weight `[C, O/groups, KH, KW]`:
    /// `y[n,o,p,q] = Σ x[n,c,h,w] · weight[c,o,i,j]` over all `h·s + i·d − pad = p`, `w·s + j·d − pad = q`
    ///
    /// Shapes: `x [N,C,H,W]` → `y [N,O,P,Q]` with `P = (H − 1)·s − 2·pad + d·(KH − 1) + output_pad + 1`, and `Q`
    /// likewise.
    #[must_use]
    #[track_caller]
    pub fn conv_transpose2d(&self, weight: &Self, options: ConvTranspose2dOptions) -> Self {
        if let Some(error) = weight.error() {
            return self.fail(error);
        }
        let shape = match options.output(self.ty(), weight.ty()) {
            Ok(shape) => shape,
            Err(message) => {
                let error = Error::new(ErrorKind::Shape, message).in_op("conv_transpose2d").at(Location::caller());
                return self.fail(error.operand(self.ty(), self.path()).operand(weight.ty(), weight.path()));
            }
        };
        // Where the output padding reaches the stride, the convolution of the output has pixels more than `self`:
        // zeros.
        let [below, right] = [0, 1].map(|axis| options.output_padding[axis] / options.stride[axis]);
        let grad = Conv2dGradInput { options: options.convolution(), input: shape };
        if [below, right] == [0, 0] {
            return self.record(grad, &[self, weight]);
        }
        let padded = self.pad(&[(0, 0), (0, 0), (0, below), (0, right)], 0.0);
        self.record(grad, &[&padded, weight])
    }
}

/// Test cases of every kind of transposed convolution.
#[cfg(feature = "testing")]
pub(super) fn cases() -> Vec<crate::ops::case::Case> {
    use crate::ops::case::Case;
    let of = |stride, padding, output_padding, dilation, groups| ConvTranspose2dOptions {
        stride,
        padding,
        output_padding,
        dilation,
        groups,
    };
    [
        (ConvTranspose2dOptions::default(), [1, 1, 1, 1], [1, 1, 1, 1]),
        (ConvTranspose2dOptions::default(), [2, 3, 4, 5], [3, 2, 3, 3]),
        // doubling an image, as decoders do
        (of([2, 2], [1, 1], [1, 1], [1, 1], 1), [2, 3, 4, 5], [3, 4, 3, 3]),
        (of([2, 2], [0, 0], [0, 0], [1, 1], 2), [1, 4, 3, 5], [4, 3, 2, 2]),
        // per axis
        (of([2, 3], [1, 0], [0, 2], [1, 2], 1), [2, 2, 3, 4], [2, 3, 4, 2]),
        (of([3, 1], [2, 1], [2, 0], [2, 3], 2), [2, 4, 2, 5], [4, 1, 3, 2]),
        // output padding from the stride on, below the dilation
        (of([1, 2], [0, 1], [1, 2], [2, 3], 1), [1, 2, 3, 3], [2, 2, 2, 3]),
        (of([1, 1], [1, 2], [2, 1], [3, 2], 3), [2, 3, 4, 3], [3, 2, 2, 3]),
    ]
    .map(|(options, x, w)| {
        let build = move |x: &[Var]| x[0].conv_transpose2d(&x[1], options);
        Case::recorded(&format!("conv_transpose2d {options:?}"), &[&x, &w], build)
            .naive(move |arrays| vec![naive(arrays, options)])
    })
    .into()
}

/// Each input pixel times the kernel, added to where it lands.
#[cfg(feature = "testing")]
fn naive(arrays: &[crate::ops::case::Array], options: ConvTranspose2dOptions) -> crate::ops::case::Array {
    let [x, weight] = arrays else { unreachable!("an input and a weight") };
    let (&[_, c, h, w], &[_, per_group, kh, kw]) = (x.shape.dims(), weight.shape.dims()) else {
        unreachable!("cases fit")
    };
    let ConvTranspose2dOptions { stride, padding, output_padding, dilation, groups } = options;
    let along = |axis: usize, extent: usize, kernel: usize| {
        (extent - 1) * stride[axis] + dilation[axis] * (kernel - 1) + output_padding[axis] + 1 - 2 * padding[axis]
    };
    let (o, p, q) = (per_group * groups, along(0, h, kh), along(1, w, kw));
    let shape = x.shape.with(1, o).with(2, p).with(3, q);
    let mut y = vec![0.0; shape.elements()];
    for (at, x) in x.data.iter().enumerate() {
        let (column, row, channel, n) = (at % w, at / w % h, at / (w * h) % c, at / (w * h * c));
        let first = channel / (c / groups) * per_group;
        for tap in 0..per_group * kh * kw {
            let (j, i, k) = (tap % kw, tap / kw % kh, tap / (kw * kh));
            let to_row = (row * stride[0] + i * dilation[0]).checked_sub(padding[0]).filter(|&row| row < p);
            let to_column = (column * stride[1] + j * dilation[1]).checked_sub(padding[1]).filter(|&column| column < q);
            if let (Some(row), Some(column)) = (to_row, to_column) {
                y[((n * o + first + k) * p + row) * q + column] +=
                    x * weight.data[(channel * per_group * kh + k * kh + i) * kw + j];
            }
        }
    }
    crate::ops::case::Array { shape, data: y }
}
