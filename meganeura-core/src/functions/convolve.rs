//! Convolutions of sequences and volumes, computed by those of images.

use std::panic::Location;

use crate::ops::window::named;
use crate::ops::{Conv2dOptions, ConvOptions, ConvTranspose2dOptions, ConvTransposeOptions};
use crate::{Error, ErrorKind, Shape, Var};

impl Var {
    /// 1-D convolution with a weight `[O, C/groups, K]`: `y[n,o,p] = Σ x[n,c,p·s+i·d−pad] · w[o,c,i]`
    ///
    /// Shapes: `x [N, C, L]` → `y [N, O, P]` with `P = ⌊(L + 2·pad − d·(K−1) − 1)/s⌋ + 1`. Computed by [`Var::conv2d`]
    /// on images of one row.
    #[must_use]
    #[track_caller]
    pub fn conv1d(&self, weight: &Self, options: ConvOptions<1>) -> Self {
        self.convolve(weight, options)
    }

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
    pub fn conv3d(&self, weight: &Self, options: ConvOptions<3>) -> Self {
        self.convolve(weight, options)
    }

    /// Transposed 1-D convolution with a weight `[C, O/groups, K]`:
    /// `y[n,o,p] = Σ x[n,c,l] · weight[c,o,i]` over all `l·s + i·d − pad = p`
    ///
    /// Shapes: `x [N, C, L]` → `y [N, O, P]` with `P = (L − 1)·s − 2·pad + d·(K − 1) + output_pad + 1`. Computed by
    /// [`Var::conv_transpose2d`] on images of one row.
    #[must_use]
    #[track_caller]
    pub fn conv_transpose1d(&self, weight: &Self, options: ConvTransposeOptions<1>) -> Self {
        self.convolve_transposed(weight, options)
    }

    /// Transposed 3-D convolution with a weight `[C, O/groups, KD, KH, KW]`:
    /// `y[n,o,p,q,r] = Σ x[n,c,d,h,w] · weight[c,o,i,j,k]` over all `d·s + i·d − pad = p`, and `q`, `r` likewise
    ///
    /// Shapes: `x [N, C, D, H, W]` → `y [N, O, P, Q, R]` with
    /// `P = (D − 1)·s − 2·pad + d·(KD − 1) + output_pad + 1`, and `Q`, `R` likewise.
    ///
    /// Computed by one [`Var::conv_transpose2d`] of `N·D` images to `O·KD` channels, and a sum of the slices that these
    /// are.
    #[must_use]
    #[track_caller]
    pub fn conv_transpose3d(&self, weight: &Self, options: ConvTransposeOptions<3>) -> Self {
        self.convolve_transposed(weight, options)
    }

    /// Convolution over `D` axes.
    #[must_use]
    #[track_caller]
    #[doc(hidden)]
    pub fn convolve<const D: usize>(&self, weight: &Self, options: ConvOptions<D>) -> Self {
        let planar = Conv2dOptions {
            stride: plane(options.stride, 1),
            padding: plane(options.padding, 0),
            dilation: plane(options.dilation, 1),
            groups: options.groups,
        };
        if D == 2 {
            return self.conv2d(weight, planar);
        }
        let name = named::<D>(["conv1d", "conv2d", "conv3d"]);
        let output = match self.output(name, weight, |x, weight| options.output(x, weight)) {
            Ok(output) => output,
            Err(error) => return self.fail(error),
        };
        if D == 1 {
            return as_row(self).conv2d(&as_row(weight), planar).reshape(output);
        }
        let (&[n, c, _, h, w], &[_, per_group, kd, kh, kw]) = (self.shape().dims(), weight.shape().dims()) else {
            unreachable!("volumes, as was checked")
        };
        let (&[_, o, p, q, r], groups) = (output.dims(), options.groups) else { unreachable!("as many axes") };
        let [stride, padding, dilation] = [options.stride, options.padding, options.dilation].map(|of| of[0]);
        let depth = Depth { kernel: kd, stride, padding, dilation, output: p };
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
        let y = images.reshape([n * p, kd * c, h, w]).conv2d(&weight, planar);
        y.reshape([n, p, o, q, r]).permute(&[0, 2, 1, 3, 4])
    }

