//! Convolution of sequences, images and volumes. It and its two gradients are linear in both operands and closed under
//! differentiation, so second derivatives come for free.

use super::Vjp;
use crate::ops::conv2d::{Conv, ConvGradInput, ConvGradWeight};
use crate::ops::{Conv1dOptions, Conv2dOptions, Conv3dOptions, ConvOptions};
use crate::{Result, Var};

impl Var {
    /// 1-D convolution without bias, with a weight `[O, C/groups, K]`: `y[n,o,p] = Σ x[n,c,p·s+i·d−pad] · w[o,c,i]`
    ///
    /// Shapes: `x [N, C, L]` → `y [N, O, P]` with `P = ⌊(L + 2·pad − d·(K−1) − 1)/s⌋ + 1`. Other shapes, and a kernel
    /// that is larger than the padded input, are an error.
    #[must_use]
    #[track_caller]
    pub fn conv1d(&self, weight: &Self, options: Conv1dOptions) -> Self {
        self.convolve(weight, options)
    }

    /// 2-D convolution without bias: each output pixel is the sum of the weights times the input pixels under them.
    ///
    /// Shapes: `x [N, C, H, W]`, `weight [O, C/groups, KH, KW]` → `[N, O, P, Q]` with
    /// `P = ⌊(H + 2·padding − dilation·(KH − 1) − 1)/stride⌋ + 1`, and `Q` likewise. Other shapes, and a kernel that is
    /// larger than the padded input, are an error.
    #[must_use]
    #[track_caller]
    pub fn conv2d(&self, weight: &Self, options: Conv2dOptions) -> Self {
        self.convolve(weight, options)
    }

    /// 3-D convolution without bias, with a weight `[O, C/groups, KD, KH, KW]`:
    /// `y[n,o,z,p,q] = Σ x[n,c,z·s+k·d−pad,p·s+i·d−pad,q·s+j·d−pad] · w[o,c,k,i,j]`
    ///
    /// Shapes: `x [N, C, D, H, W]` → `y [N, O, Z, P, Q]` with `Z = ⌊(D + 2·pad − d·(KD−1) − 1)/s⌋ + 1`, and `P`, `Q`
    /// likewise. Other shapes, and a kernel that is larger than the padded input, are an error.
    #[must_use]
    #[track_caller]
    pub fn conv3d(&self, weight: &Self, options: Conv3dOptions) -> Self {
        self.convolve(weight, options)
    }

    /// Convolution over `D` axes.
    #[must_use]
    #[track_caller]
    #[doc(hidden)]
    pub fn convolve<const D: usize>(&self, weight: &Self, options: ConvOptions<D>) -> Self {
        self.record(Conv(options.into()), &[self, weight])
    }
}

impl Vjp for Conv {
    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let ([x, w], Some(dy)) = (x, &dy[0]) else { return Ok(vec![None, None]) };
        let dx = dy.record(ConvGradInput { options: self.0, input: x.shape() }, &[dy, w]);
        let dw = dy.record(ConvGradWeight { options: self.0, weight: w.shape() }, &[x, dy]);
        Ok(vec![Some(dx), Some(dw)])
    }
}

impl Vjp for ConvGradInput {
    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let ([cotangent, w], Some(d)) = (x, &dy[0]) else { return Ok(vec![None, None]) };
        let d_cotangent = d.record(Conv(self.options), &[d, w]);
        let dw = d.record(ConvGradWeight { options: self.options, weight: w.shape() }, &[d, cotangent]);
        Ok(vec![Some(d_cotangent), Some(dw)])
    }
}

impl Vjp for ConvGradWeight {
    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let ([x, cotangent], Some(d)) = (x, &dy[0]) else { return Ok(vec![None, None]) };
        let dx = d.record(ConvGradInput { options: self.options, input: x.shape() }, &[cotangent, d]);
        let d_cotangent = d.record(Conv(self.options), &[x, d]);
        Ok(vec![Some(dx), Some(d_cotangent)])
    }
}

