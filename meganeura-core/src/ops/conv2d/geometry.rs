//! Extents of a convolution, for all three passes, and patches as columns for native kernels.

use super::options::AnyConvOptions;
use super::pass::Pass;
use super::{Conv2dOptions, ConvOptions};
use crate::Shape;
use crate::kernel::launch::{Define, LINE, define};
use crate::kernel::native::Real;
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Attribute};
use crate::ops::window::{Depth, Window, spatial};

/// All extents of one convolution, of planes in volumes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvShape {
    /// The number of axes of the tensors, beside images and channels.
    axes: usize,
    pub(crate) n: usize,
    pub(crate) c: usize,
    pub(crate) depth: Depth,
    pub(crate) h: usize,
    pub(crate) w: usize,
    pub(crate) o: usize,
    /// The taps of a plane.
    pub(crate) kernel: [usize; 2],
    pub(crate) p: usize,
    pub(crate) q: usize,
    pub(crate) groups: usize,
    /// Those of planes.
    options: Conv2dOptions,
}

/// The input pixels of one element of all patches.
struct Tap {
    /// The first element of the channel in the image.
    channel: usize,
    /// The output planes, rows and columns for which the element lies inside the input, not in the padding.
    planes: std::ops::Range<usize>,
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
    /// The first of those pixels, within its channel.
    first: usize,
}

/// The attributes of ONNX's convolutions with a weight of this shape.
#[cfg(feature = "onnx")]
pub(super) fn onnx(options: AnyConvOptions, weight: Shape) -> Vec<(&'static str, Attribute)> {
    let ConvOptions { stride, padding, dilation, groups } = options.all();
    let first = 3 - options.axes();
    let ints = |numbers: &[usize]| Attribute::Ints(form::ints(numbers));
    vec![
        ("dilations", ints(&dilation[first..])),
        ("group", Attribute::Int(form::int(groups))),
        ("kernel_shape", ints(&weight.dims()[2..])),
        ("pads", ints(&[&padding[first..], &padding[first..]].concat())),
        ("strides", ints(&stride[first..])),
    ]
}

impl ConvShape {
    pub(crate) fn new(x: Shape, weight: Shape, options: impl Into<AnyConvOptions>) -> Result<Self, String> {
        let options = options.into();
        let output = options.output(x, weight)?;
        let [[inputs, h, w], [kernel, kh, kw], [outputs, p, q]] = [x, weight, output].map(spatial);
        let ConvOptions { stride, padding, dilation, groups } = options.all();
        let depth = Depth {
            inputs,
            outputs,
            kernel,
            stride: stride[0],
            padding: padding[0].cast_signed(),
            dilation: dilation[0],
            apart: 1,
        };
        let of_planes = |[_, down, across]: [usize; 3]| [down, across];
        let [stride, padding, dilation] = [stride, padding, dilation].map(of_planes);
        let planar = Conv2dOptions { stride, padding, dilation, groups };
        let (n, c, o) = (x[0], x[1], weight[0]);
        Ok(Self { axes: options.axes(), n, c, depth, h, w, o, kernel: [kh, kw], p, q, groups, options: planar })
    }

    /// The options along the axes of planes.
    pub(super) fn options(&self) -> Conv2dOptions {
        self.options
    }

    /// The window along an axis of volumes: depth, height or width.
    pub(super) fn window(&self, axis: usize) -> Window {
        let Some(axis) = axis.checked_sub(1) else {
            let Depth { kernel, stride, padding, dilation, .. } = self.depth;
            return Window { kernel, stride, padding: padding.cast_unsigned(), dilation };
        };
        let Conv2dOptions { stride, padding, dilation, .. } = self.options;
        Window { kernel: self.kernel[axis], stride: stride[axis], padding: padding[axis], dilation: dilation[axis] }
    }

    pub(super) fn input(&self) -> Shape {
        self.shape(self.c, [self.depth.inputs, self.h, self.w])
    }

    pub(crate) fn output(&self) -> Shape {
        self.shape(self.o, [self.depth.outputs, self.p, self.q])
    }

    fn shape(&self, channels: usize, extents: [usize; 3]) -> Shape {
        Shape::new(&[&[self.n, channels], &extents[3 - self.axes..]].concat())
    }

    /// Elements of a channel of the input.
    pub(crate) fn inputs(&self) -> usize {
        self.depth.inputs * self.h * self.w
    }

    /// Elements of a channel of the output.
    pub(crate) fn outputs(&self) -> usize {
        self.depth.outputs * self.p * self.q
    }

    /// The planes of all outputs in a channel.
    pub(super) fn planes(&self) -> usize {
        self.n * self.depth.outputs
    }

    /// Taps of a pair of channels.
    pub(super) fn taps(&self) -> usize {
        self.depth.kernel * self.kernel[0] * self.kernel[1]
    }

    /// Elements of one output pixel's patch, within a group.
    pub(crate) fn patch(&self) -> usize {
        self.c / self.groups * self.taps()
    }

