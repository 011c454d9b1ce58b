//! Attention on the CPU: computes the scores of one block of queries at a time, by matrix products. The forward pass in
//! single precision has products of its own.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::{Attention, AttentionShape, native_blocks};
use crate::Layout;
use crate::kernel::gemm::strides;
use crate::kernel::native::{self, Accumulate, Block, Matrix, OutView, Real, Scratch, Threads, View};

/// Queries in a block.
const ROWS: usize = 64;

/// With fewer heads than this in all sequences, they do not keep a processor's threads busy.
const FEW_HEADS: usize = 8;

/// An operand, as a batch of matrices.
pub(super) struct Matrices<'a, T> {
    data: &'a [T],
    batch: Layout,
    pub(super) strides: (usize, usize),
}

impl<'a, T: Real> Matrices<'a, T> {
    fn new(x: &View<'a, T>) -> Self {
        let (batch, [row, column]) = strides(x.layout());
        Self { data: x.floats(), batch, strides: (row, column) }
    }

    /// The same in single precision, if they are.
    fn singles(&self) -> Option<Matrices<'a, f32>> {
        Some(Matrices { data: T::singles(self.data)?, batch: self.batch, strides: self.strides })
    }

    /// The numbers of a matrix from a row on.
    pub(super) fn from(&self, b: usize, row: usize) -> &'a [T] {
        &self.data[self.batch.at(b) + row * self.strides.0..]
    }

    /// Some rows of a matrix.
    fn rows(&self, b: usize, first: usize, (rows, columns): (usize, usize)) -> Matrix<'a, T> {
        Matrix::new(self.from(b, first), (rows, columns), self.strides)
    }

    /// The same rows, transposed.
    fn transposed(&self, b: usize, first: usize, (rows, columns): (usize, usize)) -> Matrix<'a, T> {
        Matrix::new(self.from(b, first), (columns, rows), (self.strides.1, self.strides.0))
    }
}

/// The operands of both passes.
pub(super) struct Operands<'a, T> {
    op: &'a Attention,
    pub(super) g: AttentionShape,
    q: Matrices<'a, T>,
    pub(super) k: Matrices<'a, T>,
    pub(super) v: Matrices<'a, T>,
    bias: Option<Matrices<'a, T>>,
}

impl<'a, T: Real> Operands<'a, T> {
    fn new(op: &'a Attention, x: &[View<'a, T>], bias: Option<&View<'a, T>>) -> Self {
        let g = AttentionShape::of(x[0].dims(), x[2].dims());
        let [q, k, v] = [&x[0], &x[1], &x[2]].map(Matrices::new);
        Self { op, g, q, k, v, bias: bias.map(Matrices::new) }
    }

    /// The same in single precision, if they are.
    fn singles(&self) -> Option<Operands<'a, f32>> {
        let [q, k, v] = [self.q.singles()?, self.k.singles()?, self.v.singles()?];
        let bias = match &self.bias {
            Some(bias) => Some(bias.singles()?),
            None => None,
        };
        Some(Operands { op: self.op, g: self.g, q, k, v, bias })
    }

    /// Some queries times the factor of the scores, one after the other.
    pub(super) fn scaled_queries(&self, b: usize, first: usize, to: &mut [T]) {
        let (q, scale) = (self.q.from(b, first), T::from_f64(self.op.scale.0));
        let (row, column) = self.q.strides;
        for (i, to) in to.chunks_exact_mut(self.g.d).enumerate() {
            let q = &q[i * row..];
            if column == 1 {
                to.iter_mut().zip(q).for_each(|(to, &q)| *to = q * scale);
            } else {
                to.iter_mut().zip(q.iter().step_by(column.max(1))).for_each(|(to, &q)| *to = q * scale);
            }
        }
    }

    /// Adds the bias of a query to its scores, all of which belong to keys that some query of its block sees, and hides
    /// keys that it does not see itself.
    pub(super) fn add_bias(&self, b: usize, i: usize, scores: &mut [T]) {
        let (visible, hidden) = scores.split_at_mut(self.visible(i).min(scores.len()));
        if let Some(bias) = &self.bias {
            let (bias, stride) = (bias.from(b, i), bias.strides.1);
            visible.iter_mut().enumerate().for_each(|(j, score)| *score += bias[j * stride]);
        }
        hidden.fill(T::NEG_INFINITY);
    }

    /// The number of keys that a query sees.
    pub(super) fn visible(&self, i: usize) -> usize {
        let AttentionShape { l, s, .. } = self.g;
        if self.op.causal { (i + 1 + s).saturating_sub(l) } else { s }
    }

    /// Computes the scores of some queries with all keys that the last of them sees; −∞ for hidden keys. Returns the
    /// length of a row.
    fn scores(&self, b: usize, first: usize, rows: usize, scores: &mut [T]) -> usize {
        let keys = self.visible(first + rows - 1);
        if keys == 0 {
            return 0;
        }
        let scores = &mut scores[..rows * keys];
        let q = self.q.rows(b, first, (rows, self.g.d));
        let k = self.k.transposed(b / self.g.group, 0, (keys, self.g.d));
        native::gemm(q, k, scores, Accumulate::No, Threads::One);
        let scale = T::from_f64(self.op.scale.0);
        for (i, scores) in (first..).zip(scores.chunks_exact_mut(keys)) {
            scores.iter_mut().for_each(|score| *score = *score * scale);
            self.add_bias(b, i, scores);
        }
        keys
    }
}

