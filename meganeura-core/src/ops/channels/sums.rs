//! The sums of each channel that gradients need.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::cells::{COLUMNS, Cells};
use super::{ChannelShape, bf16, expect, forms};
use crate::kernel::launch::{Argument, Caps, Variant};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
use crate::ops::{Bf16, Kernel, Primitive};
use crate::{Result, Shape, TensorType};

/// Two sums of each channel over examples and positions: `sum = Σ dy` and `product = Σ dy·(x − centre)`.
///
/// Shapes: `dy [N,C,…]`, `x [N,C,…]`, `centre [C]` → `sum [C]`, `product [C]`.
/// Gradient: with cotangents `u` and `v` of the sums, `dy` gets `u + v·(x − centre)`, `x` gets `v·dy`, and `centre`
/// gets `−v·sum`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ChannelSums;

impl Primitive for ChannelSums {
    fn name(&self) -> &'static str {
        "channel_sums"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let channels = Shape::from([ChannelShape::new(x[0].shape)?.c]);
        expect(x, &[("cotangent", x[0].shape), ("input", x[0].shape), ("centre", channels)])?;
        Ok(vec![x[0].with_shape(channels); 2])
    }
}

impl Kernel for ChannelSums {
    fn loads(&self) -> Option<usize> {
        Some(0)
    }

    fn bf16(&self, x: &[TensorType], _: &[TensorType], caps: &Caps) -> Option<Bf16> {
        // The lines of `x` decide: `dy` may be computed where it is loaded.
        bf16(x[0], &[1, 0], caps)
    }

    fn stores(&self) -> bool {
        true
    }

    fn stores_all(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        let shape = ChannelShape::of(x[0].layout().shape());
        let [dy, x, centre] = [0, 1, 2].map(|k| x[k].floats());
        let [sum, product] = y else { unreachable!("two results") };
        let cells = Cells::of(shape);
        let Some(mut of_cells) = scratch.borrow::<T>(2 * cells.len()) else { return };
        let (arch, pitch) = (pulp::Arch::new(), shape.c * shape.s);
        cells.fill(
            &mut of_cells,
            2,
            &|first, count, channel, result| {
                let [dy, x] = [dy, x].map(|numbers| &numbers[first..][..count]);
                arch.dispatch(Row { dy, x, centre: centre[channel], result });
            },
            &|first, rows, results| {
                let [dy, x] = [dy, x].map(|numbers| &numbers[first..]);
                let mut centres = [T::ZERO; COLUMNS];
                let channels = (first..).map(|at| at % pitch / shape.s);
                let centres = &mut centres[..results.len() / 2];
                centres.iter_mut().zip(channels).for_each(|(to, channel)| *to = centre[channel]);
                arch.dispatch(Tile { dy, x, centres, pitch, rows, results });
            },
        );
        let of_cells = &of_cells[..];
        let results = sum.floats().par_iter_mut().zip(product.floats()).enumerate();
        let grain = native::grain(cells.len() / shape.c);
        results.with_min_len(grain).for_each(|(channel, (sum, product))| {
            [*sum, *product] = cells.total(of_cells, 2, channel, |cell, _| [cell[0], cell[1]]);
        });
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        forms::sums(ChannelShape::of(x[0].ty.shape), x[1].format)
    }
}

/// The sums of numbers side by side.
struct Row<'a, T> {
    dy: &'a [T],
    x: &'a [T],
    centre: T,
    result: &'a mut [T],
}

impl<T: Real> WithSimd for Row<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dy, x, centre, result } = self;
        result[0] = native::sum(dy);
        result[1] = native::dot_by(x, dy, |x, dy| dy * (x - centre));
    }
}

/// The sums of a few rows of several columns.
struct Tile<'a, T> {
    /// The operands, from the first column's first element on.
    dy: &'a [T],
    x: &'a [T],
    /// The centre of each column.
    centres: &'a [T],
    pitch: usize,
    rows: usize,
    /// Two numbers for each column.
    results: &'a mut [T],
}

impl<T: Real> WithSimd for Tile<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dy, x, centres, pitch, rows, results } = self;
        let [mut sums, mut products] = [[T::ZERO; COLUMNS]; 2];
        let [sums, products] = [&mut sums, &mut products].map(|column| &mut column[..centres.len()]);
        for row in 0..rows {
            let [dy, x] = [dy, x].map(|numbers| &numbers[row * pitch..][..centres.len()]);
            sums.iter_mut().zip(dy).for_each(|(sum, &dy)| *sum += dy);
            for (product, ((&dy, &x), &centre)) in products.iter_mut().zip(dy.iter().zip(x).zip(centres)) {
                *product += dy * (x - centre);
            }
        }
        for (result, (&sum, &product)) in results.chunks_exact_mut(2).zip(sums.iter().zip(products.iter())) {
            result.copy_from_slice(&[sum, product]);
        }
    }
}