#[cfg(feature = "testing")]
pub(super) mod cases {
    use super::*;
    use crate::Shape;
    use crate::functions::case::{Array, Case, Special, Tested};
    use crate::ops::conv2d::AnyConvOptions;
    use crate::ops::conv2d::geometry::ConvShape;

    /// The shapes that all three passes are tested with: everything that was ever wrong.
    pub(crate) fn cases(case: impl Fn(AnyConvOptions, Shape, Shape) -> Case) -> Vec<Case> {
        let of_images = images().into_iter().map(|(options, x, w)| (options.into(), Shape::from(x), Shape::from(w)));
        let all = of_images.chain(sequences()).chain(volumes());
        all.map(|(options, x, w)| case(options, x, w)).collect()
    }

    fn images() -> Vec<(Conv2dOptions, [usize; 4], [usize; 4])> {
        let of = |stride, padding, dilation, groups| Conv2dOptions { stride, padding, dilation, groups };
        let plain = Conv2dOptions::default();
        vec![
            (plain, [1, 1, 1, 1], [1, 1, 1, 1]),
            (plain, [2, 3, 5, 4], [4, 3, 1, 1]),
            (of([1, 1], [1, 1], [1, 1], 1), [2, 3, 6, 5], [4, 3, 3, 3]),
            // channels in fours
            (of([1, 1], [1, 1], [1, 1], 1), [2, 4, 6, 5], [8, 4, 3, 3]),
            (of([2, 1], [1, 2], [1, 2], 2), [2, 8, 7, 6], [16, 4, 2, 3]),
            // … and in eights
            (of([1, 1], [1, 1], [1, 1], 1), [2, 8, 6, 5], [16, 8, 3, 3]),
            (of([2, 1], [1, 2], [1, 2], 2), [2, 16, 7, 6], [32, 8, 2, 3]),
            // … without stride: dilated groups beyond a tile of rows, more padding than the kernel needs, many taps
            (of([1, 1], [2, 0], [1, 2], 2), [2, 16, 7, 9], [144, 8, 3, 2]),
            (of([1, 1], [3, 3], [1, 1], 1), [3, 40, 5, 4], [8, 40, 3, 3]),
            (of([1, 1], [2, 2], [1, 1], 1), [1, 8, 6, 7], [8, 8, 5, 5]),
            (of([2, 1], [3, 2], [1, 1], 1), [2, 16, 15, 12], [40, 16, 7, 5]),
            // … in sixteens: narrow images by turns, wide ones in two tiles, a dilated one with more rows than taps
            // reach, whole tiles
            (of([1, 1], [1, 1], [1, 1], 1), [3, 16, 6, 5], [32, 16, 3, 3]),
            (of([1, 1], [0, 1], [1, 1], 2), [1, 64, 5, 40], [96, 32, 2, 3]),
            (of([1, 1], [3, 0], [2, 1], 1), [5, 32, 3, 4], [16, 32, 3, 2]),
            (of([1, 1], [1, 1], [1, 1], 1), [2, 128, 8, 16], [128, 128, 3, 3]),
            // … 3×3 without stride, channels beyond sixteen with a rest: padding by axis, several blocks of tiles
            (of([1, 1], [2, 0], [1, 1], 1), [2, 21, 5, 9], [18, 21, 3, 3]),
            (of([1, 1], [0, 1], [1, 1], 1), [9, 16, 13, 6], [50, 16, 3, 3]),
            // extents that are multiples of the strides, in images of several tiles: tiles of the input's gradient that
            // skip taps, within a phase or in two
            (of([2, 2], [1, 1], [1, 1], 1), [2, 8, 12, 16], [16, 8, 3, 3]),
            (of([3, 2], [0, 2], [2, 1], 2), [4, 8, 15, 12], [32, 4, 2, 5]),
            (of([2, 2], [0, 0], [1, 1], 1), [4, 4, 8, 8], [16, 4, 1, 1]),
            // few channels beside many, as where networks begin and end
            (of([1, 1], [1, 1], [1, 1], 1), [2, 16, 9, 10], [3, 16, 3, 3]),
            (of([2, 1], [1, 2], [1, 1], 1), [2, 40, 7, 9], [5, 40, 3, 2]),
            (of([2, 2], [1, 1], [1, 1], 1), [2, 3, 9, 8], [16, 3, 3, 3]),
            // beyond one tile of every size
            (of([1, 1], [1, 1], [1, 1], 1), [2, 5, 9, 10], [35, 5, 3, 3]),
            (of([2, 1], [2, 0], [1, 1], 2), [3, 8, 11, 13], [72, 4, 3, 2]),
            // padding other than (k − 1)/2
            (of([1, 1], [2, 0], [1, 1], 1), [1, 2, 4, 5], [3, 2, 3, 2]),
            // several panels of pixels; strides and dilations that share no factor, or do; many images and groups
            (of([2, 2], [3, 3], [1, 1], 1), [1, 3, 37, 35], [20, 3, 7, 7]),
            (of([3, 2], [2, 1], [2, 4], 1), [2, 3, 13, 14], [5, 3, 3, 3]),
            (of([1, 1], [0, 1], [1, 1], 2), [9, 4, 6, 5], [14, 2, 3, 2]),
            // … one of which begins in the padding between two lines
            (of([1, 1], [24, 24], [24, 24], 1), [8, 2, 4, 4], [3, 2, 3, 3]),
            // stride with a remainder, even sizes
            (of([2, 2], [1, 1], [1, 1], 1), [2, 2, 8, 8], [3, 2, 3, 3]),
            (of([3, 2], [0, 1], [1, 1], 1), [2, 1, 9, 8], [2, 1, 2, 4]),
            // 1×1 in several panels of pixels, of more channels than one takes at once, in groups
            (plain, [1, 20, 19, 17], [53, 20, 1, 1]),
            (of([1, 1], [0, 0], [1, 1], 2), [2, 6, 9, 15], [14, 3, 1, 1]),
            // … with a stride, as in residual shortcuts
            (of([2, 2], [0, 0], [1, 1], 1), [2, 3, 5, 5], [2, 3, 1, 1]),
            (of([1, 1], [2, 2], [2, 2], 1), [1, 2, 6, 6], [2, 2, 3, 3]),
            (of([2, 1], [1, 2], [1, 3], 1), [1, 2, 5, 9], [2, 2, 3, 2]),
            // grouped, depthwise
            (of([1, 1], [1, 1], [1, 1], 2), [2, 4, 5, 5], [6, 2, 3, 3]),
            (of([1, 1], [1, 1], [1, 1], 3), [1, 3, 4, 6], [3, 1, 3, 3]),
            // the kernel covers the whole padded input
            (of([1, 1], [1, 0], [1, 1], 1), [2, 2, 2, 4], [2, 2, 4, 4]),
            // many small images, in groups or not
            (of([1, 2], [1, 0], [1, 1], 2), [19, 4, 3, 4], [6, 2, 2, 3]),
            (of([1, 1], [1, 1], [1, 1], 1), [40, 2, 8, 8], [3, 2, 3, 3]),
            // depthwise, in eights: a stride, dilated strides, large kernels, one row, one tap, more padding than taps
            // span, a single pixel, a stride beyond tiles
            (of([1, 1], [1, 1], [1, 1], 8), [2, 8, 5, 7], [8, 1, 3, 3]),
            (of([2, 2], [1, 1], [1, 1], 16), [3, 16, 9, 8], [16, 1, 3, 3]),
            (of([2, 3], [2, 3], [1, 2], 8), [2, 8, 10, 13], [8, 1, 3, 4]),
            (of([2, 1], [4, 2], [3, 2], 24), [1, 24, 9, 9], [24, 1, 5, 3]),
            (of([1, 1], [3, 3], [1, 1], 40), [1, 40, 8, 9], [40, 1, 7, 7]),
            (of([2, 2], [5, 5], [1, 1], 8), [1, 8, 12, 7], [8, 1, 11, 11]),
            (of([1, 1], [0, 7], [1, 1], 8), [2, 8, 3, 9], [8, 1, 1, 15]),
            (of([1, 2], [0, 0], [1, 1], 8), [2, 8, 3, 3], [8, 1, 1, 1]),
            (of([1, 1], [3, 0], [1, 1], 8), [1, 8, 4, 5], [8, 1, 3, 2]),
            (of([1, 1], [1, 1], [1, 1], 8), [2, 8, 1, 1], [8, 1, 3, 3]),
            (of([5, 3], [2, 2], [1, 1], 8), [2, 8, 11, 9], [8, 1, 5, 5]),
            // … and not in eights
            (of([3, 2], [2, 3], [1, 1], 12), [2, 12, 11, 10], [12, 1, 5, 7]),
            (of([1, 2], [1, 2], [1, 2], 100), [1, 100, 4, 5], [100, 1, 3, 3]),
            (of([1, 1], [1, 1], [1, 1], 60), [3, 60, 8, 3], [60, 1, 3, 3]),
            // … with square windows: strides of 2 and more padding than windows have taps, several vectors of columns
            (of([2, 2], [3, 3], [1, 1], 5), [2, 5, 17, 70], [5, 1, 7, 7]),
            (of([2, 2], [2, 6], [1, 1], 35), [2, 35, 12, 13], [35, 1, 5, 5]),
            (of([1, 1], [4, 1], [1, 1], 3), [1, 3, 8, 40], [3, 1, 3, 3]),
            (of([2, 2], [1, 1], [1, 1], 8), [2, 8, 9, 10], [16, 1, 3, 3]),
            // multipliers that divide a line and not, and a whole line of outputs
            (of([2, 1], [1, 1], [1, 1], 8), [2, 8, 7, 6], [16, 1, 3, 3]),
            (of([1, 2], [1, 1], [1, 1], 8), [2, 8, 5, 6], [24, 1, 3, 3]),
            (of([1, 1], [1, 1], [1, 1], 8), [1, 8, 4, 5], [64, 1, 3, 3]),
            // groups of few channels, whose lines are whole or not
            (of([1, 1], [1, 1], [1, 1], 4), [2, 16, 6, 5], [16, 4, 3, 3]),
            (of([2, 2], [1, 1], [1, 1], 8), [2, 16, 7, 9], [32, 2, 3, 3]),
            (of([1, 1], [1, 1], [1, 1], 8), [1, 24, 5, 5], [24, 3, 3, 3]),
            (of([2, 1], [1, 0], [1, 2], 2), [2, 16, 6, 7], [24, 8, 3, 3]),
            // hundreds of pixels, a stride apart or not: several strips of output channels, three phases of an axis,
            // wide rows of one channel, more taps than one pass sums
            (of([2, 2], [1, 1], [1, 1], 1), [2, 20, 40, 37], [70, 20, 3, 3]),
            (of([2, 3], [2, 1], [1, 1], 3), [1, 6, 40, 52], [9, 2, 5, 3]),
            (of([2, 2], [1, 1], [1, 1], 18), [2, 18, 41, 70], [18, 1, 3, 3]),
            (of([1, 1], [2, 2], [1, 1], 1), [2, 8, 24, 40], [33, 8, 5, 5]),
            (of([1, 2], [2, 2], [1, 1], 3), [2, 3, 9, 75], [6, 1, 5, 5]),
            // widths at which reciprocal arithmetic goes wrong
            (of([1, 1], [1, 1], [1, 1], 1), [1, 1, 3, 41], [2, 1, 3, 3]),
            (of([1, 2], [1, 1], [1, 1], 1), [1, 1, 2, 55], [1, 1, 3, 3]),
        ]
    }

