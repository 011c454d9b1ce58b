//! Transposed convolution: the input gradient of a convolution, recorded for its own sake. Its gradients are therefore
//! those of [`ConvGradInput`], a convolution and a weight gradient; there is no kernel of its own.

use std::panic::Location;

use crate::ops::conv2d::{ConvGradInput, ConvTransposeOptions};
use crate::ops::window::named;
use crate::ops::{ConvTranspose1dOptions, ConvTranspose2dOptions, ConvTranspose3dOptions};
use crate::tape::Var;
use crate::{Error, ErrorKind};

impl Var {
    /// Transposed 1-D convolution with a weight `[C, O/groups, K]`:
    /// `y[n,o,p] = Σ x[n,c,l] · weight[c,o,i]` over all `l·s + i·d − pad = p`
    ///
    /// Shapes: `x [N, C, L]` → `y [N, O, P]` with `P = (L − 1)·s − 2·pad + d·(K − 1) + output_pad + 1`.
    #[must_use]
    #[track_caller]
    pub fn conv_transpose1d(&self, weight: &Self, options: ConvTranspose1dOptions) -> Self {
        self.convolve_transposed(weight, options)
    }

    /// Transposed 2-D convolution with a weight `[C, O/groups, KH, KW]`:
    /// `y[n,o,p,q] = Σ x[n,c,h,w] · weight[c,o,i,j]` over all `h·s + i·d − pad = p`, `w·s + j·d − pad = q`
    ///
    /// Shapes: `x [N,C,H,W]` → `y [N,O,P,Q]` with `P = (H − 1)·s − 2·pad + d·(KH − 1) + output_pad + 1`, and `Q`
    /// likewise.
    #[must_use]
    #[track_caller]
    pub fn conv_transpose2d(&self, weight: &Self, options: ConvTranspose2dOptions) -> Self {
        self.convolve_transposed(weight, options)
    }

    /// Transposed 3-D convolution with a weight `[C, O/groups, KD, KH, KW]`:
    /// `y[n,o,z,p,q] = Σ x[n,c,d,h,w] · weight[c,o,k,i,j]` over all `d·s + k·d − pad = z`, and `p`, `q` likewise
    ///
    /// Shapes: `x [N, C, D, H, W]` → `y [N, O, Z, P, Q]` with
    /// `Z = (D − 1)·s − 2·pad + d·(KD − 1) + output_pad + 1`, and `P`, `Q` likewise.
    #[must_use]
    #[track_caller]
    pub fn conv_transpose3d(&self, weight: &Self, options: ConvTranspose3dOptions) -> Self {
        self.convolve_transposed(weight, options)
    }

    /// Transposed convolution over `D` axes.
    #[must_use]
    #[track_caller]
    #[doc(hidden)]
    pub fn convolve_transposed<const D: usize>(&self, weight: &Self, options: ConvTransposeOptions<D>) -> Self {
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
                let name = named::<D>(["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]);
                let error = Error::new(ErrorKind::Shape, message).in_op(name).at(Location::caller());
                return self.fail(error.operand(x, self.path()).operand(w, weight.path()));
            }
        };
        let grad = ConvGradInput { options: options.convolution().into(), input: shape };
        // Where the output padding reaches the stride, the convolution of the output has pixels more than `self`:
        // zeros.
        let mut widths = vec![(0, 0); 2];
        widths.extend((0..D).map(|axis| (0, options.output_padding[axis] / options.stride[axis])));
        if widths.iter().all(|&width| width == (0, 0)) {
            return self.record(grad, &[self, weight]);
        }
        self.record(grad, &[&self.pad(&widths, 0.0), weight])
    }
}

