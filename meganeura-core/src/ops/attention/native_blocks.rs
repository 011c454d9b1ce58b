//! The forward pass of attention on the CPU in single precision. Keys and values are put into the order in which
//! products read them once, for all queries.

use pulp::Arch;

use super::native::{Matrices, Operands, Weights};
use crate::kernel::native::{self, Accumulate, Apart, Block, Borrowed, STRIP, Scratch, Shared, grain, parallel, tasks};

/// The most queries of a task, in whole tiles. Their scores stay in the second-level cache with the keys.
const ROWS: usize = 6 * Block::ROWS;

/// Computes the results and log-sum-exps of all queries. The order of each sum depends on the number of its terms
/// alone.
pub(super) fn forward(all: &Operands<'_, f32>, y: &mut [f32], lse: &mut [f32], scratch: &Scratch) {
    let g = all.g;
    let heads = g.batch / g.group;
    let [[key, feature], [value, column]] = [&all.k, &all.v].map(|x| [x.strides.0, x.strides.1]);
    let Some(keys) = Strips::new(heads, &all.k, ([g.d, g.s], [feature, key]), scratch) else { return };
    let Some(values) = Strips::new(heads, &all.v, ([g.s, g.e], [value, column]), scratch) else { return };
    // Blocks of nearly one size.
    let blocks = g.l.div_ceil(ROWS);
    let most = g.l.div_ceil(blocks);
    let [pitch, wide] = [g.s, g.e].map(|columns| columns.next_multiple_of(STRIP));
    let memory = || scratch.borrow::<f32>(most * (pitch + g.d + wide));
    let (y, lse) = (Shared::new(y), Shared::new(lse));
    tasks(g.batch * blocks, most * g.s * (g.d + g.e), &memory, &|task, memory| {
        let Some(memory) = memory else { return };
        let (b, first) = (task / blocks, task % blocks * most);
        let rows = most.min(g.l.saturating_sub(first));
        if rows == 0 {
            return;
        }
        // SAFETY: these queries belong to this task alone.
        let (y, lse) = unsafe {
            let at = b * g.l + first;
            (y.part(at * g.e, rows * g.e), lse.part(2 * at, 2 * rows))
        };
        let visible = all.visible(first + rows - 1);
        if visible == 0 {
            y.fill(0.0);
            lse.fill(0.0);
            return;
        }
        let (scores, rest) = memory.split_at_mut(most * pitch);
        let (queries, sums) = rest.split_at_mut(most * g.d);
        let (scores, queries) = (&mut scores[..rows * pitch], &mut queries[..rows * g.d]);
        let arch = Arch::new();
        all.scaled_queries(b, first, queries);
        keys.multiply(arch, b / g.group, (queries, g.d), [rows, visible, g.d], (&mut *scores, pitch));
        for (i, scores) in (first..).zip(scores.chunks_exact_mut(pitch)) {
            all.add_bias(b, i, &mut scores[..visible]);
        }
        arch.dispatch(Weights { scores: &mut *scores, pitch, keys: visible, lse, wants_lse: scratch.is_read(1) });
        let extents = [rows, g.e, visible];
        if wide == g.e {
            return values.multiply(arch, b / g.group, (scores, pitch), extents, (y, wide));
        }
        values.multiply(arch, b / g.group, (scores, pitch), extents, (&mut *sums, wide));
        for (y, sums) in y.chunks_exact_mut(g.e).zip(sums.chunks_exact(wide)) {
            y.copy_from_slice(&sums[..g.e]);
        }
    });
}

/// The right factors of products, in the order `[head, strip, term, column]`.
struct Strips<'a> {
    numbers: Borrowed<'a, f32>,
    terms: usize,
    strips: usize,
}

impl<'a> Strips<'a> {
    /// Factors with these extents and strides of terms and columns.
    fn new(
        heads: usize,
        x: &Matrices<'_, f32>,
        ([terms, columns], [term, column]): ([usize; 2], [usize; 2]),
        scratch: &'a Scratch,
    ) -> Option<Self> {
        let (strips, len) = (columns.div_ceil(STRIP), terms * STRIP);
        let mut numbers = scratch.borrow::<f32>(heads * strips * len)?;
        let several = grain(1).div_ceil(len);
        parallel(&mut numbers, several * len, &|at, part| {
            for (at, strip) in (at / len..).zip(part.chunks_exact_mut(len)) {
                let first = at % strips * STRIP;
                let x = &x.from(at / strips, 0)[first * column..];
                native::Strips::fill(strip, STRIP.min(columns - first), x, [term, column]);
            }
        });
        Some(Self { numbers, terms, strips })
    }

    /// Computes `c = a·b` for the factor of a head, with these rows, columns and terms. Neighbouring rows of `a` and
    /// `c` are so far apart; those of `c` are whole strips.
    fn multiply(
        &self,
        arch: Arch,
        head: usize,
        (a, row): (&[f32], usize),
        [rows, columns, terms]: [usize; 3],
        (c, pitch): (&mut [f32], usize),
    ) {
        let len = self.terms * STRIP;
        let strips = self.numbers[head * self.strips * len..].chunks_exact(len);
        for (first, strip) in (0..columns).step_by(STRIP).zip(strips) {
            let block = Block {
                extents: [rows, STRIP.min(columns - first), terms],
                a,
                a_rows: Apart(row),
                a_terms: Apart(1),
                b: strip,
                b_terms: Apart(STRIP),
                c: &mut c[first..],
                c_stride: pitch,
                accumulate: Accumulate::No,
            };
            block.multiply(arch);
        }
    }
}