/// The blocks of `rows` rows: the first row and the number of rows of each.
fn blocks(rows: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).step_by(ROWS).map(move |first| (first, ROWS.min(rows - first)))
}

/// Turns scores of some queries into their weights, and computes their log-sum-exps.
pub(super) struct Weights<'a, T> {
    pub(super) scores: &'a mut [T],
    /// The distance of neighbouring rows of scores.
    pub(super) pitch: usize,
    pub(super) keys: usize,
    pub(super) lse: &'a mut [T],
    /// `false` if nothing reads the log-sum-exps.
    pub(super) wants_lse: bool,
}

/// Queries that are computed at once: one need not wait for the peak and the mass of another.
const AT_ONCE: usize = 4;

impl<T: Real> WithSimd for Weights<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { scores, pitch, keys, lse, wants_lse } = self;
        // Whole vectors, if rows have room for them: what fills them has no weight.
        let wide = keys.next_multiple_of(Block::COLUMNS).min(pitch);
        scores.chunks_exact_mut(pitch).for_each(|scores| scores[keys..wide].fill(T::NEG_INFINITY));
        for (scores, lse) in scores.chunks_mut(AT_ONCE * pitch).zip(lse.chunks_mut(2 * AT_ONCE)) {
            let mut peaks = [T::ZERO; AT_ONCE];
            for (peak, scores) in peaks.iter_mut().zip(scores.chunks_exact(pitch)) {
                // NaN is not counted as a peak. It makes the mass NaN.
                let found = native::peak(&scores[..wide]);
                *peak = if found == T::NEG_INFINITY { T::ZERO } else { found };
            }
            for (scores, &peak) in scores.chunks_exact_mut(pitch).zip(&peaks) {
                native::make_weights::<T, S>(&mut scores[..wide], peak);
            }
            let mut masses = [T::ONE; AT_ONCE];
            for (mass, scores) in masses.iter_mut().zip(scores.chunks_exact(pitch)) {
                // A query that sees no key has no mass; all others have at least 1. Its weights stay 0.
                let found = native::sum(&scores[..wide]);
                *mass = if found == T::ZERO { T::ONE } else { found };
            }
            for (scores, &mass) in scores.chunks_exact_mut(pitch).zip(&masses) {
                let share = T::ONE / mass;
                scores[..wide].iter_mut().for_each(|score| *score = *score * share);
            }
            if wants_lse {
                for (lse, (&peak, &mass)) in lse.as_chunks_mut::<2>().0.iter_mut().zip(peaks.iter().zip(&masses)) {
                    *lse = [peak, mass.ln()];
                }
            }
        }
    }
}

