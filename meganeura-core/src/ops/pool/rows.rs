//! Native kernels of pools: each tap of the window is one loop over a row of outputs.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::{Pool, PoolShape};
use crate::kernel::native::{self, Plane, Real, WIDEST, Window};

/// The outputs of a row that one of the kernel's columns reaches inside of the input, and the column of inputs that it
/// reaches for the first. The next one's is a stride away.
#[derive(Debug)]
pub(super) struct Across {
    outputs: Range<usize>,
    first: usize,
}

impl PoolShape {
    /// The channels of a task, so that small ones share one.
    pub(super) fn channels_of_task(&self) -> usize {
        let taps = self.pool.kernel.iter().product();
        native::grain(taps).div_ceil(self.windows()).min(self.channels)
    }

    /// The first elements of the lines of inputs that a row of outputs reaches, in order.
    #[inline(always)]
    fn lines(&self, row: usize) -> impl Iterator<Item = usize> {
        let ([_, h, w], [kernel_planes, kernel_rows, _]) = (self.inputs, self.pool.kernel);
        (0..kernel_planes * kernel_rows).filter_map(move |tap| {
            let plane = self.reached(0, row / self.outputs[1], tap / kernel_rows)?;
            let line = self.reached(1, row % self.outputs[1], tap % kernel_rows)?;
            Some((plane * h + line) * w)
        })
    }

    /// Elements of a line of inputs with what windows reach around it, up to a whole vector after the last.
    fn padded(&self) -> usize {
        let [w, columns] = [self.inputs[2], self.outputs[2]];
        let [padding, stride, dilation, taps] =
            [self.pool.padding, self.pool.stride, self.pool.dilation, self.pool.kernel].map(|of| of[2]);
        (padding + w).max((columns - 1) * stride + WIDEST + (taps - 1) * dilation)
    }

    /// Elements that [`Maxima`] needs for a line of inputs: with its padding, and the maxima of all columns.
    pub(super) fn line(&self) -> usize {
        self.padded() + (self.outputs[2] - 1) * self.pool.stride[2] + WIDEST
    }

    /// The parts of a row of outputs that each of the kernel's columns reaches inside of the input.
    pub(super) fn across(&self) -> Vec<Across> {
        let (w, columns, stride, padding) =
            (self.inputs[2], self.outputs[2], self.pool.stride[2], self.pool.padding[2]);
        let across = (0..self.pool.kernel[2]).map(|column| {
            let shift = column * self.pool.dilation[2];
            let from = padding.saturating_sub(shift).div_ceil(stride);
            let to = (w + padding).saturating_sub(shift).div_ceil(stride).min(columns);
            (from < to).then(|| Across { outputs: from..to, first: from * stride + shift - padding })
        });
        across.flatten().collect()
    }

    /// The parts of the rows of outputs that each tap reaches inside of the input: the outputs, and the first one's
    /// input. The next one's input is a stride of columns away. Each output meets its taps in the order of the input.
    #[inline(always)]
    fn taps(&self, across: &[Across], mut f: impl FnMut(Range<usize>, usize)) {
        let [planes, rows, columns] = self.outputs;
        for (row, output) in (0..planes * rows).zip((0..).step_by(columns)) {
            for line in self.lines(row) {
                for Across { outputs, first } in across {
                    f(output + outputs.start..output + outputs.end, line + first);
                }
            }
        }
    }

    /// The extent and the stride of square windows of images.
    fn small_window(&self) -> Option<[usize; 2]> {
        let Pool { kernel: [planes, rows, columns], stride, dilation, padding, .. } = self.pool;
        let is_image = planes == 1 && self.inputs[0] == 1 && padding[0] == 0;
        let is_square = rows == columns && stride[1] == stride[2] && dilation[1..] == [1, 1];
        (is_image && is_square).then_some([columns, stride[2]])
    }

