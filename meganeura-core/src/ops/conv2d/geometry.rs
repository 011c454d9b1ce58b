//! Extents of a convolution, for all three passes, and patches as columns for native kernels.

use super::Conv2dOptions;
use crate::Shape;
use crate::kernel::launch::{Define, LINE, define};
use crate::kernel::native::Real;
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Attribute};

/// All extents of one convolution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvShape {
    pub(crate) n: usize,
    pub(crate) c: usize,
    pub(crate) h: usize,
    pub(crate) w: usize,
    pub(crate) o: usize,
    pub(crate) kernel: [usize; 2],
    pub(crate) p: usize,
    pub(crate) q: usize,
    pub(crate) groups: usize,
    options: Conv2dOptions,
}

/// The input pixels of one element of all patches.
struct Tap {
    /// The first element of the channel in the image.
    plane: usize,
    /// The output rows and columns for which the element lies inside the input, not in the padding.
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
    /// The first of those pixels, within its channel.
    first: usize,
}

/// The attributes of ONNX's convolutions with a weight of this shape.
#[cfg(feature = "onnx")]
pub(super) fn onnx(options: Conv2dOptions, weight: Shape) -> Vec<(&'static str, Attribute)> {
    let Conv2dOptions { stride, padding: [rows, columns], dilation, groups } = options;
    let ints = |numbers: &[usize]| Attribute::Ints(form::ints(numbers));
    vec![
        ("dilations", ints(&dilation)),
        ("group", Attribute::Int(form::int(groups))),
        ("kernel_shape", ints(&weight.dims()[2..])),
        ("pads", ints(&[rows, columns, rows, columns])),
        ("strides", ints(&stride)),
    ]
}

impl ConvShape {
    pub(crate) fn new(x: Shape, weight: Shape, options: Conv2dOptions) -> Result<Self, String> {
        let output = options.output(x, weight)?;
        let (&[n, c, h, w], &[o, _, kh, kw], &[.., p, q]) = (x.dims(), weight.dims(), output.dims()) else {
            unreachable!("images, as was checked")
        };
        let groups = options.groups;
        Ok(Self { n, c, h, w, o, kernel: [kh, kw], p, q, groups, options })
    }

    pub(super) fn options(&self) -> Conv2dOptions {
        self.options
    }

    pub(super) fn input(&self) -> Shape {
        Shape::from([self.n, self.c, self.h, self.w])
    }

    pub(crate) fn output(&self) -> Shape {
        Shape::from([self.n, self.o, self.p, self.q])
    }

    /// Elements of one output pixel's patch, within a group.
    pub(crate) fn patch(&self) -> usize {
        self.c / self.groups * self.kernel[0] * self.kernel[1]
    }

    /// `true` if Winograd's algorithm for 3×3 weights applies: no stride, dilation or groups, and no more padding than
    /// weights span.
    pub(super) fn suits_winograd(&self) -> bool {
        let Conv2dOptions { stride, padding, dilation, groups } = self.options;
        let plain = self.kernel == [3, 3] && stride == [1, 1] && dilation == [1, 1] && groups == 1;
        plain && padding.iter().all(|&zeros| zeros <= 2)
    }

    /// `true` if the patches of an image are the image itself.
    fn is_pointwise(&self) -> bool {
        self.kernel == [1, 1] && self.options.stride == [1, 1] && self.options.padding == [0, 0]
    }

    /// Elements that [`ConvShape::columns`] needs to write.
    pub(crate) fn scratch(&self) -> usize {
        if self.is_pointwise() { 0 } else { self.patch() * self.p * self.q }
    }

    /// The patches of one group of an image: row `(c, i, j)` holds that element of each output pixel's patch.
    pub(super) fn columns<'a, T: Real>(&self, image: &'a [T], scratch: &'a mut [T]) -> &'a [T] {
        if self.is_pointwise() {
            return image;
        }
        self.gather(image, 1, scratch);
        scratch
    }

    /// Copies the patches of one group into the columns of a matrix. `side` images are interleaved, before and after.
    pub(super) fn gather<T: Real>(&self, images: &[T], side: usize, matrix: &mut [T]) {
        let (stride, line) = (self.options.stride[1] * side, self.q * side);
        for (row, out) in matrix.chunks_exact_mut(self.p * line).enumerate() {
            let tap = self.tap(row);
            out[..tap.rows.start * line].fill(T::ZERO);
            out[tap.rows.end * line..].fill(T::ZERO);
            let plane = &images[tap.plane * side..][..self.h * self.w * side];
            let lines = out.chunks_exact_mut(line).take(tap.rows.end).skip(tap.rows.start);
            for (out, from) in lines.zip((tap.first * side..).step_by(self.options.stride[0] * self.w * side)) {
                out[..tap.columns.start * side].fill(T::ZERO);
                out[tap.columns.end * side..].fill(T::ZERO);
                let out = &mut out[tap.columns.start * side..tap.columns.end * side];
                // Lines are short: a loop beats a call that copies memory.
                if stride == side {
                    out.iter_mut().zip(&plane[from..]).for_each(|(y, &x)| *y = x);
                } else if side == 1 {
                    out.iter_mut().zip(plane[from..].iter().step_by(stride)).for_each(|(y, &x)| *y = x);
                } else {
                    let pixels = out.chunks_exact_mut(side).zip((from..).step_by(stride));
                    pixels.for_each(|(out, from)| {
                        out.iter_mut().zip(&plane[from..]).for_each(|(y, &x)| *y = x);
                    });
                }
            }
        }
    }