    /// `true` if Winograd's algorithm for 3×3 weights applies to planes: no stride, dilation or groups, and no more
    /// padding than weights span.
    pub(super) fn suits_winograd(&self) -> bool {
        let Conv2dOptions { stride, padding, dilation, groups } = self.options;
        let plain = self.kernel == [3, 3] && stride == [1, 1] && dilation == [1, 1] && groups == 1;
        plain && padding.iter().all(|&zeros| zeros <= 2)
    }

    /// `true` if the patches of an image are the image itself.
    pub(super) fn is_pointwise(&self) -> bool {
        let Depth { stride, padding, .. } = self.depth;
        self.taps() == 1
            && (stride, self.options.stride) == (1, [1, 1])
            && (padding, self.options.padding) == (0, [0, 0])
    }

    /// Elements that [`ConvShape::columns`] needs to write.
    pub(crate) fn scratch(&self) -> usize {
        if self.is_pointwise() { 0 } else { self.patch() * self.outputs() }
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
        for (row, out) in matrix.chunks_exact_mut(self.outputs() * side).enumerate() {
            let tap = self.tap(row);
            let channel = &images[tap.channel * side..][..self.inputs() * side];
            for (z, out) in out.chunks_exact_mut(self.p * line).enumerate() {
                if !tap.planes.contains(&z) {
                    out.fill(T::ZERO);
                    continue;
                }
                out[..tap.rows.start * line].fill(T::ZERO);
                out[tap.rows.end * line..].fill(T::ZERO);
                let lines = out.chunks_exact_mut(line).take(tap.rows.end).skip(tap.rows.start);
                for (out, from) in lines.zip(self.lines_read(&tap, z, side)) {
                    out[..tap.columns.start * side].fill(T::ZERO);
                    out[tap.columns.end * side..].fill(T::ZERO);
                    let out = &mut out[tap.columns.start * side..tap.columns.end * side];
                    // Lines are short: a loop beats a call that copies memory.
                    if stride == side {
                        out.iter_mut().zip(&channel[from..]).for_each(|(y, &x)| *y = x);
                    } else if side == 1 {
                        out.iter_mut().zip(channel[from..].iter().step_by(stride)).for_each(|(y, &x)| *y = x);
                    } else {
                        let pixels = out.chunks_exact_mut(side).zip((from..).step_by(stride));
                        pixels.for_each(|(out, from)| {
                            out.iter_mut().zip(&channel[from..]).for_each(|(y, &x)| *y = x);
                        });
                    }
                }
            }
        }
    }

    /// The transpose of [`ConvShape::gather`]: adds each patch element to its pixel.
    pub(super) fn add_columns<T: Real>(&self, matrix: &[T], side: usize, images: &mut [T]) {
        let (stride, line) = (self.options.stride[1] * side, self.q * side);
        for (row, from) in matrix.chunks_exact(self.outputs() * side).enumerate() {
            let tap = self.tap(row);
            let channel = &mut images[tap.channel * side..][..self.inputs() * side];
            for (z, from) in from.chunks_exact(self.p * line).enumerate() {
                if !tap.planes.contains(&z) {
                    continue;
                }
                let lines = from.chunks_exact(line).take(tap.rows.end).skip(tap.rows.start);
                for (from, to) in lines.zip(self.lines_read(&tap, z, side)) {
                    let from = &from[tap.columns.start * side..tap.columns.end * side];
                    if stride == side {
                        channel[to..].iter_mut().zip(from).for_each(|(y, &x)| *y += x);
                    } else if side == 1 {
                        channel[to..].iter_mut().step_by(stride).zip(from).for_each(|(y, &x)| *y += x);
                    } else {
                        let pixels = from.chunks_exact(side).zip((to..).step_by(stride));
                        pixels.for_each(|(from, to)| {
                            channel[to..].iter_mut().zip(from).for_each(|(y, &x)| *y += x);
                        });
                    }
                }
            }
        }
    }

    /// The first pixels in a channel of the lines that a tap reads for plane `z` of the output.
    fn lines_read(&self, tap: &Tap, z: usize, side: usize) -> impl Iterator<Item = usize> + use<> {
        let plane = (z - tap.planes.start) * self.depth.stride * self.h * self.w;
        ((plane + tap.first) * side..).step_by(self.options.stride[0] * self.w * side)
    }