    fn sequences() -> Vec<(AnyConvOptions, Shape, Shape)> {
        let of = |stride, padding, dilation, groups| Conv1dOptions {
            stride: [stride],
            padding: [padding],
            dilation: [dilation],
            groups,
        };
        [
            (Conv1dOptions::default(), [1, 1, 1], [1, 1, 1]),
            (of(1, 1, 1, 1), [2, 3, 9], [5, 3, 3]),
            (of(3, 2, 2, 2), [2, 4, 13], [6, 2, 4]),
            // the kernel covers more than the input; one pixel remains
            (of(1, 3, 1, 1), [3, 2, 1], [2, 2, 7]),
            (of(1, 0, 1, 1), [2, 3, 5], [4, 3, 5]),
            // channels in lines, and padded to them: long and short sequences, strides, dilation, one tap
            (of(1, 1, 1, 1), [2, 16, 70], [24, 16, 3]),
            (of(2, 3, 2, 2), [3, 32, 19], [16, 16, 5]),
            (of(1, 0, 1, 1), [5, 10, 7], [60, 10, 1]),
            (of(2, 0, 1, 1), [2, 8, 9], [16, 8, 1]),
            (of(1, 8, 4, 1), [1, 24, 33], [8, 24, 5]),
            (of(2, 1, 1, 1), [4, 8, 64], [16, 8, 3]),
            // begins and ends of networks
            (of(2, 3, 1, 1), [3, 3, 21], [16, 3, 7]),
            (of(1, 1, 1, 1), [3, 16, 21], [3, 16, 3]),
            // depthwise, and groups of few channels
            (of(1, 2, 1, 5), [2, 5, 11], [5, 1, 5]),
            (of(2, 4, 3, 16), [2, 16, 23], [16, 1, 3]),
            (of(1, 15, 1, 24), [2, 24, 40], [24, 1, 31]),
            (of(1, 1, 1, 4), [2, 16, 9], [32, 4, 3]),
        ]
        .map(|(options, x, w)| (options.into(), Shape::from(x), Shape::from(w)))
        .into()
    }

