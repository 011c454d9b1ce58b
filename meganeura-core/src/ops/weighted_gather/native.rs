//! The native kernels. They take images in blocks of channels, and copy a block so that the channels of a pixel are
//! adjacent. A column is then a vector, wherever the indices point.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::Extents;
use crate::kernel::native::{Real, Scratch, by_halves};

/// Columns that are copied to or from adjacent channels at a time: they stay in the L1 cache.
const TILE: usize = 64;

/// Runs a kernel for blocks of as many channels as waste little of a vector.
macro_rules! by_width {
    ($g:expr, $kernel:ident $arguments:tt) => {
        match $g.c {
            1 => $kernel::<T, 1> $arguments,
            2..=6 => $kernel::<T, 4> $arguments,
            _ => $kernel::<T, 16> $arguments,
        }
    };
}

pub(super) fn forward<T: Real>(g: Extents, x: &[T], index: &[u32], w: &[T], y: &mut [T], scratch: &Scratch) {
    by_width!(g, forward_of_width(g, x, index, w, y, scratch));
}

pub(super) fn grad_input<T: Real>(g: Extents, index: &[u32], w: &[T], dy: &[T], dx: &mut [T], scratch: &Scratch) {
    by_width!(g, grad_input_of_width(g, index, w, dy, dx, scratch));
}

pub(super) fn grad_weight<T: Real>(g: Extents, x: &[T], index: &[u32], dy: &[T], dw: &mut [T], scratch: &Scratch) {
    by_width!(g, grad_weight_of_width(g, x, index, dy, dw, scratch));
}

fn forward_of_width<T: Real, const W: usize>(
    g: Extents,
    x: &[T],
    index: &[u32],
    w: &[T],
    y: &mut [T],
    scratch: &Scratch,
) {
    let arch = pulp::Arch::new();
    blocks::<T, W>(g, planes::<T, W>(g, g.k, y), scratch, &|n, channels, y, [pixels, tile]| {
        let taps = Taps { index: g.of_image(n, index), w: g.of_image(n, w), count: g.k };
        arch.dispatch(Forward { taps, x: channels.of(x, g.r), pixels, tile, y });
    });
}

fn grad_input_of_width<T: Real, const W: usize>(
    g: Extents,
    index: &[u32],
    w: &[T],
    dy: &[T],
    dx: &mut [T],
    scratch: &Scratch,
) {
    let arch = pulp::Arch::new();
    blocks::<T, W>(g, planes::<T, W>(g, g.r, dx), scratch, &|n, channels, dx, [pixels, tile]| {
        let taps = Taps { index: g.of_image(n, index), w: g.of_image(n, w), count: g.k };
        arch.dispatch(GradInput { taps, dy: channels.of(dy, g.k), pixels, tile, dx });
    });
}

fn grad_weight_of_width<T: Real, const W: usize>(
    g: Extents,
    x: &[T],
    index: &[u32],
    dy: &[T],
    dw: &mut [T],
    scratch: &Scratch,
) {
    let (arch, taps, parts) = (pulp::Arch::new(), g.t * g.k, g.c.div_ceil(W));
    let run = |dw: &mut [T]| {
        let parts = dw.chunks_mut(taps).collect();
        blocks::<T, W>(g, parts, scratch, &|n, channels, dw, [pixels, tile]| {
            let (index, x, dy) = (g.of_image(n, index), channels.of(x, g.r), channels.of(dy, g.k));
            arch.dispatch(GradWeight { index, count: g.k, x, dy, pixels, tile, dw });
        });
    };
    if parts == 1 {
        return run(dw);
    }
    // Each block has sums of its own, which are added in order.
    let Some(mut sums) = scratch.borrow(g.n * parts * taps) else { return };
    run(&mut sums);
    dw.par_chunks_mut(taps).zip(sums.par_chunks(parts * taps)).for_each(|(dw, sums)| {
        dw.copy_from_slice(&sums[..taps]);
        for sums in sums[taps..].chunks_exact(taps) {
            dw.iter_mut().zip(sums).for_each(|(dw, &sum)| *dw += sum);
        }
    });
}

/// Adjacent channels of an image, by their numbers among those of all images.
#[derive(Clone, Copy)]
struct Channels {
    first: usize,
    count: usize,
}

impl Channels {
    /// Their planes, which have so many elements each.
    fn of<T>(self, x: &[T], extent: usize) -> &[T] {
        &x[self.first * extent..][..self.count * extent]
    }
}

/// The planes of each block of `W` channels.
fn planes<T, const W: usize>(g: Extents, extent: usize, y: &mut [T]) -> Vec<&mut [T]> {
    y.chunks_mut(g.c * extent).flat_map(|image| image.chunks_mut(W * extent)).collect()
}

/// Memory for the pixels of a block, one more that is 0, and for a tile.
type Memory<'a, T, const W: usize> = [&'a mut [[T; W]]; 2];

/// A closure that takes the number of an image, channels of it, their part of the result, and memory.
type OfBlock<'f, T, const W: usize> = dyn Fn(usize, Channels, &mut [T], Memory<'_, T, W>) + Sync + 'f;

/// Runs `f(n, channels, part, memory)` for each block of `W` channels of each image, in threads; a block has one of the
/// parts.
fn blocks<T: Real, const W: usize>(g: Extents, parts: Vec<&mut [T]>, scratch: &Scratch, f: &OfBlock<'_, T, W>) {
    let (blocks, memory) = (g.c.div_ceil(W), || scratch.borrow((g.r + 1 + TILE) * W));
    parts.into_par_iter().enumerate().for_each_init(memory, |memory, (number, part)| {
        // Without memory, the run fails.
        let Some(memory) = memory else { return };
        let (n, first) = (number / blocks, number % blocks * W);
        let channels = Channels { first: n * g.c + first, count: W.min(g.c - first) };
        f(n, channels, part, memory.as_chunks_mut().0.split_at_mut(g.r + 1).into());
    });
}

