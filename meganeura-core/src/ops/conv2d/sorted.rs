//! The order in which native kernels read images: with their padding, and sorted by the remainders of rows and columns
//! modulo the stride. Every tap of neighbouring outputs then reads neighbouring numbers, whatever the stride and
//! dilation, so no patches are copied.

use pulp::{Simd, WithSimd};

use super::ConvShape;
use crate::kernel::native::Block;
use crate::ops::Conv2dOptions;

/// The order of a channel: a plane for each pair of remainders that taps read. Output pixel `[p, q]` is number
/// `p · width + q` in every plane, counted from where its tap begins.
#[derive(Clone, Debug)]
pub(super) struct Sorted {
    extent: [usize; 2],
    padding: [usize; 2],
    stride: [usize; 2],
    /// The remainders of each plane.
    planes: Vec<[usize; 2]>,
    rows: usize,
    pub(super) width: usize,
    /// The place of each tap of the first output.
    pub(super) taps: Vec<usize>,
    /// Elements of a channel: whole vectors, with one to spare, since outputs are computed in vectors. They are an odd
    /// number, so that channels fall into all sets of a cache.
    pub(super) len: usize,
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
        Self { extent: [g.h, g.w], padding, stride, planes, rows, width, taps, len }
    }

    /// Sorts a channel, but for its padding, which is zero in `to` already.
    pub(super) fn copy(&self, x: &[f32], to: &mut [f32], arch: pulp::Arch) {
        arch.dispatch(Copy { sorted: self, x, to });
    }

    #[inline(always)]
    fn copy_here(&self, x: &[f32], to: &mut [f32]) {
        let ([h, w], [top, left], [down, across]) = (self.extent, self.padding, self.stride);
        for (to, &[row, column]) in to.chunks_exact_mut(self.rows * self.width).zip(&self.planes) {
            let begin = left.saturating_sub(column).div_ceil(across).min(self.width);
            let end = (w + left).saturating_sub(column).div_ceil(across).clamp(begin, self.width);
            let first = top.saturating_sub(row).div_ceil(down).min(self.rows);
            let last = (h + top).saturating_sub(row).div_ceil(down).clamp(first, self.rows);
            if begin == end {
                continue;
            }
            for line in first..last {
                let from = &x[(line * down + row - top) * w + begin * across + column - left..];
                let to = &mut to[line * self.width..][begin..end];
                match across {
                    1 => copy_row(&from[..to.len()], to),
                    2 => {
                        // All but the last, which may have no neighbour; the loop is SIMD.
                        let (pairs, _) = from.as_chunks::<2>();
                        let last = to.len() - 1;
                        to[..last].iter_mut().zip(&pairs[..last]).for_each(|(to, pair)| *to = pair[0]);
                        to[last] = from[2 * last];
                    }
                    _ => to.iter_mut().zip(from.iter().step_by(across)).for_each(|(to, &x)| *to = x),
                }
            }
        }
    }
}

/// Copies a row in vectors, the last of which may have some of the one before: rows are often too short for a call.
#[inline(always)]
fn copy_row(from: &[f32], to: &mut [f32]) {
    match to.len() {
        16.. => copy_chunks::<16>(from, to),
        8.. => copy_chunks::<8>(from, to),
        4.. => copy_chunks::<4>(from, to),
        _ => to.iter_mut().zip(from).for_each(|(to, &x)| *to = x),
    }
}

#[inline(always)]
fn copy_chunks<const N: usize>(from: &[f32], to: &mut [f32]) {
    to.as_chunks_mut::<N>().0.iter_mut().zip(from.as_chunks::<N>().0).for_each(|(to, x)| *to = *x);
    if let (Some(to), Some(x)) = (to.last_chunk_mut::<N>(), from.last_chunk::<N>()) {
        *to = *x;
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