    /// The input's place along an axis that a tap of a window reaches, if it is inside.
    #[inline(always)]
    fn reached(&self, axis: usize, window: usize, tap: usize) -> Option<usize> {
        let at = window * self.pool.stride[axis] + tap * self.pool.dilation[axis];
        at.checked_sub(self.pool.padding[axis]).filter(|&at| at < self.inputs[axis])
    }
}

/// Runs `f(k, x)` for `count` elements that are `STRIDE` apart.
#[inline(always)]
fn each<const STRIDE: usize, T>(x: &[T], count: usize, mut f: impl FnMut(usize, &T)) {
    let (groups, last) = x.as_chunks::<STRIDE>();
    let groups = &groups[..count.min(groups.len())];
    groups.iter().enumerate().for_each(|(k, group)| f(k, &group[0]));
    if groups.len() < count {
        f(groups.len(), &last[0]);
    }
}

/// [`each`] for the elements of two slices.
#[inline(always)]
fn each_of_two<const STRIDE: usize, T: Copy>(x: &[T], p: &[u32], count: usize, mut f: impl FnMut(usize, T, u32)) {
    let ((groups, last), (places, last_place)) = (x.as_chunks::<STRIDE>(), p.as_chunks::<STRIDE>());
    let whole = count.min(groups.len());
    let of_both = groups[..whole].iter().zip(&places[..whole]);
    of_both.enumerate().for_each(|(k, (x, place))| f(k, x[0], place[0]));
    if whole < count {
        f(whole, last[0], last_place[0]);
    }
}

/// [`each`] for elements that are written.
#[inline(always)]
fn each_mut<const STRIDE: usize, T>(x: &mut [T], count: usize, mut f: impl FnMut(usize, &mut T)) {
    let (groups, last) = x.as_chunks_mut::<STRIDE>();
    let whole = count.min(groups.len());
    groups[..whole].iter_mut().enumerate().for_each(|(k, group)| f(k, &mut group[0]));
    if whole < count {
        f(whole, &mut last[0]);
    }
}

/// Calls [`each`] or [`each_mut`]: strides of 1 and 2 have loops of their own, which are SIMD.
macro_rules! strided {
    ($each:ident, $stride:expr, $x:expr, $count:expr, $iter:ident, $f:expr) => {
        match $stride {
            1 => $each::<1, _>($x, $count, $f),
            2 => $each::<2, _>($x, $count, $f),
            stride => $x.$iter().step_by(stride).take($count).enumerate().for_each(|(k, x)| $f(k, x)),
        }
    };
}

/// A place in a channel, whose elements are counted to 2³¹.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the window's rule bounds the extents")]
fn as_place(at: usize) -> u32 {
    at as u32
}

/// `true` if a number takes the place of the maximum so far: the first maximum stays; so does NaN.
#[inline(always)]
fn beats<T: Real>(x: T, best: T) -> bool {
    (x > best) | (x.is_nan() & !best.is_nan())
}

/// The maxima of a channel's windows: first down the columns, then across. Of zeros, either sign may stay.
pub(super) struct Maxima<'a, T> {
    pub(super) g: &'a PoolShape,
    pub(super) across: &'a [Across],
    pub(super) x: &'a [T],
    pub(super) y: &'a mut [T],
    /// [`PoolShape::line`] elements.
    pub(super) best: &'a mut [T],
}