/// Turns scores of some queries into their weights, and the products of `dy` and `v` into slopes.
struct Slopes<'a, T> {
    weights: &'a mut [T],
    slopes: &'a mut [T],
    keys: usize,
    lse: &'a [T],
    delta: &'a [T],
    scale: T,
}

impl<T: Real> WithSimd for Slopes<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let rows = self.weights.chunks_exact_mut(self.keys).zip(self.slopes.chunks_exact_mut(self.keys));
        for ((weights, slopes), (&[peak, rest], &delta)) in rows.zip(self.lse.as_chunks::<2>().0.iter().zip(self.delta))
        {
            for (weight, slope) in weights.iter_mut().zip(slopes) {
                *weight = (*weight - peak - rest).exp::<S>();
                *slope = *weight * (*slope - delta) * self.scale;
            }
        }
    }
}

pub(super) fn forward<T: Real>(op: &Attention, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
    let all = Operands::new(op, x, x.get(3));
    let AttentionShape { group, l, s, e, .. } = all.g;
    let [y, lse] = y else { unreachable!("two results") };
    if let Some(all) = all.singles() {
        let [y, lse] = [y, lse].map(|y| T::singles_mut(y.floats()).expect("all are of one type"));
        return native_blocks::forward(&all, y, lse, scratch);
    }
    let arch = Arch::new();
    let heads = y.floats().par_chunks_mut(l * e).zip(lse.floats().par_chunks_mut(2 * l)).enumerate();
    let blocks = heads.flat_map(|(b, (y, lse))| {
        let blocks = y.par_chunks_mut(ROWS * e).zip(lse.par_chunks_mut(2 * ROWS)).enumerate();
        blocks.map(move |(block, results)| (b, block * ROWS, results))
    });
    blocks.for_each(|(b, first, (y, lse))| {
        let rows = lse.len() / 2;
        let Some(mut scores) = scratch.borrow::<T>(rows * s) else { return };
        let keys = all.scores(b, first, rows, &mut scores);
        if keys == 0 {
            y.fill(T::ZERO);
            lse.fill(T::ZERO);
            return;
        }
        let scores = &mut scores[..rows * keys];
        arch.dispatch(Weights { scores: &mut *scores, pitch: keys, keys, lse, wants_lse: true });
        let weights = Matrix::new(scores, (rows, keys), (keys, 1));
        native::gemm(weights, all.v.rows(b / group, 0, (keys, e)), y, Accumulate::No, Threads::One);
    });
}

/// The operands of the gradient.
struct Gradient<'a, T> {
    all: Operands<'a, T>,
    lse: &'a [T],
    delta: &'a [T],
    dy: Matrices<'a, T>,
}

impl<'a, T: Real> Gradient<'a, T> {
    fn new(op: &'a Attention, x: &[View<'a, T>]) -> Self {
        let [lse, delta] = [&x[3], &x[4]].map(View::floats);
        Self { all: Operands::new(op, x, x.get(6)), lse, delta, dy: Matrices::new(&x[5]) }
    }

    /// The results' cotangent for some queries.
    fn dy(&self, b: usize, first: usize, rows: usize) -> Matrix<'a, T> {
        self.dy.rows(b, first, (rows, self.all.g.e))
    }

    /// Computes the weights of some queries for all keys that the last of them sees, and the gradients of their scores
    /// times `scale`; 0 for hidden keys. Returns the length of a row.
    fn weights(
        &self,
        (b, first, rows): (usize, usize, usize),
        scale: T,
        weights: &mut [T],
        slopes: &mut [T],
        threads: Threads,
    ) -> usize {
        let AttentionShape { group, l, e, .. } = self.all.g;
        let keys = self.all.scores(b, first, rows, weights);
        if keys == 0 {
            return 0;
        }
        let (weights, slopes) = (&mut weights[..rows * keys], &mut slopes[..rows * keys]);
        let values = self.all.v.transposed(b / group, 0, (keys, e));
        native::gemm(self.dy(b, first, rows), values, slopes, Accumulate::No, threads);
        let at = b * l + first;
        let (lse, delta) = (&self.lse[2 * at..][..2 * rows], &self.delta[at..][..rows]);
        Arch::new().dispatch(Slopes { weights: &mut *weights, slopes: &mut *slopes, keys, lse, delta, scale });
        for (i, (weights, slopes)) in weights.chunks_exact_mut(keys).zip(slopes.chunks_exact_mut(keys)).enumerate() {
            // This includes queries that see no key.
            let visible = self.all.visible(first + i).min(keys);
            weights[visible..].fill(T::ZERO);
            slopes[visible..].fill(T::ZERO);
        }
        keys
    }
}