/// The columns of the sums of an image: of number `k` those at `k`, `k + count`, and so on.
struct Taps<'a, T> {
    index: &'a [u32],
    w: &'a [T],
    count: usize,
}

impl<T: Real> Taps<'_, T> {
    /// Index and weight of each column of sum `k`. An index past the end becomes `end`.
    #[inline(always)]
    fn of(&self, k: usize, end: usize) -> impl Iterator<Item = (usize, T)> {
        let taps = self.index[k..].iter().step_by(self.count).zip(self.w[k..].iter().step_by(self.count));
        taps.map(move |(&index, &w)| ((index as usize).min(end), w))
    }
}

/// Copies the elements of planes from number `first` on, which have `pitch` elements, to adjacent channels.
#[inline(always)]
fn interleave<T: Real, const W: usize>(x: &[T], pitch: usize, first: usize, to: &mut [[T; W]]) {
    for (start, to) in (first..).step_by(TILE).zip(to.chunks_mut(TILE)) {
        if x.len() < W * pitch {
            to.fill([T::ZERO; W]);
        }
        for (channel, x) in x.chunks_exact(pitch).enumerate() {
            to.iter_mut().zip(&x[start..]).for_each(|(to, &x)| to[channel] = x);
        }
    }
}

/// Copies adjacent channels to the elements of planes from number `first` on.
#[inline(always)]
fn separate<T: Real, const W: usize>(x: &[[T; W]], y: &mut [T], pitch: usize, first: usize) {
    for (start, x) in (first..).step_by(TILE).zip(x.chunks(TILE)) {
        for (channel, y) in y.chunks_exact_mut(pitch).enumerate() {
            y[start..].iter_mut().zip(x).for_each(|(y, x)| *y = x[channel]);
        }
    }
}

/// Adds `w·x` to a column. By value: the compiler makes it no SIMD if the columns could overlap in memory.
#[inline(always)]
fn add<T: Real, const W: usize>(mut sum: [T; W], w: T, x: &[T; W]) -> [T; W] {
    sum.iter_mut().zip(x).for_each(|(sum, &x)| *sum += w * x);
    sum
}

struct Forward<'a, T, const W: usize> {
    taps: Taps<'a, T>,
    x: &'a [T],
    pixels: &'a mut [[T; W]],
    tile: &'a mut [[T; W]],
    y: &'a mut [T],
}

impl<T: Real, const W: usize> WithSimd for Forward<'_, T, W> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { taps, x, pixels, tile, y } = self;
        let end = pixels.len() - 1;
        interleave(x, end, 0, &mut pixels[..end]);
        pixels[end] = [T::ZERO; W];
        for first in (0..taps.count).step_by(TILE) {
            let tile = &mut tile[..TILE.min(taps.count - first)];
            for (k, sum) in (first..).zip(tile.iter_mut()) {
                let mut column = [T::ZERO; W];
                for (at, w) in taps.of(k, end) {
                    column = add(column, w, &pixels[at]);
                }
                *sum = column;
            }
            separate(tile, y, taps.count, first);
        }
    }
}

struct GradInput<'a, T, const W: usize> {
    taps: Taps<'a, T>,
    dy: &'a [T],
    pixels: &'a mut [[T; W]],
    tile: &'a mut [[T; W]],
    dx: &'a mut [T],
}

impl<T: Real, const W: usize> WithSimd for GradInput<'_, T, W> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { taps, dy, pixels, tile, dx } = self;
        let end = pixels.len() - 1;
        pixels.fill([T::ZERO; W]);
        for first in (0..taps.count).step_by(TILE) {
            let tile = &mut tile[..TILE.min(taps.count - first)];
            interleave(dy, taps.count, first, tile);
            for (k, dy) in (first..).zip(tile.iter()) {
                for (at, w) in taps.of(k, end) {
                    pixels[at] = add(pixels[at], w, dy);
                }
            }
        }
        separate(&pixels[..end], dx, end, 0);
    }
}

struct GradWeight<'a, T, const W: usize> {
    index: &'a [u32],
    count: usize,
    x: &'a [T],
    dy: &'a [T],
    pixels: &'a mut [[T; W]],
    tile: &'a mut [[T; W]],
    dw: &'a mut [T],
}

impl<T: Real, const W: usize> WithSimd for GradWeight<'_, T, W> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { index, count, x, dy, pixels, tile, dw } = self;
        let end = pixels.len() - 1;
        interleave(x, end, 0, &mut pixels[..end]);
        pixels[end] = [T::ZERO; W];
        for first in (0..count).step_by(TILE) {
            let tile = &mut tile[..TILE.min(count - first)];
            interleave(dy, count, first, tile);
            for (dw, index) in dw.chunks_exact_mut(count).zip(index.chunks_exact(count)) {
                for ((dw, &at), dy) in dw[first..].iter_mut().zip(&index[first..]).zip(tile.iter()) {
                    let mut products = *dy;
                    let pixel = &pixels[(at as usize).min(end)];
                    products.iter_mut().zip(pixel).for_each(|(product, &x)| *product = *product * x);
                    *dw = by_halves(products, |a, b| a + b);
                }
            }
        }
    }
}
