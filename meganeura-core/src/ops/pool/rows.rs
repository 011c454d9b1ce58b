//! Native kernels of pools: each tap of the window is one loop over a row of outputs.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::PoolShape;
use crate::kernel::native::{self, Real};

impl PoolShape {
    /// The channels of a task, so that small ones share one.
    pub(super) fn channels_of_task(&self) -> usize {
        let taps = self.pool.kernel.iter().product();
        native::grain(taps).div_ceil(self.windows()).min(self.channels)
    }

    /// The parts of the rows of outputs that each tap reaches inside of the input: the outputs, and the first one's
    /// input. The next one's input is a stride of columns away. Each output meets its taps in the order of the input.
    #[inline(always)]
    fn taps(&self, mut f: impl FnMut(Range<usize>, usize)) {
        let ([_, h, w], [planes, rows, columns]) = (self.inputs, self.outputs);
        let (kernel, stride) = (self.pool.kernel, self.pool.stride[2]);
        for (row, output) in (0..planes * rows).zip((0..).step_by(columns)) {
            for tap in 0..kernel[0] * kernel[1] {
                let plane = self.reached(0, row / rows, tap / kernel[1]);
                let Some((plane, line)) = plane.zip(self.reached(1, row % rows, tap % kernel[1])) else { continue };
                for across in 0..kernel[2] {
                    let (shift, padding) = (across * self.pool.dilation[2], self.pool.padding[2]);
                    let from = padding.saturating_sub(shift).div_ceil(stride);
                    let to = (w + padding).saturating_sub(shift).div_ceil(stride).min(columns);
                    if from < to {
                        let first = (plane * h + line) * w + from * stride + shift - padding;
                        f(output + from..output + to, first);
                    }
                }
            }
        }
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

/// The maxima of a channel's windows, and their places.
pub(super) struct Maxima<'a, T> {
    pub(super) g: &'a PoolShape,
    pub(super) x: &'a [T],
    pub(super) y: &'a mut [T],
    pub(super) index: &'a mut [u32],
}

impl<T: Real> WithSimd for Maxima<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { g, x, y, index } = self;
        // Of a window in the padding alone, which dilation allows, or of −∞ alone.
        y.fill(T::NEG_INFINITY);
        index.fill(u32::MAX);
        g.taps(|windows, first| {
            let (count, stride) = (windows.len(), g.pool.stride[2]);
            let (y, index) = (&mut y[windows.clone()][..count], &mut index[windows][..count]);
            strided!(each, stride, &x[first..], count, iter, |k: usize, &x: &T| {
                // The first maximum stays; so does NaN.
                let wins = (x > y[k]) | (x.is_nan() & !y[k].is_nan());
                y[k] = if wins { x } else { y[k] };
                index[k] = if wins { as_place(first + k * stride) } else { index[k] };
            });
        });
        for (at, index) in index.iter_mut().enumerate().filter(|(_, index)| **index == u32::MAX) {
            *index = g.window(g.place(at)).next().map_or(u32::MAX, as_place);
        }
    }
}

/// The sums of a channel's windows.
pub(super) struct Sums<'a, T> {
    pub(super) g: &'a PoolShape,
    pub(super) x: &'a [T],
    pub(super) y: &'a mut [T],
}

impl<T: Real> WithSimd for Sums<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { g, x, y } = self;
        y.fill(T::ZERO);
        g.taps(|windows, first| {
            let (y, count) = (&mut y[windows.clone()], windows.len());
            strided!(each, g.pool.stride[2], &x[first..], count, iter, |k: usize, &x: &T| y[k] += x);
        });
    }
}

/// The transpose of [`Sums`]: each window's number is added to its elements.
pub(super) struct Spread<'a, T> {
    pub(super) g: &'a PoolShape,
    pub(super) dy: &'a [T],
    pub(super) dx: &'a mut [T],
}

impl<T: Real> WithSimd for Spread<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { g, dy, dx } = self;
        dx.fill(T::ZERO);
        g.taps(|windows, first| {
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

            let (mut y, mut index) = (vec![0.0; windows], vec![0; windows]);
            arch.dispatch(Maxima { g: &g, x: &x, y: &mut y, index: &mut index });
            for (at, (y, index)) in y.iter().zip(&index).enumerate() {
                let beats = |x: f32, best: f32| x > best || (x.is_nan() && !best.is_nan());
                let places = g.window(g.place(at));
                let best = places.reduce(|best, place| if beats(x[place], x[best]) { place } else { best });
                assert_eq!(*index, best.map_or(u32::MAX, as_place), "{pool:?} at {at}");
                assert_eq!(y.to_bits(), best.map_or(f32::NEG_INFINITY, |best| x[best]).to_bits(), "{pool:?}");
            }

            // Sums of small integers are exact in any order.
            let x: Vec<f32> = x.into_iter().map(|x| if x.is_finite() { x } else { 0.5 }).collect();
            arch.dispatch(Sums { g: &g, x: &x, y: &mut y });
            let mut dx = vec![0.0; g.pixels()];
            arch.dispatch(Spread { g: &g, dy: &y, dx: &mut dx });
            let mut spread = vec![0.0; g.pixels()];
            for (at, &y) in y.iter().enumerate() {
                assert_eq!(y, g.window(g.place(at)).map(|place| x[place]).sum::<f32>(), "{pool:?} at {at}");
                g.window(g.place(at)).for_each(|place| spread[place] += y);
            }
            assert_eq!(dx, spread, "{pool:?}");
        }
    }
}
