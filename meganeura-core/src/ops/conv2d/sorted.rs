//! The order in which native kernels read images: with their padding, and sorted by the remainders of rows and columns
//! modulo the stride. Every tap of neighbouring outputs then reads neighbouring numbers, whatever the stride and
//! dilation, so no patches are copied.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::ConvShape;
use crate::kernel::native::{Block, Finish, Run, prefetch};
use crate::ops::Conv2dOptions;

/// Elements from a row to the place that is fetched meanwhile.
const AHEAD: usize = 512;

/// The order of a channel: a plane for each pair of remainders that taps read. Output pixel `[p, q]` is number
/// `p · width + q` in every plane, counted from where its tap begins.
#[derive(Clone, Debug)]
pub(super) struct Sorted {
    /// Columns of the input, and rows of padding above it.
    columns: usize,
    above: usize,
    stride: [usize; 2],
    planes: Vec<Plane>,
    rows: usize,
    pub(super) width: usize,
    /// The place of each tap of the first output.
    pub(super) taps: Vec<usize>,
    /// Elements of a channel: whole vectors, with one to spare, since outputs are computed in vectors. They are an odd
    /// number, so that channels fall into all sets of a cache.
    pub(super) len: usize,
}

/// A plane of a channel.
#[derive(Clone, Debug)]
struct Plane {
    /// The remainder of its rows, counted with their padding.
    row: usize,
    /// The columns that are no padding, and the first that they are copied from.
    inside: Range<usize>,
    first: usize,
}

/// Sums for each output of a window, which are stored together.
pub(super) struct Part<'a> {
    pub(super) sums: Vec<Terms<'a>>,
    /// Stores sums of the first kind, followed at equal distances by those of the others.
    pub(super) finish: &'a dyn Finish<f32>,
}

/// The terms of sums.
pub(super) struct Terms<'a> {
    /// The places of the taps.
    pub(super) taps: Vec<usize>,
    /// `[output channel, input channel of its group, tap]`
    pub(super) w: &'a [f32],
}

impl Sorted {
    pub(super) fn new(g: &ConvShape) -> Self {
        let Conv2dOptions { stride, padding, dilation, .. } = g.options();
        let [down, across] = g.gaps();
        let (rows, width) = (g.p + down / stride[0], g.q + across / stride[1]);
        let mut planes: Vec<[usize; 2]> = Vec::new();
        let place = |tap: usize| {
            let at = [tap / g.kernel[1] * dilation[0], tap % g.kernel[1] * dilation[1]];
            let remainders = [at[0] % stride[0], at[1] % stride[1]];
            let plane = planes.iter().position(|known| *known == remainders).unwrap_or_else(|| {
                planes.push(remainders);
                planes.len() - 1
            });
            (plane * rows + at[0] / stride[0]) * width + at[1] / stride[1]
        };
        let taps = (0..g.taps()).map(place).collect();
        let vectors = (planes.len() * rows * width).div_ceil(Block::COLUMNS) + 1;
        let len = (vectors + 1 - vectors % 2) * Block::COLUMNS;
        let plane = |[row, column]: [usize; 2]| {
            let (left, across) = (padding[1], stride[1]);
            let begin = left.saturating_sub(column).div_ceil(across).min(width);
            let end = (g.w + left).saturating_sub(column).div_ceil(across).clamp(begin, width);
            Plane { row, inside: begin..end, first: (begin * across + column).saturating_sub(left) }
        };
        let planes = planes.into_iter().map(plane).collect();
        Self { columns: g.w, above: padding[0], stride, planes, rows, width, taps, len }
    }

    /// All taps, with the weights `w`.
    pub(super) fn all<'a>(&self, w: &'a [f32], finish: &'a dyn Finish<f32>) -> Part<'a> {
        Part { sums: vec![Terms { taps: self.taps.clone(), w }], finish }
    }

    /// Sorts a channel, but for its padding, which is zero in `to` already.
    pub(super) fn copy(&self, x: &[f32], to: &mut [f32], arch: pulp::Arch) {
        arch.dispatch(Copy { sorted: self, x, to });
    }