impl<T: Real> WithSimd for Maxima<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { g, across, x, y, best } = self;
        if let (Some(x), Some(best)) = (T::singles(x), T::singles_mut(best))
            && let Some(y) = T::singles_mut(y)
        {
            return match g.small_window() {
                Some([2, 1]) => slide::<S, 2, 1>(simd, g, x, y),
                Some([2, 2]) => slide::<S, 2, 2>(simd, g, x, y),
                Some([3, 1]) => slide::<S, 3, 1>(simd, g, x, y),
                Some([3, 2]) => slide::<S, 3, 2>(simd, g, x, y),
                _ => maxima(simd, g, x, y, best),
            };
        }
        // Of a window in the padding alone, which dilation allows, or of −∞ alone.
        y.fill(T::NEG_INFINITY);
        for (row, y) in y.chunks_exact_mut(g.outputs[2]).enumerate() {
            let mut lines = g.lines(row);
            let Some(first) = lines.next() else { continue };
            let best = &mut best[..g.inputs[2]];
            best.copy_from_slice(&x[first..][..best.len()]);
            for line in lines {
                for (best, &x) in best.iter_mut().zip(&x[line..]) {
                    *best = if beats(x, *best) { x } else { *best };
                }
            }
            for Across { outputs, first } in across {
                let (y, count) = (&mut y[outputs.clone()], outputs.len());
                strided!(each, g.pool.stride[2], &best[*first..], count, iter, |k: usize, &x: &T| {
                    y[k] = if beats(x, y[k]) { x } else { y[k] };
                });
            }
        }
    }
}

/// The larger of two numbers; a NaN stays, and takes any other's place.
#[inline(always)]
fn larger<S: Simd>(simd: S, best: S::f32s, x: S::f32s) -> S::f32s {
    let unless_nan = simd.select_f32s(simd.less_than_or_equal_f32s(best, best), x, best);
    // A comparison with NaN is false: then `x` is greater, or one of them is NaN.
    simd.select_f32s(simd.less_than_or_equal_f32s(x, best), best, unless_nan)
}

/// The maximum of a window.
struct Maximum;

impl<S: Simd, const K: usize> Window<S, K> for Maximum {
    const BESIDE: f32 = f32::NEG_INFINITY;

    #[inline(always)]
    fn empty(&self, simd: S) -> S::f32s {
        simd.splat_f32s(f32::NEG_INFINITY)
    }

    #[inline(always)]
    fn with_row(&self, simd: S, _: usize, x: &[S::f32s; K], before: S::f32s) -> S::f32s {
        let mut best = x[0];
        for &x in &x[1..] {
            best = larger(simd, best, x);
        }
        larger(simd, before, best)
    }
}

/// [`Maxima`] of small square windows.
#[inline(always)]
fn slide<S: Simd, const K: usize, const STRIDE: usize>(simd: S, g: &PoolShape, x: &[f32], y: &mut [f32]) {
    let (&[_, h, w], &[_, p, q], &[_, top, left]) = (&g.inputs, &g.outputs, &g.pool.padding);
    let mut plane = Plane { x, inputs: [h, w], y, outputs: [p, q], padding: [top, left] };
    plane.slide::<S, _, K, STRIDE>(simd, &Maximum);
}

/// [`Maxima`] in single precision, in explicit vectors: lines of images are often shorter than the loops that the
/// compiler makes SIMD, and closures that are not inlined lack the instructions of vectors. The maxima across are those
/// of all columns, of which some are kept.
#[inline(always)]
fn maxima<S: Simd>(simd: S, g: &PoolShape, x: &[f32], y: &mut [f32], line: &mut [f32]) {
    let (padding, stride, dilation) = (g.pool.padding[2], g.pool.stride[2], g.pool.dilation[2]);
    let (w, columns) = (g.inputs[2], g.outputs[2]);
    let (best, across) = line.split_at_mut(g.padded());
    best.fill(f32::NEG_INFINITY);
    for (row, y) in y.chunks_exact_mut(columns).enumerate() {
        let inside = &mut best[padding..][..w];
        let mut lines = g.lines(row);
        let Some(first) = lines.next() else {
            y.fill(f32::NEG_INFINITY);
            continue;
        };
        inside.copy_from_slice(&x[first..][..w]);
        for line in lines {
            let (to, last) = S::as_mut_simd_f32s(inside);
            let (from, of_last) = S::as_simd_f32s(&x[line..][..w]);
            for (to, &x) in to.iter_mut().zip(from) {
                *to = larger(simd, *to, x);
            }
            if !last.is_empty() {
                let found = larger(simd, simd.partial_load_f32s(last), simd.partial_load_f32s(of_last));
                simd.partial_store_f32s(last, found);
            }
        }
        let (vectors, _) = S::as_mut_simd_f32s(across);
        for (to, column) in vectors.iter_mut().zip((0..=(columns - 1) * stride).step_by(S::F32_LANES)) {
            *to = simd.splat_f32s(f32::NEG_INFINITY);
            for tap in 0..g.pool.kernel[2] {
                let (x, _) = S::as_simd_f32s(&best[column + tap * dilation..][..S::F32_LANES]);
                *to = larger(simd, *to, x[0]);
            }
        }
        y.iter_mut().zip(across.iter().step_by(stride)).for_each(|(y, &x)| *y = x);
    }
}

