//! Products with a right factor that stays the same from run to run, on the CPU in single precision. The factor is put
//! into the order in which products read it only once, and results are finished before they leave the registers.

use std::ops::Range;
use std::sync::Arc;

use super::matmul::MatmulShape;
use crate::Layout;
use crate::host::HostBuffer;
use crate::kernel::native::{
    Accumulate, Affine, Apart, Block, Finish, Finished, Real, Run, STRIP, Scratch, Shared, Strips, parallel, tasks,
};

/// Rows of a task: whole tiles, whose sums stay in the L1 cache with a part of a strip.
const ROWS: usize = 3 * Block::ROWS;

/// Strips whose columns make a line that is long enough for any elementwise work.
const LINE: usize = 8;

/// Rows from which the factor is worth another order: with fewer, memory is what takes the time.
const FEWEST: usize = 6;

/// A factor in the order `[strip, term, column]`.
pub(super) struct Weights {
    shape: MatmulShape,
    strips: Arc<HostBuffer>,
}

impl Weights {
    /// A factor that all products share, if it stays the same, and if sums may have another order of terms.
    pub(super) fn prepared(
        shape: &MatmulShape,
        b: &[f32],
        (batches, [row, column]): (&Layout, [usize; 2]),
        scratch: &Scratch,
    ) -> Option<Self> {
        let &MatmulShape { batch, m, k, n } = shape;
        if scratch.is_exact()
            || batch * m < FEWEST
            || k == 0
            || n == 0
            || batches.strides().iter().any(|&stride| stride != 0)
        {
            return None;
        }
        let b = &b[batches.at(0)..];
        let len = k * STRIP;
        let strips = scratch.prepared::<f32>(1, n.div_ceil(STRIP) * len, |all| {
            parallel(all, len, &|at, strip| {
                let first = at / len * STRIP;
                Strips::fill(strip, STRIP.min(n - first), &b[first * column..], [row, column]);
            });
        })?;
        Some(Self { shape: *shape, strips })
    }

    /// The products of all `a`.
    pub(super) fn multiply(
        &self,
        a: &[f32],
        (batches, [row, column]): (&Layout, [usize; 2]),
        y: &mut [f32],
        finish: &dyn Finish<f32>,
        scratch: &Scratch,
    ) {
        let MatmulShape { batch, m, k, n } = self.shape;
        let (weights, y, arch) = (f32::slice(&self.strips), Shared::new(y), pulp::Arch::new());
        let strips = n.div_ceil(STRIP);
        // Parts of the rows of nearly one size.
        let parts = m.div_ceil(ROWS);
        let most = m.div_ceil(parts);
        let rows = |part: usize| part * most..m.min((part + 1) * most);
        let factors = Factors { a, apart: [row, column], weights, terms: k, columns: n };
        let first_of = |product: usize, row: usize, strip: usize| (product * m + row) * n + strip * STRIP;
        let first = finish.first().and_then(|affine| Some((affine, Finished::columns(affine, n, &y)?)));
        // A product of some rows and a strip, with the first part of the work.
        let store =
            |block: Block<'_, Apart, Apart, Strips>, (affine, finished): (&Affine<'_, f32>, Finished<'_>), first| {
                let finished = finished.at(affine, first, block.extents[1]);
                // SAFETY: these rows and columns belong to the caller's task alone.
                unsafe { block.multiply_finished(arch, finished) };
            };
        if let (Some(first), Some(_)) = (first, finish.affine()) {
            // Strip by strip: each is read from memory once.
            let memory = || scratch.borrow::<f32>(most * STRIP);
            return tasks(strips * batch * parts, k * most * STRIP, &memory, &|task, memory| {
                let Some(sums) = memory else { return };
                let (strip, product, rows) = (task / parts / batch, task / parts % batch, rows(task % parts));
                let block = factors.block(batches.at(product), &rows, strip, sums, STRIP);
                store(block, first, first_of(product, rows.start, strip));
            });
        }
        // Other work takes lines as long as there are, if threads need not share them.
        let shares = (2 * rayon::current_num_threads()).div_ceil(batch * parts).min(strips.div_ceil(LINE));
        let wide = strips.div_ceil(shares);
        let memory = || scratch.borrow::<f32>(most * wide * STRIP);
        tasks(batch * parts * shares, k * most * wide * STRIP, &memory, &|task, memory| {
            let Some(sums) = memory else { return };
            let (product, rows, begin) = (task / shares / parts, rows(task / shares % parts), task % shares * wide);
            let end = strips.min(begin + wide);
            let len = n.min(end * STRIP).saturating_sub(begin * STRIP);
            if let Some(first) = first {
                for strip in begin..end {
                    let block = factors.block(batches.at(product), &rows, strip, sums, STRIP);
                    store(block, first, first_of(product, rows.start, strip));
                }
                for row in rows {
                    let first = first_of(product, row, begin);
                    // SAFETY: these rows and columns belong to this task alone.
                    finish.after_first(first, unsafe { y.part(first, len) });
                }
                return;
            }
            for strip in begin..end {
                let sums = &mut sums[(strip - begin) * STRIP..];
                factors.block(batches.at(product), &rows, strip, sums, wide * STRIP).multiply(arch);
            }
            let of_row = |(at, row)| Run { first: first_of(product, row, begin), at: at * wide * STRIP, len };
            // SAFETY: as above.
            unsafe { finish.store(sums, &mut rows.enumerate().map(of_row), &y) };
        });
    }
}

/// Both factors of the products.
struct Factors<'a> {
    a: &'a [f32],
    /// The distance of neighbouring rows and columns of `a`.
    apart: [usize; 2],
    weights: &'a [f32],
    terms: usize,
    columns: usize,
}

impl Factors<'_> {
    /// The sums of some rows and a strip, of the product whose left factor begins at `first`.
    fn block<'c>(
        &'c self,
        first: usize,
        rows: &Range<usize>,
        strip: usize,
        c: &'c mut [f32],
        c_stride: usize,
    ) -> Block<'c, Apart, Apart, Strips> {
        let ([row, column], len) = (self.apart, self.terms * STRIP);
        Block {
            extents: [rows.len(), STRIP.min(self.columns - strip * STRIP), self.terms],
            a: &self.a[first + rows.start * row..],
            a_rows: Apart(row),
            a_terms: Apart(column),
            b: &self.weights[strip * len..][..len],
            b_terms: Strips { terms: self.terms },
            c,
            c_stride,
            accumulate: Accumulate::No,
        }
    }
}
