//! The order in which native kernels read images: with their padding, and sorted by the remainders of rows and columns
//! modulo the stride. Every tap of neighbouring outputs then reads neighbouring numbers, whatever the stride and
//! dilation, so no patches are copied.

use pulp::{Simd, WithSimd};

use super::ConvShape;
use crate::kernel::native::{Block, Finish, Run, prefetch_line};
use crate::ops::Conv2dOptions;

/// Elements from a pixel to the place that is fetched meanwhile, and those of a line of the cache.
const AHEAD: usize = 512;
const LINE: usize = 16;

/// Pixels of a channel from which fetching is worth its instructions.
const LEAST: usize = 1024;

/// The order of a channel: a plane for each pair of remainders that taps read. Output pixel `[p, q]` is number
/// `p · width + q` in every plane, counted from where its tap begins.
#[derive(Clone, Debug)]
pub(super) struct Sorted {
    stretches: Vec<Stretch>,
    /// The distance in the image of neighbouring pixels of a stretch.
    across: usize,
    /// Pixels of a channel of the image.
    plane: usize,
    pub(super) width: usize,
    /// The place of each tap of the first output.
    pub(super) taps: Vec<usize>,
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
    /// The places of the taps.
    pub(super) taps: Vec<usize>,
    /// `[output channel, input channel of its group, tap]`
    pub(super) w: &'a [f32],
}

impl Sorted {
    pub(super) fn new(g: &ConvShape) -> Self {
        let options @ Conv2dOptions { stride, dilation, .. } = g.options();
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
        let stretches = stretches([g.h, g.w], &options, &planes, rows, width);
        Self { stretches, across: stride[1], plane: g.h * g.w, width, taps, len }
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
        let mut fetched = 0;
        for &Stretch { place, pixel, count } in &self.stretches {
            let end = pixel + count * self.across;
            while self.plane >= LEAST && fetched < end {
                prefetch_line(x.as_ptr().wrapping_add(fetched + AHEAD));
                fetched += LINE;
            }
            copy_row(&x[pixel..], self.across, &mut to[place..][..count]);
        }
    }

    /// Sorts four channels as bytes, one word for the four of each pixel, but for their padding, which is in `to`
    /// already. `pixels` are the planes of the channels, one after the other, whole numbers; the bytes of missing ones
    /// are arbitrary. `least` is the number whose byte is 0.
    pub(super) fn copy_bytes(&self, pixels: &[f32], least: f32, to: &mut [u32], arch: pulp::Arch) {
        arch.dispatch(CopyBytes { sorted: self, pixels, least, to });
    }

    #[inline(always)]
    fn copy_bytes_here(&self, pixels: &[f32], least: f32, to: &mut [u32]) {
        let last = pixels.len() / self.plane - 1;
        let [a, b, c, d] = [0, 1, 2, 3].map(|channel: usize| &pixels[channel.min(last) * self.plane..]);
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

/// The pixels of a row in one plane, a stride apart in the image; or those of all rows, if they follow each other.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    place: usize,
    /// The first of them in the image.
    pixel: usize,
    count: usize,
}

/// The stretches of an image `[h, w]` in planes of so many rows.
fn stretches(
    [h, w]: [usize; 2],
    options: &Conv2dOptions,
    planes: &[[usize; 2]],
    rows: usize,
    width: usize,
) -> Vec<Stretch> {
    let Conv2dOptions { padding: [top, left], stride: [down, across], .. } = *options;
    let mut stretches: Vec<Stretch> = Vec::new();
    for (plane, &[row, column]) in planes.iter().enumerate() {
        let begin = left.saturating_sub(column).div_ceil(across).min(width);
        let end = (w + left).saturating_sub(column).div_ceil(across).clamp(begin, width);
        let first = top.saturating_sub(row).div_ceil(down).min(rows);
        let last = (h + top).saturating_sub(row).div_ceil(down).clamp(first, rows);
        if begin == end {
            continue;
        }
        for line in first..last {
            let place = (plane * rows + line) * width + begin;
            let pixel = (line * down + row - top) * w + begin * across + column - left;
            match stretches.last_mut() {
                Some(before)
                    if across == 1 && [before.place, before.pixel].map(|at| at + before.count) == [place, pixel] =>
                {
                    before.count += end - begin;
                }
                _ => stretches.push(Stretch { place, pixel, count: end - begin }),
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
