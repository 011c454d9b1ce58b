//! The order in which native kernels read images: with their padding, and sorted by the remainders of rows and columns
//! modulo the stride. Every tap of neighbouring outputs then reads neighbouring numbers, whatever the stride and
//! dilation, so no patches are copied.

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

    /// Sorts a channel.
    pub(super) fn copy(&self, x: &[f32], to: &mut [f32]) {
        let ([h, w], [top, left], [down, across]) = (self.extent, self.padding, self.stride);
        for (to, &[row, column]) in to.chunks_exact_mut(self.rows * self.width).zip(&self.planes) {
            let begin = left.saturating_sub(column).div_ceil(across).min(self.width);
            let end = (w + left).saturating_sub(column).div_ceil(across).clamp(begin, self.width);
            for (line, to) in to.chunks_exact_mut(self.width).enumerate() {
                let row = line * down + row;
                if row < top || row >= top + h || begin == end {
                    to.fill(0.0);
                    continue;
                }
                to[..begin].fill(0.0);
                to[end..].fill(0.0);
                let from = &x[(row - top) * w + begin * across + column - left..];
                if across == 1 {
                    to[begin..end].copy_from_slice(&from[..end - begin]);
                } else {
                    to[begin..end].iter_mut().zip(from.iter().step_by(across)).for_each(|(to, &x)| *to = x);
                }
            }
        }
    }
}
