//! The order in which native kernels read images and volumes: with their padding, and sorted by the remainders of
//! layers, rows and columns modulo the stride. Every tap of neighbouring outputs then reads neighbouring numbers,
//! whatever the stride and dilation, so no patches are copied. An image is a volume of one layer.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::ConvShape;
use crate::kernel::native::{Block, Finish, Gaps, Lines, Run, prefetch_line};
use crate::ops::window::Window;

/// Elements from a pixel to the place that is fetched meanwhile, and those of a line of the cache.
const AHEAD: usize = 512;
const LINE: usize = 16;

/// Pixels of a channel from which fetching is worth its instructions.
const LEAST: usize = 1024;

/// The order of a channel: a grid for each triple of remainders that taps read. Output pixel `[z, p, q]` is number
/// `z · layer + p · width + q` in every grid, counted from where its tap begins.
#[derive(Clone, Debug)]
pub(super) struct Sorted {
    stretches: Vec<Stretch>,
    /// The distance in the input of neighbouring pixels of a stretch.
    across: usize,
    /// Pixels of a channel of the input.
    pixels: usize,
    /// Rows and columns of a layer of outputs.
    outputs: [usize; 2],
    pub(super) width: usize,
    pub(super) layer: usize,
    /// The place of each tap of the first output.
    pub(super) taps: Vec<usize>,
    /// The layers of outputs for which each tap is inside the input.
    pub(super) inside: Vec<Range<usize>>,
    /// Elements of a channel: whole vectors, with one to spare, since outputs are computed in vectors. They are an odd
    /// number, so that channels fall into all sets of a cache.
    pub(super) len: usize,
}

/// Sums for each output of a window, which are stored together.
pub(super) struct Part<'a> {
    pub(super) sums: Vec<Terms<'a>>,
    /// Stores sums of the first kind, followed at equal distances by those of the others.
    pub(super) finish: &'a dyn Finish<f32>,
}

/// The terms of sums.
pub(super) struct Terms<'a> {
    /// The numbers of the taps.
    pub(super) taps: Vec<usize>,
    /// `[output channel, input channel of its group, tap]`
    pub(super) w: &'a [f32],
}

impl Sorted {
    pub(super) fn new(g: &ConvShape) -> Self {
        let windows = [0, 1, 2].map(|axis| g.window(axis));
        let gaps = windows.map(|window| (window.kernel - 1) * window.dilation / window.stride);
        let (layers, rows, width) = (g.depth.outputs + gaps[0], g.p + gaps[1], g.q + gaps[2]);
        let mut grids: Vec<[usize; 3]> = Vec::new();
        let place = |tap: usize| {
            let [_, kh, kw] = windows.map(|window| window.kernel);
            let at = [tap / (kh * kw), tap / kw % kh, tap % kw];
            let at: [usize; 3] = std::array::from_fn(|axis| at[axis] * windows[axis].dilation);
            let remainders = std::array::from_fn(|axis| at[axis] % windows[axis].stride);
            let [layer, row, column] = std::array::from_fn(|axis| at[axis] / windows[axis].stride);
            let grid = grids.iter().position(|known| *known == remainders).unwrap_or_else(|| {
                grids.push(remainders);
                grids.len() - 1
            });
            ((grid * layers + layer) * rows + row) * width + column
        };
        let taps = (0..g.taps()).map(place).collect();
        let inside = (0..g.taps()).map(|tap| g.layers(tap)).collect();
        let vectors = (grids.len() * layers * rows * width).div_ceil(Block::COLUMNS) + 1;
        let len = (vectors + 1 - vectors % 2) * Block::COLUMNS;
        let stretches = stretches([g.depth.inputs, g.h, g.w], &windows, &grids, [layers, rows, width]);
        let (across, layer) = (windows[2].stride, rows * width);
        Self { stretches, across, pixels: g.inputs(), outputs: [g.p, g.q], width, layer, taps, inside, len }
    }

    /// The place of an output, counted from where a tap begins.
    pub(super) fn output(&self, at: usize) -> usize {
        let [p, q] = self.outputs;
        at / (p * q) * self.layer + at / q % p * self.width + at % q
    }

    /// `true` if products leave out what lies between the rows of outputs: they are whole vectors.
    fn is_dense(&self) -> bool {
        self.outputs[1].is_multiple_of(Block::COLUMNS)
    }

    /// Columns of a product for a layer of outputs.
    pub(super) fn columns(&self) -> usize {
        let [p, q] = self.outputs;
        if self.is_dense() { p * q } else { (p - 1) * self.width + q }
    }