    fn volumes() -> Vec<(AnyConvOptions, Shape, Shape)> {
        let of = |stride, padding, dilation, groups| Conv3dOptions { stride, padding, dilation, groups };
        [
            (Conv3dOptions::default(), [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]),
            (of([1, 1, 1], [1, 1, 1], [1, 1, 1], 1), [2, 3, 4, 5, 3], [4, 3, 3, 3, 3]),
            (of([2, 1, 3], [1, 2, 0], [2, 1, 2], 2), [2, 4, 6, 3, 7], [6, 2, 2, 3, 2]),
            // one tap per axis, in turn; a stride along the depth alone
            (of([1, 1, 1], [1, 0, 0], [1, 1, 1], 1), [2, 2, 3, 4, 2], [3, 2, 3, 1, 1]),
            (of([3, 1, 1], [0, 1, 1], [1, 1, 1], 1), [1, 2, 7, 3, 4], [3, 2, 1, 3, 3]),
            (of([1, 2, 2], [0, 0, 0], [1, 1, 1], 1), [2, 3, 2, 4, 5], [4, 3, 1, 1, 1]),
            // the kernel covers the whole padded input, and planes of padding alone
            (of([1, 1, 1], [1, 1, 0], [1, 1, 1], 1), [2, 2, 1, 2, 3], [2, 2, 3, 4, 3]),
            (of([2, 1, 1], [4, 1, 1], [1, 1, 1], 1), [1, 2, 3, 3, 3], [3, 2, 2, 3, 3]),
            // channels in fours and eights, in groups and not, with strides of each kind
            (of([1, 1, 1], [1, 1, 1], [1, 1, 1], 1), [2, 4, 3, 6, 5], [8, 4, 3, 3, 3]),
            (of([1, 1, 1], [1, 1, 1], [1, 1, 1], 1), [2, 16, 4, 6, 5], [24, 16, 3, 3, 3]),
            (of([2, 2, 2], [1, 1, 1], [1, 1, 1], 1), [2, 16, 5, 6, 7], [16, 16, 3, 3, 3]),
            (of([1, 2, 1], [0, 1, 2], [1, 1, 2], 2), [2, 32, 3, 7, 6], [16, 16, 2, 3, 3]),
            (of([2, 1, 1], [1, 0, 0], [2, 1, 1], 1), [3, 10, 6, 3, 4], [60, 10, 2, 1, 1]),
            (of([3, 3, 3], [1, 1, 1], [1, 1, 1], 1), [1, 8, 7, 7, 8], [8, 8, 3, 3, 3]),
            (of([2, 2, 2], [1, 1, 1], [1, 1, 1], 1), [2, 4, 8, 8, 8], [16, 4, 3, 3, 3]),
            (of([2, 1, 1], [1, 1, 1], [1, 1, 1], 1), [1, 4, 4, 8, 8], [16, 4, 3, 3, 3]),
            // more than a few pixels: planes of padding left out or not, rows of whole vectors, with phases
            (of([1, 1, 1], [2, 1, 1], [1, 1, 1], 1), [1, 4, 5, 9, 11], [9, 4, 5, 3, 3]),
            (of([1, 1, 1], [1, 1, 1], [1, 1, 1], 1), [1, 8, 4, 9, 16], [20, 8, 3, 3, 3]),
            (of([2, 2, 2], [1, 2, 1], [1, 1, 1], 2), [2, 8, 6, 12, 32], [32, 4, 3, 4, 3]),
            // 3×3 within planes, in sixteens: along the depth a stride, dilation, padding beyond the kernel
            (of([2, 1, 1], [1, 2, 0], [2, 1, 1], 1), [3, 16, 7, 9, 6], [18, 16, 2, 3, 3]),
            (of([1, 1, 1], [3, 0, 1], [1, 1, 1], 1), [1, 17, 2, 9, 14], [16, 17, 2, 3, 3]),
            // begins and ends of networks, many small volumes
            (of([1, 2, 2], [1, 1, 1], [1, 1, 1], 1), [2, 3, 3, 7, 6], [16, 3, 3, 3, 3]),
            (of([1, 1, 1], [1, 1, 1], [1, 1, 1], 1), [2, 16, 3, 5, 4], [3, 16, 3, 3, 3]),
            (of([1, 1, 1], [1, 0, 1], [1, 1, 1], 1), [40, 2, 2, 3, 3], [3, 2, 2, 3, 3]),
            // depthwise, with a multiplier, and groups of few channels
            (of([1, 1, 1], [1, 1, 1], [1, 1, 1], 3), [2, 3, 4, 5, 6], [3, 1, 3, 3, 3]),
            (of([1, 1, 1], [1, 1, 1], [1, 1, 1], 16), [2, 16, 3, 5, 7], [16, 1, 3, 3, 3]),
            (of([2, 2, 2], [2, 1, 2], [2, 1, 1], 8), [2, 8, 6, 7, 8], [16, 1, 3, 3, 5]),
            (of([2, 1, 2], [1, 1, 1], [1, 2, 1], 4), [2, 16, 5, 6, 5], [16, 4, 3, 3, 3]),
        ]
        .map(|(options, x, w)| (options.into(), Shape::from(x), Shape::from(w)))
        .into()
    }