    /// Transposed convolution over `D` axes.
    #[must_use]
    #[track_caller]
    #[doc(hidden)]
    pub fn convolve_transposed<const D: usize>(&self, weight: &Self, options: ConvTransposeOptions<D>) -> Self {
        let planar = ConvTranspose2dOptions {
            stride: plane(options.stride, 1),
            padding: plane(options.padding, 0),
            output_padding: plane(options.output_padding, 0),
            dilation: plane(options.dilation, 1),
            groups: options.groups,
        };
        if D == 2 {
            return self.conv_transpose2d(weight, planar);
        }
        let name = named::<D>(["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]);
        let output = match self.output(name, weight, |x, weight| options.output(x, weight)) {
            Ok(output) => output,
            Err(error) => return self.fail(error),
        };
        if D == 1 {
            return as_row(self).conv_transpose2d(&as_row(weight), planar).reshape(output);
        }
        let (&[n, c, d, h, w], &[_, per_group, kd, kh, kw]) = (self.shape().dims(), weight.shape().dims()) else {
            unreachable!("volumes, as was checked")
        };
        let &[_, o, p, q, r] = output.dims() else { unreachable!("volumes, as was checked") };
        let [stride, padding, dilation] = [options.stride, options.padding, options.dilation].map(|of| of[0]);
        let images = self.permute(&[0, 2, 1, 3, 4]).reshape([n * d, c, h, w]);
        let taps = images.conv_transpose2d(&weight.reshape([c, per_group * kd, kh, kw]), planar);
        // [N, O, KD, D, Q, R]: what each input slice adds to the output slice under each slice of the kernel.
        let taps = taps.reshape([n, d, o, kd, q, r]).permute(&[0, 2, 3, 1, 4, 5]);
        let mut sum: Option<Self> = None;
        for tap in 0..kd {
            let slices = taps.slice(2, tap..tap + 1);
            // `stride` apart, with zeros in between.
            let apart = match (stride, d) {
                (1, _) | (_, 1) => slices.reshape([n, o, d, q, r]),
                _ => {
                    let between = slices
                        .permute(&[0, 1, 3, 2, 4, 5])
                        .pad(&[(0, 0), (0, 0), (0, 0), (0, stride - 1), (0, 0), (0, 0)], 0.0);
                    between.reshape([n, o, d * stride, q, r]).slice(2, 0..(d - 1) * stride + 1)
                }
            };
            let (first, spread) = (tap * dilation, apart.shape()[2]);
            let placed = match (first, (p + 2 * padding).saturating_sub(first + spread)) {
                (0, 0) => apart,
                widths => apart.pad(&[(0, 0), (0, 0), widths, (0, 0), (0, 0)], 0.0),
            };
            sum = Some(match sum {
                Some(sum) => sum + placed,
                None => placed,
            });
        }
        sum.expect("a kernel has slices").slice(2, padding..padding + p)
    }

    /// The output's shape by a rule, or the error for operands that do not fit.
    #[track_caller]
    fn output(
        &self,
        name: &'static str,
        weight: &Self,
        rule: impl Fn(Shape, Shape) -> Result<Shape, String>,
    ) -> Result<Shape, Error> {
        if let Some(error) = self.error().or_else(|| weight.error()) {
            return Err(error);
        }
        let (x, w, here) = (self.ty(), weight.ty(), Location::caller());
        let output = match x.dtype == w.dtype && x.dtype.is_float() {
            true => rule(x.shape, w.shape),
            false => Err(format!("needs floats of one type, not {} and {}", x.dtype, w.dtype)),
        };
        output.map_err(|message| {
            let error = Error::new(ErrorKind::Shape, message).in_op(name).at(here);
            error.operand(x, self.path()).operand(w, weight.path())
        })
    }
}

/// The settings of the last two of `D` axes; `one` for the missing one.
fn plane<const D: usize>(of_axes: [usize; D], one: usize) -> [usize; 2] {
    [if D > 1 { of_axes[D - 2] } else { one }, of_axes[D - 1]]
}

/// `[A, B, L]` as images of one row, `[A, B, 1, L]`.
#[track_caller]
fn as_row(x: &Var) -> Var {
    let [a, b, length] = *x.shape().dims() else { unreachable!("three axes, as was checked") };
    x.reshape([a, b, 1, length])
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