    /// The places of these terms and of the columns of a layer from `first` on, a multiple of [`Block::COLUMNS`].
    pub(super) fn lines<'a>(&self, terms: &'a [usize], first: usize) -> Lines<'a> {
        let len = if self.is_dense() { self.outputs[1] } else { usize::MAX };
        Lines { terms, first, len, apart: self.width }
    }

    /// All taps, with the weights `w`.
    pub(super) fn all<'a>(&self, w: &'a [f32], finish: &'a dyn Finish<f32>) -> Part<'a> {
        Part { sums: vec![Terms { taps: (0..self.taps.len()).collect(), w }], finish }
    }

    /// Sorts a channel, but for its padding, which is zero in `to` already.
    pub(super) fn copy(&self, x: &[f32], to: &mut [f32], arch: pulp::Arch) {
        arch.dispatch(Copy { sorted: self, x, to });
    }

    #[inline(always)]
    fn copy_here(&self, x: &[f32], to: &mut [f32]) {
        let mut fetched = 0;
        for &Stretch { place, pixel, count } in &self.stretches {
            let end = pixel + count * self.across;
            while self.pixels >= LEAST && fetched < end {
                prefetch_line(x.as_ptr().wrapping_add(fetched + AHEAD));
                fetched += LINE;
            }
            copy_row(&x[pixel..], self.across, &mut to[place..][..count]);
        }
    }

    /// Sorts four channels as bytes, one word for the four of each pixel, but for their padding, which is in `to`
    /// already. `pixels` are those of the channels, one after the other, whole numbers; the bytes of missing ones
    /// are arbitrary. `least` is the number whose byte is 0.
    pub(super) fn copy_bytes(&self, pixels: &[f32], least: f32, to: &mut [u32], arch: pulp::Arch) {
        arch.dispatch(CopyBytes { sorted: self, pixels, least, to });
    }

    #[inline(always)]
    fn copy_bytes_here(&self, pixels: &[f32], least: f32, to: &mut [u32]) {
        let last = pixels.len() / self.pixels - 1;
        let [a, b, c, d] = [0, 1, 2, 3].map(|channel: usize| &pixels[channel.min(last) * self.pixels..]);
        for &Stretch { place, pixel, count } in &self.stretches {
            let to = &mut to[place..][..count];
            let end = pixel + (count - 1) * self.across + 1;
            let (a, b, c, d) = (&a[pixel..end], &b[pixel..end], &c[pixel..end], &d[pixel..end]);
            if self.across == 1 {
                for ((((to, &a), &b), &c), &d) in to.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                    *to = byte(a, least) | byte(b, least) << 8 | byte(c, least) << 16 | byte(d, least) << 24;
                }
            } else {
                for (to, at) in to.iter_mut().zip((0..).step_by(self.across)) {
                    let [a, b, c, d] = [a[at], b[at], c[at], d[at]].map(|x| byte(x, least));
                    *to = a | b << 8 | c << 16 | d << 24;
                }
            }
        }
    }

    /// What lies between the rows of outputs for columns from `first` on, if anything does.
    pub(super) fn gaps(&self, first: usize) -> Option<Gaps> {
        let [_, len] = self.outputs;
        let has_gaps = self.width > len && !self.is_dense();
        has_gaps.then_some(Gaps { first, len, apart: self.width })
    }

    /// The lines of output pixels of a layer that so many columns have parts of, without what lies between them.
    pub(super) fn runs(&self, first: usize, count: usize) -> Vec<Run> {
        let Some(Gaps { len: q, apart: width, .. }) = self.gaps(first) else {
            return vec![Run { first, at: 0, len: count }];
        };
        let of_line = |p: usize| {
            let (begin, end) = (first.max(p * width), (first + count).min(p * width + q));
            Run { first: p * q + begin - p * width, at: begin - first, len: end.saturating_sub(begin) }
        };
        // Places that begin between two lines have nothing of the first.
        (first / width..(first + count).div_ceil(width)).map(of_line).filter(|line| line.len > 0).collect()
    }
}

/// The pixels of a row in one grid, a stride apart in the input; or those of several rows, if they follow each other.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    place: usize,
    /// The first of them in the input.
    pixel: usize,
    count: usize,
}