/// [`Maxima`], and their places.
pub(super) struct Places<'a, T> {
    pub(super) maxima: Maxima<'a, T>,
    pub(super) index: &'a mut [u32],
    /// A line of places.
    pub(super) places: &'a mut [u32],
}

impl<T: Real> WithSimd for Places<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { maxima: Maxima { g, across, x, y, best }, index, places } = self;
        let (columns, stride) = (g.outputs[2], g.pool.stride[2]);
        y.fill(T::NEG_INFINITY);
        index.fill(u32::MAX);
        for (row, (y, index)) in y.chunks_exact_mut(columns).zip(index.chunks_exact_mut(columns)).enumerate() {
            let mut lines = g.lines(row);
            let Some(first) = lines.next() else { continue };
            let best = &mut best[..places.len()];
            best.copy_from_slice(&x[first..][..best.len()]);
            places.fill(as_place(first));
            for line in lines {
                for ((best, place), &x) in best.iter_mut().zip(&mut *places).zip(&x[line..]) {
                    let wins = beats(x, *best);
                    *best = if wins { x } else { *best };
                    *place = if wins { as_place(line) } else { *place };
                }
            }
            places.iter_mut().zip(0..).for_each(|(place, column)| *place += column);
            for Across { outputs, first } in across {
                let (y, index, count) = (&mut y[outputs.clone()], &mut index[outputs.clone()], outputs.len());
                let (best, places) = (&best[*first..], &places[*first..]);
                let mut f = |k: usize, x: T, place: u32| {
                    // Of equal ones in several columns, the first in memory, which also wins over none.
                    let is_equal = (x == y[k]) | (x.is_nan() & y[k].is_nan());
                    let wins = beats(x, y[k]) | (is_equal & (place < index[k]));
                    y[k] = if wins { x } else { y[k] };
                    index[k] = if wins { place } else { index[k] };
                };
                match stride {
                    1 => each_of_two::<1, _>(best, places, count, f),
                    2 => each_of_two::<2, _>(best, places, count, f),
                    _ => (0..count).for_each(|k| f(k, best[k * stride], places[k * stride])),
                }
            }
        }
    }
}

/// The sums of a channel's windows.
pub(super) struct Sums<'a, T> {
    pub(super) g: &'a PoolShape,
    pub(super) across: &'a [Across],
    pub(super) x: &'a [T],
    pub(super) y: &'a mut [T],
}

impl<T: Real> WithSimd for Sums<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { g, across, x, y } = self;
        y.fill(T::ZERO);
        g.taps(across, |windows, first| {
            let (y, count) = (&mut y[windows.clone()], windows.len());
            strided!(each, g.pool.stride[2], &x[first..], count, iter, |k: usize, &x: &T| y[k] += x);
        });
    }
}

/// The transpose of [`Sums`]: each window's number is added to its elements.
pub(super) struct Spread<'a, T> {
    pub(super) g: &'a PoolShape,
    pub(super) across: &'a [Across],
    pub(super) dy: &'a [T],
    pub(super) dx: &'a mut [T],
}

