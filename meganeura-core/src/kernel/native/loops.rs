//! Loops that native kernels share: in threads, over rows, and in the order that keeps sums precise and repeatable.
//!
//! Parallel loops take a `dyn` closure. The indirect call is cheap compared with a part's work, and rayon's machinery
//! is compiled once per element type instead of once per kernel.

use rayon::prelude::*;
use smallvec::SmallVec;

use super::cascade::by_halves;
use super::{Element, Real, Scratch};
use crate::Layout;

/// Elements of a task where each costs about `work` operations: enough to be worth a task, few enough to share.
pub(crate) fn grain(work: usize) -> usize {
    (16_384 / work.max(1)).max(1)
}

/// A closure that takes a number and parts of two slices.
type OfTwo<'f, A, B> = dyn Fn(usize, &mut [A], &mut [B]) + Sync + 'f;

/// Runs `f(first, part)` for parts of `chunk` elements of `y`, in threads; `first` is the number of the part's first
/// element.
pub(crate) fn parallel<T: Send>(y: &mut [T], chunk: usize, f: &(dyn Fn(usize, &mut [T]) + Sync)) {
    if y.len() <= chunk {
        f(0, y);
    } else {
        y.par_chunks_mut(chunk).enumerate().for_each(|(at, part)| f(at * chunk, part));
    }
}

/// Runs `f(number, part, scratch)` for parts of `chunk` elements of `y`, in threads that borrow so many elements each;
/// a thread that gets none leaves its parts as they are.
pub(crate) fn parallel_scratch<T: Real>(
    y: &mut [T],
    chunk: usize,
    (scratch, elements): (&Scratch, usize),
    f: &OfTwo<'_, T, T>,
) {
    let new = || scratch.borrow(elements);
    y.par_chunks_mut(chunk).enumerate().for_each_init(new, |scratch, (at, part)| {
        if let Some(scratch) = scratch {
            f(at, part, scratch);
        }
    });
}

/// The least number of operations for which threads are worth waking: some tens of microseconds.
const WORTH_THREADS: usize = 1 << 19;

/// The threads that so many multiply-adds are divided among.
pub(crate) fn threads_for(work: usize) -> usize {
    if work < WORTH_THREADS { 1 } else { rayon::current_num_threads() }
}

/// Runs `f(number, memory)` for `count` tasks of about `work` multiply-adds each, in threads that have memory of their
/// own; all in this one if they are small.
pub(crate) fn tasks<M: Send>(
    count: usize,
    work: usize,
    memory: &(dyn Fn() -> M + Sync),
    f: &(dyn Fn(usize, &mut M) + Sync),
) {
    if count == 1 || count * work < WORTH_THREADS {
        let mut memory = memory();
        return (0..count).for_each(|task| f(task, &mut memory));
    }
    (0..count).into_par_iter().for_each_init(memory, |memory, task| f(task, memory));
}

/// Runs `f(number, a, b)` for parts of `chunk` elements of both slices, in threads.
pub(crate) fn parallel_zip<A: Send, B: Send>(a: &mut [A], b: &mut [B], chunk: usize, f: &OfTwo<'_, A, B>) {
    a.par_chunks_mut(chunk).zip(b.par_chunks_mut(chunk)).enumerate().for_each(|(at, (a, b))| f(at, a, b));
}

/// A count as a float.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
pub(crate) fn real<T: Real>(n: usize) -> T {
    T::from_f64(n as f64)
}

/// Interleaved partial sums: several of the widest vectors, so that one addition need not wait for another.
const LANES: usize = 32;

/// Groups of [`LANES`] elements in a block, and blocks that are added before they go into the whole sums. Each addition
/// after an outlier may be off by half a unit in the outlier's last place, all in one direction; so chains of additions
/// are short.
const BLOCK: usize = 8;
const BLOCKS: usize = 16;

/// `Σ x`, in the order of [`sum_by`].
#[inline(always)]
pub(crate) fn sum<T: Real>(x: &[T]) -> T {
    sum_by(x, |x| x)
}

/// `Σ f(x)`, in interleaved partial sums, and those in blocks: the loop is SIMD, and rounding errors grow with a small
/// part of the length.
#[inline(always)]
pub(crate) fn sum_by<T: Real>(x: &[T], f: impl Fn(T) -> T) -> T {
    let [sum] = sums_by(x, |x| [f(x)]);
    sum
}