/// The stretches of a channel in grids of these extents.
fn stretches(inputs: [usize; 3], windows: &[Window; 3], grids: &[[usize; 3]], extents: [usize; 3]) -> Vec<Stretch> {
    let mut stretches: Vec<Stretch> = Vec::new();
    for (grid, remainders) in grids.iter().enumerate() {
        // Along each axis, the places of a grid that are in the input, and the pixel of the first of them.
        let [(layers, front), (rows, top), (columns, left)] = std::array::from_fn(|axis| {
            let (Window { stride, padding, .. }, remainder) = (windows[axis], remainders[axis]);
            let begin = padding.saturating_sub(remainder).div_ceil(stride).min(extents[axis]);
            let end = (inputs[axis] + padding).saturating_sub(remainder).div_ceil(stride).clamp(begin, extents[axis]);
            (begin..end, (begin * stride + remainder).saturating_sub(padding))
        });
        if columns.is_empty() {
            continue;
        }
        for (layer, z) in layers.zip((front..).step_by(windows[0].stride)) {
            for (row, y) in rows.clone().zip((top..).step_by(windows[1].stride)) {
                let place = ((grid * extents[0] + layer) * extents[1] + row) * extents[2] + columns.start;
                let pixel = (z * inputs[1] + y) * inputs[2] + left;
                match stretches.last_mut() {
                    Some(before)
                        if windows[2].stride == 1
                            && [before.place, before.pixel].map(|at| at + before.count) == [place, pixel] =>
                    {
                        before.count += columns.len();
                    }
                    _ => stretches.push(Stretch { place, pixel, count: columns.len() }),
                }
            }
        }
    }
    // Row by row, so that memory is read in its order.
    stretches.sort_by_key(|stretch| stretch.pixel);
    stretches
}

/// A whole number of `least` to `least + 255` as a byte.
#[inline(always)]
fn byte(x: f32, least: f32) -> u32 {
    // 2²³: the sum has the number in its lowest bits. A conversion would check its range.
    (x - least + 8_388_608.0).to_bits() & 0xff
}

/// Copies every so many numbers, the first of them at least.
#[inline(always)]
pub(super) fn copy_row(from: &[f32], apart: usize, to: &mut [f32]) {
    match (apart, to.len()) {
        // Without a loop, which would become a call.
        (1, 16) => *to.first_chunk_mut::<16>().expect("it is as long") = *from.first_chunk().expect("it is longer"),
        // In vectors, the last of which may have some of the one before: rows are often too short for a call.
        (1, 16..) => copy_chunks::<16>(from, to),
        (1, 8..) => copy_chunks::<8>(from, to),
        (1, 4..) => copy_chunks::<4>(from, to),
        (2, 16..) => copy_pairs::<16, 31>(from, to),
        (2, 8..) => copy_pairs::<8, 15>(from, to),
        (2, 4..) => copy_pairs::<4, 7>(from, to),
        _ => to.iter_mut().zip(from.iter().step_by(apart)).for_each(|(to, &x)| *to = x),
    }
}

#[inline(always)]
fn copy_chunks<const N: usize>(from: &[f32], to: &mut [f32]) {
    to.as_chunks_mut::<N>().0.iter_mut().zip(from.as_chunks::<N>().0).for_each(|(to, x)| *to = *x);
    if let (Some(x), Some(to)) = (from[..to.len()].last_chunk::<N>(), to.last_chunk_mut::<N>()) {
        *to = *x;
    }
}

/// Copies every second number; `M` is `2·N − 1`, as the last has no neighbour.
#[inline(always)]
fn copy_pairs<const N: usize, const M: usize>(from: &[f32], to: &mut [f32]) {
    let firsts = |from: &[f32; M]| std::array::from_fn(|k| from[2 * k]);
    let last = 2 * (to.len() - N);
    let from = &from[..last + M];
    for (to, from) in to.as_chunks_mut::<N>().0.iter_mut().zip(from.chunks(2 * N)) {
        *to = firsts(from.first_chunk().expect("whole vectors"));
    }
    if let (Some(to), Some(from)) = (to.last_chunk_mut::<N>(), from.last_chunk::<M>()) {
        *to = firsts(from);
    }
}

/// A copy in the form that `pulp` needs.
struct Copy<'a> {
    sorted: &'a Sorted,
    x: &'a [f32],
    to: &'a mut [f32],
}

impl WithSimd for Copy<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        self.sorted.copy_here(self.x, self.to);
    }
}

/// Likewise, of bytes.
struct CopyBytes<'a> {
    sorted: &'a Sorted,
    pixels: &'a [f32],
    least: f32,
    to: &'a mut [u32],
}

impl WithSimd for CopyBytes<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        self.sorted.copy_bytes_here(self.pixels, self.least, self.to);
    }
}
