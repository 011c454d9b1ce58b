//! Extents of a convolution, for all three passes, and patches as columns for native kernels.

use super::Conv2dOptions;
use crate::Shape;
use crate::kernel::launch::{Define, LINE, define};
use crate::kernel::native::Real;
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Attribute};

/// All extents of one convolution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
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

impl Geometry {
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

    /// Elements that [`Geometry::columns`] needs to write.
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

    /// The transpose of [`Geometry::gather`]: adds each patch element to its pixel.
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

    /// [`Geometry::defines`] with windows that begin so many rows of inputs further down. That is less padding, which
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

/// The shapes that all three passes are tested with: everything that was ever wrong.
#[cfg(feature = "testing")]
pub(super) fn cases(
    case: impl Fn(Conv2dOptions, Shape, Shape) -> super::super::case::Case,
) -> Vec<super::super::case::Case> {
    let of = |stride, padding, dilation, groups| Conv2dOptions { stride, padding, dilation, groups };
    let plain = Conv2dOptions::default();
    [
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
        // … in sixteens: narrow images by turns, wide ones in two tiles, a dilated one with more rows than taps reach,
        // whole tiles
        (of([1, 1], [1, 1], [1, 1], 1), [3, 16, 6, 5], [32, 16, 3, 3]),
        (of([1, 1], [0, 1], [1, 1], 2), [1, 64, 5, 40], [96, 32, 2, 3]),
        (of([1, 1], [3, 0], [2, 1], 1), [5, 32, 3, 4], [16, 32, 3, 2]),
        (of([1, 1], [1, 1], [1, 1], 1), [2, 128, 8, 16], [128, 128, 3, 3]),
        // … 3×3 without stride, channels beyond sixteen with a rest: padding by axis, several blocks of tiles
        (of([1, 1], [2, 0], [1, 1], 1), [2, 21, 5, 9], [18, 21, 3, 3]),
        (of([1, 1], [0, 1], [1, 1], 1), [9, 16, 13, 6], [50, 16, 3, 3]),
        // few channels beside many, as where networks begin and end
        (of([1, 1], [1, 1], [1, 1], 1), [2, 16, 9, 10], [3, 16, 3, 3]),
        (of([2, 1], [1, 2], [1, 1], 1), [2, 40, 7, 9], [5, 40, 3, 2]),
        (of([2, 2], [1, 1], [1, 1], 1), [2, 3, 9, 8], [16, 3, 3, 3]),
        // beyond one tile of every size
        (of([1, 1], [1, 1], [1, 1], 1), [2, 5, 9, 10], [35, 5, 3, 3]),
        (of([2, 1], [2, 0], [1, 1], 2), [3, 8, 11, 13], [72, 4, 3, 2]),
        // padding other than (k − 1)/2
        (of([1, 1], [2, 0], [1, 1], 1), [1, 2, 4, 5], [3, 2, 3, 2]),
        // stride with a remainder, even sizes
        (of([2, 2], [1, 1], [1, 1], 1), [2, 2, 8, 8], [3, 2, 3, 3]),
        (of([3, 2], [0, 1], [1, 1], 1), [2, 1, 9, 8], [2, 1, 2, 4]),
        // 1×1 with a stride, as in residual shortcuts
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
        // widths at which reciprocal arithmetic goes wrong
        (of([1, 1], [1, 1], [1, 1], 1), [1, 1, 3, 41], [2, 1, 3, 3]),
        (of([1, 2], [1, 1], [1, 1], 1), [1, 1, 2, 55], [1, 1, 3, 3]),
    ]
    .map(|(options, x, w)| case(options, Shape::from(x), Shape::from(w)))
    .into()
}

/// The definition, term by term: `y`, and for a given `dy` the gradients `dx` and `dw`.
#[cfg(feature = "testing")]
pub(super) fn naive(
    arrays: &[super::super::case::Array],
    options: Conv2dOptions,
    x_shape: Shape,
    w_shape: Shape,
) -> Vec<super::super::case::Array> {
    use super::super::case::Array;
    let g = Geometry::new(x_shape, w_shape, options).expect("cases fit");
    let (x, w) = (&arrays[0].data, &arrays[1].data);
    let dy = arrays.get(2).map_or_else(|| vec![0.0; g.output().elements()], |dy| dy.data.clone());
    let mut y = vec![0.0; g.output().elements()];
    let (mut dx, mut dw) = (vec![0.0; x_shape.elements()], vec![0.0; w_shape.elements()]);
    let per_group = g.c / g.groups;
    for out in 0..y.len() {
        let (q, p, o, n) = (out % g.q, out / g.q % g.p, out / (g.q * g.p) % g.o, out / (g.q * g.p * g.o));
        let group = o / (g.o / g.groups);
        for tap in 0..per_group * g.kernel[0] * g.kernel[1] {
            let (j, i, c) = (tap % g.kernel[1], tap / g.kernel[1] % g.kernel[0], tap / (g.kernel[0] * g.kernel[1]));
            let at = |k: usize, o: usize, axis: usize| {
                (o * options.stride[axis] + k * options.dilation[axis]).checked_sub(options.padding[axis])
            };
            let (Some(row), Some(column)) = (at(i, p, 0), at(j, q, 1)) else { continue };
            if row < g.h && column < g.w {
                let xi = ((n * g.c + group * per_group + c) * g.h + row) * g.w + column;
                let wi = (o * per_group + c) * g.kernel[0] * g.kernel[1] + i * g.kernel[1] + j;
                y[out] += x[xi] * w[wi];
                dx[xi] += dy[out] * w[wi];
                dw[wi] += dy[out] * x[xi];
            }
        }
    }
    let array = |shape, data| Array { shape, data };
    vec![array(g.output(), y), array(x_shape, dx), array(w_shape, dw)]
}
