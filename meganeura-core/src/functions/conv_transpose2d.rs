//! Transposed convolution: the input gradient of a convolution, recorded for its own sake. Its gradients are therefore
//! those of [`Conv2dGradInput`], a convolution and a weight gradient; there is no kernel of its own.

use std::panic::Location;

use crate::ops::conv2d::{Conv2dGradInput, Conv2dOptions, ConvTranspose2dOptions};
use crate::tape::Var;
use crate::{Error, ErrorKind};

impl ConvTranspose2dOptions {
    /// The convolution that this is the transpose of.
    fn convolution(self) -> Conv2dOptions {
        let Self { stride, padding, dilation, groups, .. } = self;
        Conv2dOptions { stride, padding, dilation, groups }
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
        let (x, w) = (self.ty(), weight.ty());
        let shape = match x.dtype == w.dtype && x.dtype.is_float() {
            true => options.output(x.shape, w.shape),
            false => Err(format!("needs floats of one type, not {} and {}", x.dtype, w.dtype)),
        };
        let shape = match shape {
            Ok(shape) => shape,
            Err(message) => {
                let error = Error::new(ErrorKind::Shape, message).in_op("conv_transpose2d").at(Location::caller());
                return self.fail(error.operand(x, self.path()).operand(w, weight.path()));
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

#[cfg(feature = "testing")]
pub(super) mod cases {
    use super::*;
    use crate::functions::case::{Array, Case};

    /// Test cases of every kind of transposed convolution.
    pub(in crate::functions) fn recorded() -> Vec<Case> {
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
    fn naive(arrays: &[Array], options: ConvTranspose2dOptions) -> Array {
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
                let to_column =
                    (column * stride[1] + j * dilation[1]).checked_sub(padding[1]).filter(|&column| column < q);
                if let (Some(row), Some(column)) = (to_row, to_column) {
                    y[((n * o + first + k) * p + row) * q + column] +=
                        x * weight.data[(channel * per_group * kh + k * kh + i) * kw + j];
                }
            }
        }
        Array { shape, data: y }
    }
}