    /// The transpose of [`ConvShape::gather`]: adds each patch element to its pixel.
    pub(super) fn add_columns<T: Real>(&self, matrix: &[T], side: usize, images: &mut [T]) {
        let (stride, line) = (self.options.stride[1] * side, self.q * side);
        for (row, from) in matrix.chunks_exact(self.p * line).enumerate() {
            let tap = self.tap(row);
            let plane = &mut images[tap.plane * side..][..self.h * self.w * side];
            let lines = from.chunks_exact(line).take(tap.rows.end).skip(tap.rows.start);
            for (from, to) in lines.zip((tap.first * side..).step_by(self.options.stride[0] * self.w * side)) {
                let from = &from[tap.columns.start * side..tap.columns.end * side];
                if stride == side {
                    plane[to..].iter_mut().zip(from).for_each(|(y, &x)| *y += x);
                } else if side == 1 {
                    plane[to..].iter_mut().step_by(stride).zip(from).for_each(|(y, &x)| *y += x);
                } else {
                    let pixels = from.chunks_exact(side).zip((to..).step_by(stride));
                    pixels.for_each(|(from, to)| {
                        plane[to..].iter_mut().zip(from).for_each(|(y, &x)| *y += x);
                    });
                }
            }
        }
    }

    /// The channels of a group of image `n`, and everything after them.
    pub(super) fn image<'a, T>(&self, x: &'a [T], n: usize, group: usize) -> &'a [T] {
        &x[(n * self.groups + group) * (self.c / self.groups) * self.h * self.w..]
    }

    /// The tap of patch row `row`.
    fn tap(&self, row: usize) -> Tap {
        let [kh, kw] = self.kernel;
        let Conv2dOptions { stride, padding, dilation, .. } = self.options;
        let along = |axis: usize, tap: usize, extent: usize, outputs: usize| {
            let shift = tap * dilation[axis];
            let first: usize = padding[axis].saturating_sub(shift).div_ceil(stride[axis]).min(outputs);
            let end: usize = (extent + padding[axis]).saturating_sub(shift).div_ceil(stride[axis]).min(outputs);
            (first..end.max(first), (first * stride[axis] + shift).saturating_sub(padding[axis]))
        };
        let (rows, y) = along(0, row / kw % kh, self.h, self.p);
        let (columns, x) = along(1, row % kw, self.w, self.q);
        let rows = if columns.is_empty() { rows.start..rows.start } else { rows };
        Tap { plane: row / (kh * kw) * self.h * self.w, rows, columns, first: y * self.w + x }
    }

    /// Pixels from the first tap to the last, per axis: one less than the kernel spans.
    pub(super) fn gaps(&self) -> [usize; 2] {
        [0, 1].map(|axis| (self.kernel[axis] - 1) * self.options.dilation[axis])
    }

    /// This convolution with so many rows of taps, and as many outputs.
    pub(super) fn with_rows(&self, rows: usize) -> Self {
        Self { kernel: [rows, self.kernel[1]], ..*self }
    }

    /// This convolution with channels that fall into lines; those of a single group are rounded up.
    pub(super) fn in_lines(&self) -> Option<Self> {
        let [c, o] = [self.c, self.o].map(|channels| (channels / self.groups).next_multiple_of(LINE) * self.groups);
        (self.groups == 1 || [c, o] == [self.c, self.o]).then_some(Self { c, o, ..*self })
    }

    /// A convolution without stride that reads this one's outputs, with `phases` times its input channels as output
    /// channels.
    pub(super) fn transposed(
        &self,
        phases: usize,
        kernel: [usize; 2],
        [p, q]: [usize; 2],
        padding: [usize; 2],
        dilation: [usize; 2],
    ) -> Self {
        let options = Conv2dOptions { stride: [1, 1], padding, dilation, groups: self.groups };
        let o = self.c * phases;
        Self { n: self.n, c: self.o, h: self.p, w: self.q, o, kernel, p, q, groups: self.groups, options }
    }

    /// The kernel's defines.
    pub(super) fn defines(&self) -> Vec<Define> {
        self.defines_below(0)
    }

    /// [`ConvShape::defines`] with windows that begin so many rows of inputs further down. That is less padding, which
    /// may be negative: kernels count modulo 2³².
    pub(super) fn defines_below(&self, rows: usize) -> Vec<Define> {
        let Conv2dOptions { stride, padding, dilation, groups } = self.options;
        #[expect(clippy::cast_possible_truncation, reason = "that is meant")]
        let above = padding[0].wrapping_sub(rows) as u32;
        define![
            N: self.n, C: self.c, H: self.h, W: self.w, O: self.o, KH: self.kernel[0], KW: self.kernel[1],
            P: self.p, Q: self.q, SH: stride[0], SW: stride[1], PH: above, PW: padding[1],
            DH: dilation[0], DW: dilation[1], G: groups, UH: 1, UW: 1,
        ]
    }

    /// The defines of the gradient of the input as a convolution: its pixels, the cotangents, are a stride apart.
    pub(super) fn defines_of_input(&self) -> Vec<Define> {
        let Conv2dOptions { stride, padding, dilation, groups } = self.options;
        #[expect(clippy::cast_possible_truncation, reason = "shaders count modulo 2³²")]
        let [above, left] = [0, 1].map(|axis| self.gaps()[axis].wrapping_sub(padding[axis]) as u32);
        define![
            N: self.n, C: self.o, H: self.p, W: self.q, O: self.c, KH: self.kernel[0], KW: self.kernel[1],
            P: self.h, Q: self.w, SH: 1, SW: 1, PH: above, PW: left,
            DH: dilation[0], DW: dilation[1], G: groups, UH: stride[0], UW: stride[1],
        ]
    }
}