#[cfg(feature = "testing")]
pub(super) mod cases {
    use super::*;
    use crate::Shape;
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
        let images = [
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
        ];
        let of = |stride, padding, output_padding, dilation, groups| ConvTranspose1dOptions {
            stride: [stride],
            padding: [padding],
            output_padding: [output_padding],
            dilation: [dilation],
            groups,
        };
        let sequences = [
            (ConvTranspose1dOptions::default(), [1, 1, 1], [1, 1, 1]),
            (of(2, 1, 1, 1, 1), [2, 3, 5], [3, 2, 3]),
            (of(3, 0, 2, 2, 2), [2, 4, 4], [4, 3, 2]),
            (of(1, 2, 2, 3, 1), [2, 2, 6], [2, 3, 3]),
            (of(2, 1, 0, 1, 1), [2, 16, 9], [16, 8, 4]),
        ];
        let of = |stride, padding, output_padding, dilation, groups| ConvTranspose3dOptions {
            stride,
            padding,
            output_padding,
            dilation,
            groups,
        };
        let volumes = [
            (ConvTranspose3dOptions::default(), [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]),
            (of([2, 2, 2], [1, 1, 1], [1, 1, 1], [1, 1, 1], 1), [1, 2, 2, 3, 2], [2, 3, 3, 3, 3]),
            (of([1, 2, 3], [0, 1, 1], [0, 1, 2], [2, 1, 1], 2), [2, 4, 2, 3, 2], [4, 2, 2, 3, 2]),
            (of([2, 1, 1], [1, 0, 2], [2, 0, 1], [3, 1, 2], 1), [1, 2, 3, 2, 3], [2, 2, 2, 2, 3]),
            (of([2, 2, 2], [0, 0, 0], [0, 0, 0], [1, 1, 1], 1), [2, 16, 2, 3, 4], [16, 8, 2, 2, 2]),
        ];
        let mut all: Vec<_> = images.map(|(options, x, w)| case(options, &x, &w)).into();
        all.extend(sequences.map(|(options, x, w)| case(options, &x, &w)));
        all.extend(volumes.map(|(options, x, w)| case(options, &x, &w)));
        all
    }

    fn case<const D: usize>(options: ConvTransposeOptions<D>, x: &[usize], w: &[usize]) -> Case {
        let build = move |x: &[Var]| x[0].convolve_transposed(&x[1], options);
        let name = named::<D>(["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]);
        Case::recorded(&format!("{name} {options:?}"), &[x, w], build).naive(move |arrays| vec![naive(arrays, options)])
    }

    /// Each input pixel times the kernel, added to where it lands.
    fn naive<const D: usize>(arrays: &[Array], options: ConvTransposeOptions<D>) -> Array {
        let [x, weight] = arrays else { unreachable!("an input and a weight") };
        let ConvTransposeOptions { stride, padding, output_padding, dilation, groups } = options;
        let extents = |shape: Shape| -> [usize; D] { shape.dims()[2..].try_into().expect("cases fit") };
        let [inside, kernel] = [x.shape, weight.shape].map(extents);
        let outside: [usize; D] = std::array::from_fn(|axis| {
            let reach = (inside[axis] - 1) * stride[axis] + dilation[axis] * (kernel[axis] - 1) + 1;
            reach + output_padding[axis] - 2 * padding[axis]
        });
        let [of_input, of_kernel, of_output] = [inside, kernel, outside].map(|all| all.iter().product::<usize>());
        let coordinates = |mut at: usize, extents: [usize; D]| {
            let mut all = [0; D];
            for axis in (0..D).rev() {
                (all[axis], at) = (at % extents[axis], at / extents[axis]);
            }
            all
        };
        let (c, per_group) = (x.shape[1], weight.shape[1]);
        let o = per_group * groups;
        let shape = Shape::new(&[&[x.shape[0], o], &outside[..]].concat());
        let mut y = vec![0.0; shape.elements()];
        for (at, x) in x.data.iter().enumerate() {
            let (place, channel, n) = (coordinates(at % of_input, inside), at / of_input % c, at / (of_input * c));
            let first = channel / (c / groups) * per_group;
            for tap in 0..per_group * of_kernel {
                let k = coordinates(tap % of_kernel, kernel);
                let to = (0..D).try_fold(0, |to, axis| {
                    let at = (place[axis] * stride[axis] + k[axis] * dilation[axis]).checked_sub(padding[axis])?;
                    (at < outside[axis]).then_some(to * outside[axis] + at)
                });
                if let Some(to) = to {
                    let w = weight.data[channel * per_group * of_kernel + tap];
                    y[(n * o + first + tap / of_kernel) * of_output + to] += x * w;
                }
            }
        }
        Array { shape, data: y }
    }
}
