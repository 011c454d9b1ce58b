//! The order in which native kernels read images: with their padding, and sorted by the remainders of rows and columns
//! modulo the stride. Every tap of neighbouring outputs then reads neighbouring numbers, whatever the stride and
//! dilation, so no patches are copied.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::ConvShape;
use crate::kernel::native::{Block, Finish, prefetch};
use crate::ops::Conv2dOptions;

/// Elements from a row to the place that is fetched meanwhile, and those of a line of the cache.
const AHEAD: usize = 512;
const LINE: usize = 16;

/// Columns from which fetching rows is worth its instructions.
const LEAST: usize = 32;

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
        if down * across == 1 {
            // A single plane, of rows that may be short.
            let inside = &mut to[self.above * self.width..self.rows * self.width];
            let (plane, lines) = (&self.planes[0], inside.chunks_exact_mut(self.width));
            for (from, to) in x.chunks_exact(self.columns).zip(lines) {
                self.fetch(from);
                copy_row(&from[plane.first..], 1, &mut to[plane.inside.clone()]);
            }
            return;
        }
        let (mut line, mut remainder) = (self.above / down, self.above % down);
        // Row by row, so that memory is read in its order.
        for from in x.chunks_exact(self.columns) {
            if line >= self.rows {
                break;
            }
            self.fetch(from);
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

    /// Fetches what follows a row.
    #[inline(always)]
    fn fetch(&self, row: &[f32]) {
        if self.columns >= LEAST {
            for line in (0..self.columns).step_by(LINE) {
                prefetch(row.as_ptr().wrapping_add(AHEAD + line));
            }
        }
    }
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