    /// The definition, term by term: `y`, and for a given `dy` the gradients `dx` and `dw`.
    fn naive(arrays: &[Array], options: AnyConvOptions, x_shape: Shape, w_shape: Shape) -> Vec<Array> {
        let y_shape = ConvShape::new(x_shape, w_shape, options).expect("cases fit").output();
        let (x, w) = (&arrays[0].data, &arrays[1].data);
        let dy = arrays.get(2).map_or_else(|| vec![0.0; y_shape.elements()], |dy| dy.data.clone());
        let mut y = vec![0.0; y_shape.elements()];
        let (mut dx, mut dw) = (vec![0.0; x_shape.elements()], vec![0.0; w_shape.elements()]);
        let options = options.all();
        let (channels, outputs, per_group) = (x_shape[1], w_shape[0], w_shape[1]);
        // Places within a channel, by coordinates, and back; of three axes, whose first may be missing.
        let extents = |shape: Shape| {
            let mut all = [1; 3];
            all[5 - shape.rank()..].copy_from_slice(&shape.dims()[2..]);
            all
        };
        let coordinates = |at: usize, [_, h, w]: [usize; 3]| [at / (h * w), at / w % h, at % w];
        let [inside, taps, outside] = [x_shape, w_shape, y_shape].map(extents);
        let [of_input, of_kernel, of_output] = [inside, taps, outside].map(|all| all.iter().product::<usize>());
        for out in 0..y.len() {
            let (o, n) = (out / of_output % outputs, out / (of_output * outputs));
            let group = o / (outputs / options.groups);
            let place = coordinates(out % of_output, outside);
            for tap in 0..per_group * of_kernel {
                let (c, k) = (tap / of_kernel, coordinates(tap % of_kernel, taps));
                let read = [0, 1, 2].map(|axis| {
                    let at = place[axis] * options.stride[axis] + k[axis] * options.dilation[axis];
                    at.checked_sub(options.padding[axis]).filter(|&at| at < inside[axis])
                });
                let [Some(plane), Some(row), Some(column)] = read else { continue };
                let channel = n * channels + group * per_group + c;
                let xi = channel * of_input + (plane * inside[1] + row) * inside[2] + column;
                let wi = o * per_group * of_kernel + tap;
                y[out] += x[xi] * w[wi];
                dx[xi] += dy[out] * w[wi];
                dw[wi] += dy[out] * x[xi];
            }
        }
        let array = |shape, data| Array { shape, data };
        vec![array(y_shape, y), array(x_shape, dx), array(w_shape, dw)]
    }

