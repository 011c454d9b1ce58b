//! Depthwise convolutions on the CPU in single precision: each output channel reads one channel, in the order
//! of [`Sorted`].

use std::iter::once;

use pulp::{Simd, WithSimd};

use super::ConvShape;
use super::sorted::{Part, Sorted, Terms};
use crate::kernel::native::{Finish, Run, Scratch, Shared, tasks};

/// The most outputs that are computed at a time, unless a row has more.
const BAND: usize = 2048;

/// Multiply-adds of a product that take as long as one here, where each loads pixels of its own.
pub(super) const COST: usize = 6;

/// `true` if each output channel reads one channel.
pub(super) fn applies(g: &ConvShape) -> bool {
    g.c == g.groups
}

/// `y` of images `x` with the weights `w`.
pub(super) fn forward(g: &ConvShape, x: &[f32], w: &[f32], y: &mut [f32], finish: &dyn Finish<f32>, scratch: &Scratch) {
    let sorted = Sorted::new(g);
    convolve(g, &sorted, &[sorted.all(w, finish)], x, y, scratch);
}

/// Convolves images `x`; each part is stored in places of `y` of its own.
pub(super) fn convolve(
    g: &ConvShape,
    sorted: &Sorted,
    parts: &[Part<'_>],
    x: &[f32],
    y: &mut [f32],
    scratch: &Scratch,
) {
    let arch = pulp::Arch::new();
    let (copies, pixels) = (g.o / g.groups, g.outputs());
    let taps: usize = parts.iter().flat_map(|part| &part.sums).map(|sums| sums.taps.len()).sum();
    let places = |&number: &usize| sorted.taps[number];
    let places = |terms: &Terms<'_>| terms.taps.iter().map(places).collect::<Vec<_>>();
    let places: Vec<_> = parts.iter().map(|part| part.sums.iter().map(places).collect::<Vec<_>>()).collect();
    let kinds = parts.iter().map(|part| part.sums.len()).max().unwrap_or(0);
    let y = Shared::new(y);
    // Bands of rows, whose sums stay in the L1 cache.
    let most = (BAND / (kinds * g.q)).clamp(1, g.p);
    let of_layer = g.p.div_ceil(most);
    let bands = 0..g.depth.outputs * of_layer;
    let memory = || [scratch.zeros(sorted.len), scratch.borrow(kinds * most * g.q)];
    tasks(g.n * g.c, COST * copies * taps * pixels, &memory, &|task, memory| {
        let [Some(channel), Some(sums)] = memory else { return };
        sorted.copy(&x[task * g.inputs()..][..g.inputs()], channel, arch);
        for copy in task * copies..(task + 1) * copies {
            for (part, places) in parts.iter().zip(&places) {
                for band in bands.clone() {
                    let (layer, row) = (band / of_layer, band % of_layer * most);
                    let len = most.min(g.p - row) * g.q;
                    let sums = &mut sums[..part.sums.len() * len];
                    let channel = &channel[layer * sorted.layer + row * sorted.width..];
                    for ((terms, taps), y) in part.sums.iter().zip(places).zip(sums.chunks_exact_mut(len)) {
                        let w = &terms.w[copy % g.o * taps.len()..][..taps.len()];
                        arch.dispatch(Plane { width: sorted.width, taps, channel, w, q: g.q, y });
                    }
                    let all = Run { first: copy * pixels + (layer * g.p + row) * g.q, at: 0, len };
                    // SAFETY: the outputs of this channel belong to this task alone.
                    unsafe { part.finish.store(sums, &mut once(all), &y) };
                }
            }
        }
    });
}

/// One channel of outputs, in rows of `q`.
struct Plane<'a> {
    /// Elements of a sorted row, and the place of each tap.
    width: usize,
    taps: &'a [usize],
    channel: &'a [f32],
    w: &'a [f32],
    q: usize,
    y: &'a mut [f32],
}

impl WithSimd for Plane<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let vectors = self.q.div_ceil(S::F32_LANES);
        for first in (0..vectors).step_by(4) {
            // Tiles of eight vectors: so many sums hide the latency of additions.
            match vectors - first {
                1 => self.rows::<S, 8, 1>(simd, first),
                2 => self.rows::<S, 4, 2>(simd, first),
                3 => self.rows::<S, 3, 3>(simd, first),
                _ => self.rows::<S, 2, 4>(simd, first),
            }
        }
    }
}

impl Plane<'_> {
    /// Computes `N` vectors of each row, from vector `first` on, in tiles of `M` rows.
    #[inline(always)]
    fn rows<S: Simd, const M: usize, const N: usize>(&mut self, simd: S, first: usize) {
        let rows = self.y.len() / self.q;
        if rows < M && M > 4 && rows >= 4 {
            return self.rows::<S, 4, N>(simd, first);
        }
        if rows < M {
            return (0..rows).for_each(|row| self.tile::<S, 1, N>(simd, row, first));
        }
        // The last tile may compute some rows again.
        (0..rows).step_by(M).for_each(|row| self.tile::<S, M, N>(simd, row.min(rows - M), first));
    }

    /// A tile of `M` rows and `N` vectors, all of whose sums stay in registers.
    #[inline(always)]
    fn tile<S: Simd, const M: usize, const N: usize>(&mut self, simd: S, row: usize, first: usize) {
        let Self { width, taps, channel, w, q, .. } = *self;
        let column = first * S::F32_LANES;
        let mut sums = [[simd.splat_f32s(0.0); N]; M];
        for (&w, &tap) in w.iter().zip(taps) {
            let w = simd.splat_f32s(w);
            let begin = row * width + column + tap;
            let x = &channel[begin..][..(M - 1) * width + N * S::F32_LANES];
            for (i, sums) in sums.iter_mut().enumerate() {
                for (j, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: the slice has `M` rows with `N` vectors each, and vectors have no alignment here.
                    let x = unsafe { x.as_ptr().add(i * width + j * S::F32_LANES).cast::<S::f32s>().read_unaligned() };
                    *sum = simd.mul_add_e_f32s(w, x, *sum);
                }
            }
        }
        for (y, sums) in self.y[row * q..].chunks_exact_mut(q).zip(&sums) {
            for (y, sum) in y[column..].chunks_mut(S::F32_LANES).zip(sums) {
                if y.len() == S::F32_LANES {
                    // SAFETY: a whole vector, which has no alignment here.
                    unsafe { y.as_mut_ptr().cast::<S::f32s>().write_unaligned(*sum) };
                } else {
                    simd.partial_store_f32s(y, *sum);
                }
            }
        }
    }
}
