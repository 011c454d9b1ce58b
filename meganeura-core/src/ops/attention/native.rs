//! Attention on the CPU: computes the scores of one block of queries at a time, by matrix products.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::{Attention, AttentionShape};
use crate::Layout;
use crate::kernel::gemm::strides;
use crate::kernel::native::{self, Accumulate, Matrix, OutView, Real, Scratch, Threads, View};

/// Queries in a block.
const ROWS: usize = 64;

/// With fewer heads than this in all sequences, they do not keep a processor's threads busy.
const FEW_HEADS: usize = 8;

/// An operand, as a batch of matrices.
struct Matrices<'a, T> {
    data: &'a [T],
    batch: Layout,
    strides: (usize, usize),
}

impl<'a, T: Real> Matrices<'a, T> {
    fn new(x: &View<'a, T>) -> Self {
        let (batch, [row, column]) = strides(x.layout());
        Self { data: x.floats(), batch, strides: (row, column) }
    }

    /// The numbers of a matrix from a row on.
    fn from(&self, b: usize, row: usize) -> &'a [T] {
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
struct Operands<'a, T> {
    op: &'a Attention,
    g: AttentionShape,
    q: Matrices<'a, T>,
    k: Matrices<'a, T>,
    v: Matrices<'a, T>,
    bias: Option<Matrices<'a, T>>,
}

impl<'a, T: Real> Operands<'a, T> {
    fn new(op: &'a Attention, x: &[View<'a, T>], bias: Option<&View<'a, T>>) -> Self {
        let g = AttentionShape::of(x[0].dims(), x[2].dims());
        let [q, k, v] = [&x[0], &x[1], &x[2]].map(Matrices::new);
        Self { op, g, q, k, v, bias: bias.map(Matrices::new) }
    }

    /// The number of keys that a query sees.
    fn visible(&self, i: usize) -> usize {
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
            let visible = self.visible(i);
            scores[..visible].iter_mut().for_each(|score| *score = *score * scale);
            if let Some(bias) = &self.bias {
                let (bias, stride) = (bias.from(b, i), bias.strides.1);
                scores[..visible].iter_mut().enumerate().for_each(|(j, score)| *score += bias[j * stride]);
            }
            scores[visible..].fill(T::NEG_INFINITY);
        }
        keys
    }
}

/// The blocks of `rows` rows: the first row and the number of rows of each.
fn blocks(rows: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).step_by(ROWS).map(move |first| (first, ROWS.min(rows - first)))
}

/// Turns scores of some queries into their weights, and computes their log-sum-exps.
struct Weights<'a, T> {
    scores: &'a mut [T],
    keys: usize,
    lse: &'a mut [T],
}

impl<T: Real> WithSimd for Weights<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (scores, lse) in self.scores.chunks_exact_mut(self.keys).zip(self.lse.as_chunks_mut::<2>().0) {
            // NaN is not counted as a peak. It makes the mass NaN.
            let peak = native::peak(scores);
            let base = if peak == T::NEG_INFINITY { T::ZERO } else { peak };
            for score in &mut *scores {
                *score = (*score - base).exp::<S>();
            }
            let mass = native::sum(scores);
            // A query that sees no key has no mass; all others have at least 1. Its weights stay 0.
            let mass = if mass == T::ZERO { T::ONE } else { mass };
            *lse = [base, mass.ln()];
            for score in scores {
                *score = *score / mass;
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
        arch.dispatch(Weights { scores, keys, lse });
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
