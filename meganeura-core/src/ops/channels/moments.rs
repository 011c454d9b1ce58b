//! Mean and variance of each channel.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::cells::{COLUMNS, Cells};
use super::{ChannelShape, bf16, forms};
use crate::kernel::launch::{Argument, Caps, Variant};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
use crate::ops::{Bf16, Kernel, Primitive};
use crate::{Result, Shape, TensorType};

/// The moments of each channel over examples and positions: `mean = Σ x/K`, `variance = Σ (x − mean)²/K`.
///
/// Shapes: `x [N,C,…]` → `mean [C]`, `rest [C]`, `variance [C]`; `K` is the number of elements of a channel. The exact
/// mean is `mean + rest`: as a single `f32`, a mean of 1000 would be off by 3e-5, the fourth digit of a spread of 0.1.
/// Elements are read once, and the result is as precise as after three passes, whatever the mean, and wherever an
/// outlier is.
/// Gradient: `dx = dm/K + (x − mean)·2·dv/K`, with cotangents `dm` and `dv` of mean and variance; 0 for the rest, the
/// remainder of a rounding.
/// [Chan, Golub and LeVeque, 1983](https://doi.org/10.1080/00031305.1983.10483115).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ChannelMoments;

impl Primitive for ChannelMoments {
    fn name(&self) -> &'static str {
        "channel_moments"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let [x] = x else { return Err(format!("takes one operand, not {}", x.len())) };
        if !x.dtype.is_float() {
            return Err(format!("needs floats, the operand holds {}", x.dtype));
        }
        let c = ChannelShape::new(x.shape)?.c;
        Ok(vec![x.with_shape(Shape::from([c])); 3])
    }
}

impl Kernel for ChannelMoments {
    fn bf16(&self, x: &[TensorType], _: &[TensorType], caps: &Caps) -> Option<Bf16> {
        bf16(x[0], &[0], caps)
    }

    fn stores(&self) -> bool {
        true
    }

    fn stores_all(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        let shape = ChannelShape::of(x[0].layout().shape());
        let (x, [mean, rest, variance]) = (x[0].floats(), y) else { unreachable!("three results") };
        let cells = Cells::of(shape);
        let Some(mut of_cells) = scratch.borrow::<T>(3 * cells.len()) else { return };
        let (arch, pitch) = (pulp::Arch::new(), shape.c * shape.s);
        cells.fill(
            &mut of_cells,
            3,
            &|first, count, _, result| arch.dispatch(Row { x: &x[first..][..count], result }),
            &|first, rows, results| arch.dispatch(Tile { x: &x[first..], pitch, rows, results }),
        );
        let of_cells = &of_cells[..];
        let results = mean.floats().par_iter_mut().zip(rest.floats()).zip(variance.floats()).enumerate();
        let grain = native::grain(2 * cells.len() / shape.c);
        results.with_min_len(grain).for_each(|(channel, ((mean, rest), variance))| {
            // As `channel_moments_join.wgsl` joins parts.
            let count = native::real::<T>(shape.len());
            let pivot = of_cells[3 * cells.first(channel)];
            let [shift, _] = cells.total(of_cells, 3, channel, |cell, n| [n * ((cell[0] - pivot) + cell[1]), T::ZERO]);
            let high = pivot + shift / count;
            let [sum, squares] = cells.total(of_cells, 3, channel, |cell, n| {
                let d = (cell[0] - high) + cell[1];
                [n * d, cell[2] + n * d * d]
            });
            let (low, squares) = about(sum, squares, count);
            *mean = high + low;
            *rest = (high - *mean) + low;
            *variance = squares / count;
        });
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        forms::moments(ChannelShape::of(x[0].ty.shape), x[0].format)
    }
}

/// The mean, and the sum of squares about it, of numbers whose differences from a pivot have a sum and a sum of
/// squares. At least 0; NaN stays NaN.
#[inline(always)]
fn about<T: Real>(sum: T, squares: T, count: T) -> (T, T) {
    let low = sum / count;
    let squares = squares - sum * low;
    (low, if squares < T::ZERO { T::ZERO } else { squares })
}

/// The moments of numbers side by side: their rounded mean, the rest of it, and the sum of squares about it.
struct Row<'a, T> {
    x: &'a [T],
    result: &'a mut [T],
}

impl<T: Real> WithSimd for Row<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { x, result } = self;
        let (first, count) = (x[0], native::real::<T>(x.len()));
        let [sum, _] = native::moments(simd, x, first);
        let high = first + sum / count;
        let [sum, squares] = native::moments(simd, x, high);
        let (low, squares) = about(sum, squares, count);
        result.copy_from_slice(&[high, low, squares]);
    }
}

/// The moments of a few rows of several columns.
struct Tile<'a, T> {
    /// The operand, from the first column's first element on.
    x: &'a [T],
    pitch: usize,
    rows: usize,
    /// Three numbers for each column.
    results: &'a mut [T],
}

impl<T: Real> WithSimd for Tile<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { x, pitch, rows, results } = self;
        let (columns, count) = (results.len() / 3, native::real::<T>(rows));
        let [mut high, mut sums, mut squares] = [[T::ZERO; COLUMNS]; 3];
        let [high, sums, squares] = [&mut high, &mut sums, &mut squares].map(|column| &mut column[..columns]);
        for row in 0..rows {
            high.iter_mut().zip(&x[row * pitch..]).for_each(|(high, &x)| *high += x);
        }
        high.iter_mut().for_each(|high| *high = *high / count);
        for row in 0..rows {
            let sums = sums.iter_mut().zip(squares.iter_mut());
            for ((&x, &high), (sum, squares)) in x[row * pitch..].iter().zip(high.iter()).zip(sums) {
                *sum += x - high;
                *squares += (x - high) * (x - high);
            }
        }
        let numbers = high.iter().zip(sums.iter().zip(squares.iter()));
        for (result, (&high, (&sum, &squares))) in results.chunks_exact_mut(3).zip(numbers) {
            let (low, squares) = about(sum, squares, count);
            result.copy_from_slice(&[high, low, squares]);
        }
    }
}