pub(super) fn weights<T: Real>(op: &Attention, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
    let gradient = Gradient::new(op, x);
    let AttentionShape { l, s, .. } = gradient.all.g;
    let [weights, slopes] = y else { unreachable!("two results") };
    native::parallel_zip(weights.floats(), slopes.floats(), l * s, &|b, weights, slopes| {
        let Some(mut buffer) = scratch.borrow::<T>(2 * ROWS.min(l) * s) else { return };
        let (tile, tile_of_slopes) = buffer.split_at_mut(ROWS.min(l) * s);
        for (first, rows) in blocks(l) {
            let keys = gradient.weights((b, first, rows), T::ONE, tile, tile_of_slopes, Threads::One);
            for (results, tile) in [(&mut *weights, &*tile), (&mut *slopes, &*tile_of_slopes)] {
                for (row, result) in results[first * s..][..rows * s].chunks_exact_mut(s).enumerate() {
                    result[..keys].copy_from_slice(&tile[row * keys..][..keys]);
                    result[keys..].fill(T::ZERO);
                }
            }
        }
    });
}

pub(super) fn backward<T: Real>(op: &Attention, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
    let gradient = Gradient::new(op, x);
    let all = &gradient.all;
    let AttentionShape { batch, group, l, s, d, e } = all.g;
    // Blocks of queries of a group add to the same keys. So heads of keys run in parallel; if there are few, one head
    // after the other uses all threads.
    let threads = if batch / group < FEW_HEADS { Threads::All } else { Threads::One };
    let [dq, dk, dv] = y else { unreachable!("three results") };
    let results = dq.floats().par_chunks_mut(group * l * d).zip(dk.floats().par_chunks_mut(s * d));
    results.zip(dv.floats().par_chunks_mut(s * e)).enumerate().for_each(|(of_keys, ((dq, dk), dv))| {
        let tile = ROWS.min(l) * s;
        let Some(mut buffer) = scratch.borrow::<T>(2 * tile) else { return };
        let (weights, slopes) = buffer.split_at_mut(tile);
        dk.fill(T::ZERO);
        dv.fill(T::ZERO);
        for (b, (first, rows)) in (of_keys * group..(of_keys + 1) * group).flat_map(|b| blocks(l).map(move |x| (b, x)))
        {
            let dq = &mut dq[((b % group) * l + first) * d..][..rows * d];
            let keys = gradient.weights((b, first, rows), T::from_f64(op.scale.0), weights, slopes, threads);
            if keys == 0 {
                dq.fill(T::ZERO);
                continue;
            }
            let (weights, slopes) = (&weights[..rows * keys], &slopes[..rows * keys]);
            let transposed = (1, keys);
            let of_weights = Matrix::new(weights, (keys, rows), transposed);
            native::gemm(of_weights, gradient.dy(b, first, rows), &mut dv[..keys * e], Accumulate::Yes, threads);
            let of_slopes = Matrix::new(slopes, (rows, keys), (keys, 1));
            native::gemm(of_slopes, all.k.rows(of_keys, 0, (keys, d)), dq, Accumulate::No, threads);
            let of_slopes = Matrix::new(slopes, (keys, rows), transposed);
            native::gemm(of_slopes, all.q.rows(b, first, (rows, d)), &mut dk[..keys * d], Accumulate::Yes, threads);
        }
    });
}
