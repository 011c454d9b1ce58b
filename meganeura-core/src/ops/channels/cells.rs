//! The order in which native kernels go through the elements of channels: in cells that stay in the first-level cache,
//! whose results are joined in a fixed order.

use super::ChannelShape;
use crate::kernel::native::{self, Cascade, Real};

/// The most elements of a cell that lie side by side.
const BLOCK: usize = 4096;
/// The elements of a cell whose elements lie in different examples, side by side with those of its neighbours.
const ROWS: usize = 16;
/// The columns that are computed at once.
pub(super) const COLUMNS: usize = 256;
/// With fewer elements of a channel in an example, cells lie across examples.
const NARROW: usize = 32;

/// Computes the results of a cell whose elements lie side by side, from its first element, their number, and the cell's
/// channel.
type Row<'f, T> = dyn Fn(usize, usize, usize, &mut [T]) + Sync + 'f;

/// Computes the results of several columns, from the first element of the first one, and the number of rows, which are
/// `C·S` elements apart.
type Columns<'f, T> = dyn Fn(usize, usize, &mut [T]) + Sync + 'f;

/// The cells of all channels: `[slabs, C, width]`. A slab is an example, of which each channel has one or more blocks;
/// or a few examples, of which each channel has a column for each of its elements.
pub(super) struct Cells {
    shape: ChannelShape,
    by_columns: bool,
    slabs: usize,
    width: usize,
}

impl Cells {
    pub(super) fn of(shape: ChannelShape) -> Self {
        let ChannelShape { n, s, .. } = shape;
        let by_columns = s < NARROW && n > 1;
        let (slabs, width) = if by_columns { (n.div_ceil(ROWS), s) } else { (n, s.div_ceil(BLOCK)) };
        Self { shape, by_columns, slabs, width }
    }

    /// The number of cells.
    pub(super) fn len(&self) -> usize {
        self.slabs * self.shape.c * self.width
    }

    /// The number of a channel's first cell.
    pub(super) fn first(&self, channel: usize) -> usize {
        channel * self.width
    }

    /// Fills the results of all cells, `size` numbers each, in threads.
    pub(super) fn fill<T: Real>(&self, results: &mut [T], size: usize, row: &Row<'_, T>, columns: &Columns<'_, T>) {
        let ChannelShape { n, c, s } = self.shape;
        if !self.by_columns {
            let grain = native::grain(s.min(BLOCK));
            native::parallel(results, size * grain, &|first, results| {
                for (at, result) in (first / size..).zip(results.chunks_exact_mut(size)) {
                    let (plane, block) = (at / self.width, at % self.width);
                    let count = BLOCK.min(s - block * BLOCK);
                    row(plane * s + block * BLOCK, count, plane % c, result);
                }
            });
            return;
        }
        native::parallel(results, size * c * s, &|first, results| {
            let row = first / (size * c * s) * ROWS;
            native::parallel(results, size * COLUMNS, &|first, results| {
                columns(row * c * s + first / size, ROWS.min(n - row), results);
            });
        });
    }

    /// The totals of two terms for each cell of a channel. A term is computed from the cell's results and the number of
    /// its elements.
    pub(super) fn total<T: Real>(
        &self,
        results: &[T],
        size: usize,
        channel: usize,
        term: impl Fn(&[T], T) -> [T; 2],
    ) -> [T; 2] {
        let mut total = Cascade::<T, 2>::new(T::ZERO);
        let add = |a, b| a + b;
        for slab in 0..self.slabs {
            let first = (slab * self.shape.c + channel) * self.width;
            let cells = results[size * first..][..size * self.width].chunks_exact(size);
            for (block, cell) in cells.enumerate() {
                let count = if self.by_columns {
                    ROWS.min(self.shape.n - slab * ROWS)
                } else {
                    BLOCK.min(self.shape.s - block * BLOCK)
                };
                total.push(&term(cell, native::real(count)), add);
            }
        }
        total.finish(add)
    }
}