    #[inline(always)]
    fn copy_here(&self, x: &[f32], to: &mut [f32]) {
        let [down, across] = self.stride;
        let (mut line, mut remainder) = (self.above / down, self.above % down);
        // Row by row, so that memory is read in its order.
        for from in x.chunks_exact(self.columns) {
            if line >= self.rows {
                break;
            }
            prefetch(from, AHEAD, self.columns);
            for (at, plane) in self.planes.iter().enumerate() {
                if plane.row == remainder && !plane.inside.is_empty() {
                    let to = &mut to[(at * self.rows + line) * self.width..][plane.inside.clone()];
                    copy_row(&from[plane.first..], across, to);
                }
            }
            remainder += 1;
            if remainder == down {
                (line, remainder) = (line + 1, 0);
            }
        }
    }

    /// Sorts four channels as bytes, one word for the four of each pixel, but for their padding, which is in `to`
    /// already. `pixels` are the planes of so many channels, one after the other, whole numbers; the bytes of missing
    /// ones are arbitrary. `least` is the number whose byte is 0.
    pub(super) fn copy_bytes(&self, pixels: &[f32], channels: usize, least: f32, to: &mut [u32], arch: pulp::Arch) {
        arch.dispatch(CopyBytes { sorted: self, pixels, channels, least, to });
    }

    #[inline(always)]
    fn copy_bytes_here(&self, pixels: &[f32], channels: usize, least: f32, to: &mut [u32]) {
        let ([down, across], pixels_of) = (self.stride, pixels.len() / channels);
        let [a, b, c, d] = [0, 1, 2, 3].map(|channel: usize| &pixels[channel.min(channels - 1) * pixels_of..]);
        // The pixels of an image without padding and stride follow each other, as if they were one row.
        let is_one = self.stride == [1, 1] && self.above == 0 && self.rows * self.width == pixels_of;
        let columns = if is_one { pixels_of } else { self.columns };
        let (mut line, mut remainder) = (self.above / down, self.above % down);
        for first in (0..pixels_of).step_by(columns) {
            if line >= self.rows {
                break;
            }
            for (at, plane) in self.planes.iter().enumerate() {
                let inside = if is_one { 0..pixels_of } else { plane.inside.clone() };
                if plane.row == remainder && !inside.is_empty() {
                    let first = first + plane.first;
                    let rows = [&a[first..], &b[first..], &c[first..], &d[first..]];
                    let to = &mut to[(at * self.rows + line) * self.width..][inside];
                    copy_words(rows, across, least, to);
                }
            }
            remainder += 1;
            if remainder == down {
                (line, remainder) = (line + 1, 0);
            }
        }
    }

    /// The lines of `q` output pixels that so many places have parts of, without what lies between them.
    pub(super) fn lines(&self, q: usize, first: usize, count: usize) -> Vec<Run> {
        let width = self.width;
        if width == q {
            return vec![Run { first, at: 0, len: count }];
        }
        let of_line = |p: usize| {
            let (begin, end) = (first.max(p * width), (first + count).min(p * width + q));
            Run { first: p * q + begin - p * width, at: begin - first, len: end.saturating_sub(begin) }
        };
        // Places that begin between two lines have nothing of the first.
        (first / width..(first + count).div_ceil(width)).map(of_line).filter(|line| line.len > 0).collect()
    }
}

/// Every so many numbers of four rows as bytes of words.
#[inline(always)]
fn copy_words([a, b, c, d]: [&[f32]; 4], apart: usize, least: f32, to: &mut [u32]) {
    if apart == 1 {
        for ((((to, &a), &b), &c), &d) in to.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            *to = word([a, b, c, d], least);
        }
    } else {
        for (to, at) in to.iter_mut().zip((0..).step_by(apart)) {
            *to = word([a[at], b[at], c[at], d[at]], least);
        }
    }
}

/// Four whole numbers of `least` to `least + 255` as bytes.
#[inline(always)]
fn word(x: [f32; 4], least: f32) -> u32 {
    // 2²³: the sum has the number in its lowest bits. A conversion would check its range.
    let [a, b, c, d] = x.map(|x| (x - least + 8_388_608.0).to_bits() & 0xff);
    a | b << 8 | c << 16 | d << 24
}

/// Copies every so many numbers, the first of them at least.
#[inline(always)]
fn copy_row(from: &[f32], apart: usize, to: &mut [f32]) {
    match (apart, to.len()) {
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
    channels: usize,
    least: f32,
    to: &'a mut [u32],
}

impl WithSimd for CopyBytes<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        self.sorted.copy_bytes_here(self.pixels, self.channels, self.least, self.to);
    }
}
