//! Products with output channels as columns, for images of few pixels: weights that stay the same from run to run are
//! put into that order only once, and read one after the other.

use std::sync::Arc;

use pulp::{Simd, WithSimd};

use super::ConvShape;
use crate::host::HostBuffer;
use crate::kernel::native::{
    self, Accumulate, Block, Finish, Places, Run, STRIP, Scratch, Shared, parallel, tasks, threads_for,
};

/// The most pixels of an image for which weights are worth another order: lines of pixels are short.
pub(super) const FEW: usize = 1024;

/// The most pixels of a part of an image, whose sums stay in the L1 cache until they are turned.
const MOST: usize = 256;

/// The order of weights: `[group, strip, term, channel]`.
pub(super) struct Strips {
    groups: usize,
    /// Output channels of a group, and strips that they are divided into.
    rows: usize,
    count: usize,
    /// Terms of a sum.
    depth: usize,
    /// Pixels of an image of outputs.
    outputs: usize,
}

/// The pixels that one image and group reads: the place of each output's first term, and of the terms from there.
pub(super) struct Pixels<'a, R, T> {
    pub(super) x: &'a [f32],
    pub(super) outputs: R,
    pub(super) terms: T,
}

impl Strips {
    pub(super) fn new(g: &ConvShape) -> Self {
        let rows = g.o / g.groups;
        Self { groups: g.groups, rows, count: rows.div_ceil(STRIP), depth: g.patch(), outputs: g.outputs() }
    }

    /// Elements of a strip.
    fn len(&self) -> usize {
        self.depth * STRIP
    }

    /// Weights that stay the same, for images of few pixels.
    pub(super) fn prepared(&self, w: &[f32], scratch: &Scratch) -> Option<Arc<HostBuffer>> {
        if self.outputs > FEW {
            return None;
        }
        scratch.prepared::<f32>(1, self.groups * self.count * self.len(), |all| {
            parallel(all, self.len(), &|at, strip| {
                let (group, first) = (at / self.len() / self.count, at / self.len() % self.count * STRIP);
                let w = &w[(group * self.rows + first) * self.depth..];
                native::Strips::fill(strip, STRIP.min(self.rows - first), w, [1, self.depth]);
            });
        })
    }

    /// Computes one image and group, number `image` of all, from prepared weights.
    pub(super) fn multiply<R: Places + Sync, T: Places + Sync>(
        &self,
        image: usize,
        weights: &[f32],
        pixels: &Pixels<'_, R, T>,
        y: &Shared<'_, f32>,
        finish: &dyn Finish<f32>,
        scratch: &Scratch,
    ) {
        let (&Self { rows, outputs, .. }, arch) = (self, pulp::Arch::new());
        // The pixels of a few strips are divided, for threads. The order of each sum is the same however they are.
        let threads = threads_for(self.count * self.len() * outputs);
        let wanted = if threads > 1 { (4 * threads).div_ceil(self.count) } else { 1 };
        let parts = wanted.min(outputs.div_ceil(2 * Block::ROWS)).max(outputs.div_ceil(MOST));
        let most = outputs.div_ceil(parts);
        let memory = || [(); 2].map(|()| scratch.borrow::<f32>(most * STRIP));
        tasks(self.count * parts, self.len() * most, &memory, &|task, memory| {
            let [Some(sums), Some(channels)] = memory else { return };
            let (strip, part) = (task / parts, task % parts);
            let pixels_here = outputs * part / parts..outputs * (part + 1) / parts;
            let (columns, count) = (STRIP.min(rows - strip * STRIP), pixels_here.len());
            let (begin, a_rows) = pixels.outputs.after(pixels_here.start);
            let product = Block {
                extents: [count, columns, self.depth],
                a: &pixels.x[begin..],
                a_rows,
                a_terms: pixels.terms,
                b: &weights[(image % self.groups * self.count + strip) * self.len()..][..self.len()],
                b_terms: native::Strips { terms: self.depth },
                c: sums,
                c_stride: STRIP,
                accumulate: Accumulate::No,
            };
            product.multiply(arch);
            arch.dispatch(Turn { sums, outputs: count, channels });
            let first = (image * rows + strip * STRIP) * outputs + pixels_here.start;
            // All pixels of these channels are adjacent.
            let (runs, len) = if parts == 1 { (1, columns * count) } else { (columns, count) };
            let run = |k| Run { first: first + k * outputs, at: k * count, len };
            // SAFETY: these pixels of these channels belong to this task alone.
            unsafe { finish.store(channels, &mut (0..runs).map(run), y) };
        });
    }
}

/// The transpose of a strip's sums `[output, channel]`.
struct Turn<'a> {
    sums: &'a [f32],
    outputs: usize,
    channels: &'a mut [f32],
}

impl WithSimd for Turn<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { sums, outputs, channels } = self;
        let (rows, _) = sums[..outputs * STRIP].as_chunks::<STRIP>();
        let (fours, rest) = rows.as_chunks::<4>();
        for (at, [a, b, c, d]) in fours.iter().enumerate() {
            // Blocks of 4×4, which are turned in registers.
            for first in (0..STRIP).step_by(4) {
                let four =
                    |row: &[f32; STRIP]| -> [f32; 4] { [row[first], row[first + 1], row[first + 2], row[first + 3]] };
                let block = [four(a), four(b), four(c), four(d)];
                for k in 0..4 {
                    let to = &mut channels[(first + k) * outputs + 4 * at..][..4];
                    to.copy_from_slice(&block.map(|row| row[k]));
                }
            }
        }
        for (at, row) in (outputs - rest.len()..).zip(rest) {
            for (channel, &sum) in row.iter().enumerate() {
                channels[channel * outputs + at] = sum;
            }
        }
    }
}