impl<T: Real> WithSimd for Spread<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { g, across, dy, dx } = self;
        dx.fill(T::ZERO);
        g.taps(across, |windows, first| {
            let (dy, count) = (&dy[windows.clone()], windows.len());
            let dx = &mut dx[first..];
            strided!(each_mut, g.pool.stride[2], dx, count, iter_mut, |k: usize, dx: &mut T| *dx += dy[k]);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;
    use crate::ops::pool::Pool;

    /// Small numbers, among them equal ones, infinities and NaN.
    #[expect(clippy::cast_precision_loss, reason = "small integers")]
    fn numbers(len: usize) -> Vec<f32> {
        let special = [f32::NEG_INFINITY, f32::NEG_INFINITY, f32::INFINITY, f32::NAN];
        (0..len).map(|i| special.get(i * 31 % 23).copied().unwrap_or((i * 7 % 13) as f32 - 6.0)).collect()
    }

    #[test]
    fn rows_give_what_each_window_gives() {
        for (inputs, kernel, stride, padding, dilation, ceil_mode) in [
            ([1, 9, 11], [1, 3, 3], [1, 1, 1], [0, 1, 1], [1, 1, 1], false),
            ([1, 9, 12], [1, 3, 3], [1, 2, 2], [0, 1, 1], [1, 1, 1], false),
            ([1, 8, 11], [1, 2, 2], [1, 2, 2], [0, 0, 0], [1, 1, 1], true),
            ([1, 13, 40], [1, 3, 5], [1, 3, 3], [0, 1, 2], [1, 1, 1], true),
            ([1, 2, 3], [1, 5, 5], [1, 1, 1], [0, 2, 2], [1, 1, 1], false),
            // Some windows lie in the padding alone.
            ([1, 1, 1], [1, 2, 2], [1, 1, 1], [0, 1, 1], [1, 2, 2], false),
            ([4, 5, 37], [2, 3, 3], [2, 1, 2], [1, 1, 0], [1, 2, 3], false),
        ] {
            let pool = Pool { kernel, stride, padding, dilation, ceil_mode };
            let g = PoolShape::of(Shape::from([1, 1, inputs[0], inputs[1], inputs[2]]), pool.into());
            let (x, windows) = (numbers(g.pixels()), g.windows());
            let arch = pulp::Arch::new();

            let across = &g.across();

            let (mut y, mut index) = (vec![0.0; windows], vec![0; windows]);
            let (mut best, mut places) = (vec![f32::NAN; g.line()], vec![0; inputs[2]]);
            let maxima = Maxima { g: &g, across, x: &x, y: &mut y, best: &mut best };
            arch.dispatch(Places { maxima, index: &mut index, places: &mut places });
            let mut values = vec![0.0; windows];
            arch.dispatch(Maxima { g: &g, across, x: &x, y: &mut values, best: &mut best });
            assert!(values.iter().zip(&y).all(|(a, b)| a.to_bits() == b.to_bits()), "{pool:?}");
            for (at, (y, index)) in y.iter().zip(&index).enumerate() {
                let beats = |x: f32, best: f32| x > best || (x.is_nan() && !best.is_nan());
                let places = g.window(g.place(at));
                let best = places.reduce(|best, place| if beats(x[place], x[best]) { place } else { best });
                assert_eq!(*index, best.map_or(u32::MAX, as_place), "{pool:?} at {at}");
                assert_eq!(y.to_bits(), best.map_or(f32::NEG_INFINITY, |best| x[best]).to_bits(), "{pool:?}");
            }

            // Sums of small integers are exact in any order.
            let x: Vec<f32> = x.into_iter().map(|x| if x.is_finite() { x } else { 0.5 }).collect();
            arch.dispatch(Sums { g: &g, across, x: &x, y: &mut y });
            let mut dx = vec![0.0; g.pixels()];
            arch.dispatch(Spread { g: &g, across, dy: &y, dx: &mut dx });
            let mut spread = vec![0.0; g.pixels()];
            for (at, &y) in y.iter().enumerate() {
                assert_eq!(y, g.window(g.place(at)).map(|place| x[place]).sum::<f32>(), "{pool:?} at {at}");
                g.window(g.place(at)).for_each(|place| spread[place] += y);
            }
            assert_eq!(dx, spread, "{pool:?}");
        }
    }
}