    impl Tested for Conv {
        fn special() -> &'static [Special] {
            &[Special::Product]
        }

        fn cases() -> Vec<Case> {
            let mut cases = cases(|options, x, w| {
                let naive = move |a: &[Array]| naive(a, options, x, w).swap_remove(0);
                Case::new(Self(options)).input(x.dims()).input(w.dims()).tolerance(1e-5).naive(move |a| vec![naive(a)])
            });
            // Operands of different magnitudes, in channels by eight and not.
            for channels in [3, 8] {
                let (x, w) = ([2, channels, 6, 5], [8, channels, 3, 3]);
                cases.push(Case::recorded("conv2d", &[&x, &w], |x| {
                    x[0].scale(1e-4).conv2d(&x[1].scale(1e4), Conv2dOptions::default())
                }));
            }
            // Parts of a sum that differ in size, over channels and over images: scales that were found with the first
            // do not hold.
            for (axis, stride) in [(1, 1), (1, 2), (0, 1), (0, 2)] {
                let (x, w) = ([2, 16, 7, 6], [8, if axis == 1 { 64 } else { 16 }, 3, 3]);
                cases.push(Case::recorded("conv2d", &[&x, &w], move |x| {
                    let parts = [0.0, 1e-9, 1e6, 1.0].map(|factor| x[0].scale(factor));
                    let growing = Var::concat(&parts.each_ref(), axis);
                    let options = Conv2dOptions { stride: [stride; 2], padding: [1; 2], ..Conv2dOptions::default() };
                    growing.conv2d(&x[1], options).scale(1e-6)
                }));
            }
            cases
        }
    }

    impl Tested for ConvGradInput {
        fn special() -> &'static [Special] {
            &[Special::Product]
        }

        fn cases() -> Vec<Case> {
            let mut cases = cases(|options, x, w| {
                let y = ConvShape::new(x, w, options).expect("cases fit").output();
                let naive = move |a: &[Array]| {
                    let zeros = Array { shape: x, data: vec![0.0; x.elements()] };
                    vec![naive(&[zeros, a[1].clone(), a[0].clone()], options, x, w).swap_remove(1)]
                };
                Case::new(Self { options, input: x }).input(y.dims()).input(w.dims()).tolerance(1e-5).naive(naive)
            });
            cases.extend(crate::functions::conv_transpose2d::cases::recorded());
            cases
        }
    }

    impl Tested for ConvGradWeight {
        fn special() -> &'static [Special] {
            &[Special::Product, Special::WithoutOnnx]
        }

        fn cases() -> Vec<Case> {
            cases(|options, x, w| {
                let y = ConvShape::new(x, w, options).expect("cases fit").output();
                let naive = move |a: &[Array]| {
                    let zeros = Array { shape: w, data: vec![0.0; w.elements()] };
                    vec![naive(&[a[0].clone(), zeros, a[1].clone()], options, x, w).swap_remove(2)]
                };
                Case::new(Self { options, weight: w }).input(x.dims()).input(y.dims()).tolerance(1e-5).naive(naive)
            })
        }
    }
}