    /// The channels of a group of image `n`, and everything after them.
    pub(super) fn image<'a, T>(&self, x: &'a [T], n: usize, group: usize) -> &'a [T] {
        &x[(n * self.groups + group) * (self.c / self.groups) * self.inputs()..]
    }

    /// The tap of patch row `row`.
    fn tap(&self, row: usize) -> Tap {
        let ([kh, kw], depth) = (self.kernel, self.depth);
        let (planes, z) = self.window(0).inside(row / (kh * kw) % depth.kernel, depth.inputs, depth.outputs);
        let (rows, y) = self.window(1).inside(row / kw % kh, self.h, self.p);
        let (columns, x) = self.window(2).inside(row % kw, self.w, self.q);
        let rows = if columns.is_empty() { rows.start..rows.start } else { rows };
        let channel = row / self.taps() * self.inputs();
        Tap { channel, planes, rows, columns, first: (z * self.h + y) * self.w + x }
    }

    /// The layers of outputs for which a tap is inside the input.
    pub(super) fn layers(&self, tap: usize) -> std::ops::Range<usize> {
        let of_plane = self.kernel[0] * self.kernel[1];
        self.window(0).inside(tap / of_plane, self.depth.inputs, self.depth.outputs).0
    }

    /// The place in a channel that a tap of an output reads; `None` in the padding.
    #[cfg(feature = "testing")]
    pub(crate) fn place(&self, output: usize, tap: usize) -> Option<usize> {
        let ([kh, kw], Depth { inputs, .. }) = (self.kernel, self.depth);
        let along = |axis: usize, output: usize, tap: usize, extent: usize| {
            let Window { stride, padding, dilation, .. } = self.window(axis);
            (output * stride + tap * dilation).checked_sub(padding).filter(|&at| at < extent)
        };
        let z = along(0, output / (self.p * self.q), tap / (kh * kw), inputs)?;
        let y = along(1, output / self.q % self.p, tap / kw % kh, self.h)?;
        let x = along(2, output % self.q, tap % kw, self.w)?;
        Some((z * self.h + y) * self.w + x)
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

    /// The depth of a pass as a convolution; the gradient of a weight reads images as the convolution does.
    pub(super) fn depth_of(&self, pass: Pass) -> Depth {
        if pass == Pass::GradInput { self.depth.transposed() } else { self.depth }
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
        let (depth, o) = (self.depth.transposed(), self.c * phases);
        Self { c: self.o, depth, h: self.p, w: self.q, o, kernel, p, q, options, ..*self }
    }

    /// [`ConvShape::transposed`] along all axes of volumes, without phases.
    pub(super) fn transposed_to(
        &self,
        [z, p, q]: [usize; 3],
        [deep, down, across]: [usize; 3],
        padding: [usize; 3],
        dilation: [usize; 3],
    ) -> Self {
        let planar = |[_, down, across]: [usize; 3]| [down, across];
        let planes = self.transposed(1, [down, across], [p, q], planar(padding), planar(dilation));
        let (padding, dilation) = (padding[0].cast_signed(), dilation[0]);
        let inputs = self.depth.outputs;
        Self { depth: Depth { inputs, outputs: z, kernel: deep, stride: 1, padding, dilation, apart: 1 }, ..planes }
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
        let of_planes = define![
            N: self.n, C: self.c, H: self.h, W: self.w, O: self.o, KH: self.kernel[0], KW: self.kernel[1],
            P: self.p, Q: self.q, SH: stride[0], SW: stride[1], PH: above, PW: padding[1],
            DH: dilation[0], DW: dilation[1], G: groups, UH: 1, UW: 1,
        ];
        [of_planes, self.depth.defines()].concat()
    }

    /// The defines by which tiles of the gradient of the input skip taps that read nothing but zeros: there must be
    /// zeros between the cotangents, and the input's extents must be multiples of their distances.
    pub(super) fn skips(&self) -> Option<Vec<Define>> {
        let Conv2dOptions { stride, padding, .. } = self.options;
        let depth = self.depth.transposed();
        let apart = [depth.apart, stride[0], stride[1]];
        let fits =
            [depth.outputs, self.h, self.w].iter().zip(apart).all(|(extent, apart)| extent.is_multiple_of(apart));
        if apart == [1; 3] || !fits {
            return None;
        }
        let shift = |padding: isize, apart: usize| (-padding).rem_euclid(apart.cast_signed());
        let of_plane = |axis: usize| self.gaps()[axis].cast_signed() - padding[axis].cast_signed();
        Some(define![
            SKIPS: 1, SHIFT_D: shift(depth.padding, apart[0]), SHIFT_H: shift(of_plane(0), apart[1]),
            SHIFT_W: shift(of_plane(1), apart[2]),
        ])
    }

    /// The defines of the gradient of the input as a convolution: its pixels, the cotangents, are a stride apart.
    pub(super) fn defines_of_input(&self) -> Vec<Define> {
        let Conv2dOptions { stride, padding, dilation, groups } = self.options;
        #[expect(clippy::cast_possible_truncation, reason = "shaders count modulo 2³²")]
        let [above, left] = [0, 1].map(|axis| self.gaps()[axis].wrapping_sub(padding[axis]) as u32);
        let of_planes = define![
            N: self.n, C: self.o, H: self.p, W: self.q, O: self.c, KH: self.kernel[0], KW: self.kernel[1],
            P: self.h, Q: self.w, SH: 1, SW: 1, PH: above, PW: left,
            DH: dilation[0], DW: dilation[1], G: groups, UH: stride[0], UW: stride[1],
        ];
        [of_planes, self.depth.transposed().defines()].concat()
    }
}