/// Several sums in one pass, each in the order of [`sum_by`].
#[inline(always)]
pub(crate) fn sums_by<T: Real, const N: usize>(x: &[T], f: impl Fn(T) -> [T; N]) -> [T; N] {
    let (groups, rest) = x.as_chunks::<LANES>();
    let (blocks, last) = groups.as_chunks::<BLOCK>();
    let mut sums = [[T::ZERO; LANES]; N];
    last.iter().for_each(|group| add_terms(&mut sums, group, &f));
    add_terms(&mut sums, rest, &f);
    for blocks in blocks.chunks(BLOCKS) {
        let mut of_blocks = [[T::ZERO; LANES]; N];
        for block in blocks {
            let mut of_block = [[T::ZERO; LANES]; N];
            block.iter().for_each(|group| add_terms(&mut of_block, group, &f));
            of_blocks.iter_mut().zip(&of_block).for_each(|(sums, of_block)| add(sums, of_block));
        }
        sums.iter_mut().zip(&of_blocks).for_each(|(sums, of_blocks)| add(sums, of_blocks));
    }
    sums.map(|lanes| by_halves(lanes, |a, b| a + b))
}

/// Adds the terms of up to [`LANES`] elements to their partial sums.
#[inline(always)]
fn add_terms<T: Real, const N: usize>(sums: &mut [[T; LANES]; N], x: &[T], f: &impl Fn(T) -> [T; N]) {
    for (k, lanes) in sums.iter_mut().enumerate() {
        lanes.iter_mut().zip(x).for_each(|(lane, &x)| *lane += f(x)[k]);
    }
}

/// `Σ f(x, y)`, in the order of [`sum_by`].
#[inline(always)]
pub(crate) fn dot_by<T: Real>(x: &[T], y: &[T], f: impl Fn(T, T) -> T) -> T {
    let ((x, x_rest), (y, y_rest)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    let mut sums = [T::ZERO; LANES];
    add_products(&mut sums, x_rest, y_rest, &f);
    for (x, y) in x.chunks(BLOCK * BLOCKS).zip(y.chunks(BLOCK * BLOCKS)) {
        let mut of_blocks = [T::ZERO; LANES];
        for (x, y) in x.chunks(BLOCK).zip(y.chunks(BLOCK)) {
            let mut of_block = [T::ZERO; LANES];
            x.iter().zip(y).for_each(|(x, y)| add_products(&mut of_block, x, y, &f));
            add(&mut of_blocks, &of_block);
        }
        add(&mut sums, &of_blocks);
    }
    by_halves(sums, |a, b| a + b)
}

#[inline(always)]
fn add_products<T: Real>(sums: &mut [T; LANES], x: &[T], y: &[T], f: &impl Fn(T, T) -> T) {
    sums.iter_mut().zip(x.iter().zip(y)).for_each(|(sum, (&x, &y))| *sum += f(x, y));
}

/// Adds partial sums to others.
#[inline(always)]
fn add<T: Real>(to: &mut [T; LANES], lanes: &[T; LANES]) {
    to.iter_mut().zip(lanes).for_each(|(to, &lane)| *to += lane);
}

/// Writes the elements of a layout, in order, to the places that `place` gives.
pub(crate) fn copy_strided<E: Element>(data: &[E], layout: &Layout, y: &mut [E], place: &Layout) {
    let dims = layout.shape_ref().dims();
    if dims.contains(&0) {
        return;
    }
    // Extents and both strides of the axes, innermost first; axes that both layouts pass through as one are one.
    let mut axes: SmallVec<[[usize; 3]; 4]> = SmallVec::new();
    for ((&extent, &from), &to) in dims.iter().zip(layout.strides()).zip(place.strides()).rev() {
        match axes.last_mut() {
            _ if extent == 1 => {}
            Some([inner, step, to_step]) if from == *inner * *step && to == *inner * *to_step => *inner *= extent,
            _ => axes.push([extent, from, to]),
        }
    }
    copy_axes(&data[layout.offset()..], &mut y[place.offset()..], &axes);
}

/// Copies the elements of some axes, innermost first.
fn copy_axes<E: Element>(x: &[E], y: &mut [E], axes: &[[usize; 3]]) {
    match axes {
        [] => y[0] = x[0],
        &[[extent, 1, 1]] => y[..extent].copy_from_slice(&x[..extent]),
        &[[extent, from, to]] => (0..extent).for_each(|i| y[i * to] = x[i * from]),
        &[ref inner @ .., [extent, from, to]] => {
            (0..extent).for_each(|i| copy_axes(&x[i * from..], &mut y[i * to..], inner));
        }
    }
}
