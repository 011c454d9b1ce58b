//! The native kernels of recurrent layers: for each step a product, then the formula row by row.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::{At, Recurrent, RecurrentFormula, RecurrentGrad, RecurrentShape, WEIGHT};
use crate::kernel::native::{
    self, Accumulate, Apart, Block, Borrowed, Matrix, OutView, Real, Scratch, Threads, Transposed, View,
};
use crate::{Layout, Shape};

#[inline(always)]
fn sigmoid<T: Real, S: Simd>(x: T) -> T {
    T::ONE / (T::ONE + (-x).exp::<S>())
}

/// Two neighbouring states of all steps: that at `from`, and that at `to`.
fn neighbours<T>(states: &mut [T], from: usize, to: usize, len: usize) -> (&[T], &mut [T]) {
    let (low, high) = states.split_at_mut(from.max(to) * len);
    let (low, high) = (&mut low[from.min(to) * len..], &mut high[..len]);
    if from < to { (low, high) } else { (high, low) }
}

/// The most rows, and multiply-adds of a step, whose product with weights in another order takes less time than what
/// `gemm` does before its own: it packs them in each step.
const FEW: usize = Block::ROWS;
const SMALL: usize = 1 << 22;

/// The fewest steps for which weights are worth another order.
const STEPS: usize = 4;

/// Products of a few states with the weights of all gates, in single precision.
struct FewRows<'a> {
    /// The weight as `[H,G·H]`.
    turned: Borrowed<'a, f32>,
    /// Rows, columns and terms.
    extents: [usize; 3],
}

impl<'a> FewRows<'a> {
    /// `None` where `gemm` is as good.
    fn new<T: Real>([t, n, h, width]: [usize; 4], weight: &[T], scratch: &'a Scratch) -> Option<Self> {
        let weight = T::singles(weight)?;
        let pays = t >= STEPS && n <= FEW && n * h * width <= SMALL && width.is_multiple_of(Block::COLUMNS);
        if !pays {
            return None;
        }
        let view = Layout::contiguous(Shape::from([width, h])).permute(&[1, 0]);
        let transposed = Transposed::of(weight, &view)?;
        let mut turned = scratch.borrow(h * width)?;
        transposed.write(&mut turned);
        Some(Self { turned, extents: [n, width, h] })
    }

    fn multiply(&self, states: &[f32], products: &mut [f32]) {
        let [_, width, h] = self.extents;
        let block = Block {
            extents: self.extents,
            a: states,
            a_rows: Apart(h),
            a_terms: Apart(1),
            b: &self.turned,
            b_terms: Apart(width),
            c: products,
            c_stride: width,
            accumulate: Accumulate::No,
        };
        block.multiply(pulp::Arch::new());
    }
}

pub(super) fn forward<T: Real>(op: &Recurrent, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
    let formula = op.formula;
    let mut results: Vec<&mut [T]> = y.iter_mut().map(OutView::floats).collect();
    let mut saved = op.saved().map(|k| results.remove(k));
    let mut cells = op.cells().map(|k| results.remove(k));
    let width = x[0].dims()[2];
    let [t, n, _] = *x[0].dims() else { unreachable!("three axes") };
    let h = width / formula.gates();
    let (input, weight, state) = (x[0].floats(), x[WEIGHT].floats(), n * h);
    let bias = op.bias().map(|k| x[k].floats());
    let mask = op.mask().map(|k| x[k].floats());
    let Some(mut products) = scratch.borrow::<T>(n * width) else { return };
    // The places of numbers that a formula does not save, and of cells that it lacks.
    let Some(mut unsaved) = scratch.borrow::<T>(if saved.is_some() { 0 } else { 4 * state }) else { return };
    let Some(mut no_cells) = scratch.borrow::<T>(if cells.is_some() { 0 } else { state }) else { return };
    no_cells.iter_mut().for_each(|cell| *cell = T::ZERO);
    let first = op.at(0, t).before;
    results[0][first * state..][..state].copy_from_slice(&x[2].floats()[..state]);
    if let Some(cells) = &mut cells {
        cells[first * state..][..state].copy_from_slice(&x[3].floats()[..state]);
    }
    let arch = pulp::Arch::new();
    let few_rows = FewRows::new([t, n, h, width], weight, scratch);
    for step in 0..t {
        let At { time, before, after } = op.at(step, t);
        let (last, next) = neighbours(results[0], before, after, state);
        match (&few_rows, T::singles(last), T::singles_mut(&mut products)) {
            (Some(few), Some(last), Some(products)) => few.multiply(last, products),
            _ => native::gemm(
                Matrix::new(last, (n, h), (h, 1)),
                Matrix::new(weight, (h, width), (1, h)),
                &mut products,
                Accumulate::No,
                Threads::All,
            ),
        }
        let (products, input) = (&products[..], &input[time * n * width..][..n * width]);
        let saved = saved.as_mut().map_or(&mut unsaved[..], |saved| &mut saved[time * 4 * state..][..4 * state]);
        // Without cells, what would be the new ones is not read.
        let zeros: &[T] = &[];
        let (last_cells, next_cells) = match &mut cells {
            Some(cells) => neighbours(cells, before, after, state),
            None => (zeros, &mut no_cells[..]),
        };
        let rows = next.par_chunks_mut(h).zip(next_cells.par_chunks_mut(h)).zip(saved.par_chunks_mut(4 * h));
        rows.enumerate().with_min_len(native::grain(40 * h)).for_each(|(row, ((next, cell), saved))| {
            let of_row = |numbers: &'_ [T], width: usize| -> std::ops::Range<usize> {
                if numbers.is_empty() { 0..0 } else { row * width..(row + 1) * width }
            };
            let (last, last_cell) = (&last[row * h..][..h], &last_cells[of_row(last_cells, h)]);
            let (input, products) = (&input[of_row(input, width)], &products[of_row(products, width)]);
            let (to, to_cell) = (&mut *next, &mut *cell);
            arch.dispatch(Row { formula, input, products, bias, last, last_cell, next: to, cell: to_cell, saved });
            if mask.is_some_and(|mask| mask[time * n + row] == T::ZERO) {
                next.copy_from_slice(last);
                if !last_cell.is_empty() {
                    cell.copy_from_slice(last_cell);
                }
            }
        });
    }
    if let Some(cells) = cells {
        let after = op.at(t - 1, t).after;
        results[1].copy_from_slice(&cells[after * state..][..state]);
    }
}

/// A row of a step.
struct Row<'a, T> {
    formula: RecurrentFormula,
    /// The numbers of each gate, one after the other.
    input: &'a [T],
    products: &'a [T],
    bias: Option<&'a [T]>,
    last: &'a [T],
    last_cell: &'a [T],
    next: &'a mut [T],
    cell: &'a mut [T],
    saved: &'a mut [T],
}

impl<T: Real> WithSimd for Row<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { formula, input, products, bias, last, last_cell, next, cell, saved } = self;
        let h = next.len();
        let gate = |k: usize| input[k * h..][..h].iter().zip(&products[k * h..][..h]);
        match formula {
            RecurrentFormula::Tanh => {
                next.iter_mut().zip(gate(0)).for_each(|(next, (&x, &product))| *next = (product + x).tanh::<S>());
            }
            RecurrentFormula::Relu => next.iter_mut().zip(gate(0)).for_each(|(next, (&x, &product))| {
                let sum = product + x;
                *next = if sum <= T::ZERO { T::ZERO } else { sum };
            }),
            RecurrentFormula::Lstm => {
                for (k, saved) in saved.chunks_exact_mut(h).enumerate() {
                    if k == 2 {
                        saved.iter_mut().zip(gate(k)).for_each(|(to, (&x, &product))| *to = (product + x).tanh::<S>());
                    } else {
                        saved
                            .iter_mut()
                            .zip(gate(k))
                            .for_each(|(to, (&x, &product))| *to = sigmoid::<T, S>(product + x));
                    }
                }
                let [i, f, g, o] = [0, 1, 2, 3].map(|k| &saved[k * h..][..h]);
                for (k, (next, cell)) in next.iter_mut().zip(cell.iter_mut()).enumerate() {
                    *cell = f[k] * last_cell[k] + i[k] * g[k];
                    *next = o[k] * cell.tanh::<S>();
                }
            }
            RecurrentFormula::Gru => {
                for (k, saved) in saved[..2 * h].chunks_exact_mut(h).enumerate() {
                    saved.iter_mut().zip(gate(k)).for_each(|(to, (&x, &product))| *to = sigmoid::<T, S>(x + product));
                }
                let (gates, rest) = saved.split_at_mut(2 * h);
                let (candidate, of_state) = rest.split_at_mut(h);
                of_state.copy_from_slice(&products[2 * h..]);
                if let Some(bias) = bias {
                    of_state.iter_mut().zip(bias).for_each(|(to, &bias)| *to += bias);
                }
                let (reset, update) = (&gates[..h], &gates[h..][..h]);
                for (k, (next, candidate)) in next.iter_mut().zip(candidate.iter_mut()).enumerate() {
                    *candidate = (input[2 * h + k] + reset[k] * of_state[k]).tanh::<S>();
                    *next = update[k] * (last[k] - *candidate) + *candidate;
                }
            }
        }
    }
}

pub(super) fn backward<T: Real>(op: &RecurrentGrad, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
    let formula = op.forward.formula;
    let RecurrentShape { t, n, h } = Recurrent::shape(x[0].layout().shape());
    let (d_states, weight, values, state) = (x[0].floats(), x[WEIGHT].floats(), x[2].floats(), n * h);
    let saved = op.saved().map(|k| x[k].floats());
    let mask = op.mask().map(|k| x[k].floats());
    let mut results: Vec<&mut [T]> = y.iter_mut().map(OutView::floats).collect();
    let (sums, initial) = results.split_first_mut().expect("there are cotangents of sums");
    let width = formula.blocks() * h;
    let [Some(mut through), Some(mut direct), Some(mut cells)] = [(); 3].map(|()| scratch.borrow::<T>(state)) else {
        return;
    };
    direct.iter_mut().for_each(|number| *number = T::ZERO);
    match op.last() {
        Some(k) => cells.copy_from_slice(&x[k].floats()[..state]),
        None => cells.iter_mut().for_each(|number| *number = T::ZERO),
    }
    through.iter_mut().for_each(|number| *number = T::ZERO);
    let arch = pulp::Arch::new();
    for step in (0..t).rev() {
        let At { time, before, after } = op.forward.at(step, t);
        let place = |states: &'_ [T], at: usize| -> std::ops::Range<usize> {
            if states.is_empty() { 0..0 } else { at * state..(at + 1) * state }
        };
        let (d_state, through_step) = (&d_states[place(d_states, after)], &through[..]);
        let (of_before, of_after) = (&values[place(values, before)], &values[place(values, after)]);
        let sums = &mut sums[time * n * width..][..n * width];
        let rows = sums.par_chunks_mut(width).zip(direct.par_chunks_mut(h)).zip(cells.par_chunks_mut(h));
        rows.enumerate().with_min_len(native::grain(40 * h)).for_each(|(row, ((sums, direct), cell))| {
            let own = row * h..(row + 1) * h;
            for (direct, (&d, &through)) in
                direct.iter_mut().zip(d_state[own.clone()].iter().zip(&through_step[own.clone()]))
            {
                *direct = (d + *direct) + through;
            }
            if mask.is_some_and(|mask| mask[time * n + row] == T::ZERO) {
                sums.fill(T::ZERO);
                return;
            }
            let saved = saved.map_or(&[][..], |saved| &saved[(time * n + row) * 4 * h..][..4 * h]);
            let (before, after) = (&of_before[own.clone()], &of_after[own]);
            arch.dispatch(GradRow { formula, saved, before, after, direct, cell, sums });
        });
        let sums = &sums[..];
        let product = |first: usize, gates: usize, rows: usize, through: &mut [T], accumulate| {
            native::gemm(
                Matrix::new(&sums[first * h..], (n, gates * h), (width, 1)),
                Matrix::new(&weight[rows * h * h..], (gates * h, h), (h, 1)),
                through,
                accumulate,
                Threads::All,
            );
        };
        if formula == RecurrentFormula::Gru {
            product(0, 2, 0, &mut through, Accumulate::No);
            product(3, 1, 2, &mut through, Accumulate::Yes);
        } else {
            product(0, formula.gates(), 0, &mut through, Accumulate::No);
        }
    }
    let first = &d_states[op.forward.at(0, t).before * state..][..state];
    for ((to, &d), (&direct, &through)) in initial[0].iter_mut().zip(first).zip(direct.iter().zip(through.iter())) {
        *to = (d + direct) + through;
    }
    if formula.is_lstm() {
        initial[1].copy_from_slice(&cells);
    }
}

/// A row of a step's gradient.
struct GradRow<'a, T> {
    formula: RecurrentFormula,
    saved: &'a [T],
    before: &'a [T],
    after: &'a [T],
    /// The cotangent of the state after the step; then what goes on to the state before it directly.
    direct: &'a mut [T],
    /// Likewise for the cell state.
    cell: &'a mut [T],
    /// The cotangents of each gate's sums, one after the other.
    sums: &'a mut [T],
}

impl<T: Real> WithSimd for GradRow<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { formula, saved, before, after, direct, cell, sums } = self;
        let h = direct.len();
        match formula {
            RecurrentFormula::Tanh => {
                for ((sum, direct), &y) in sums.iter_mut().zip(direct.iter_mut()).zip(after) {
                    *sum = *direct - *direct * y * y;
                    *direct = T::ZERO;
                }
            }
            RecurrentFormula::Relu => {
                for ((sum, direct), &y) in sums.iter_mut().zip(direct.iter_mut()).zip(after) {
                    *sum = if y <= T::ZERO { T::ZERO } else { *direct };
                    *direct = T::ZERO;
                }
            }
            RecurrentFormula::Lstm => {
                let [i, f, g, o] = [0, 1, 2, 3].map(|k| &saved[k * h..][..h]);
                let (first, rest) = sums.split_at_mut(h);
                let (second, rest) = rest.split_at_mut(h);
                let (third, fourth) = rest.split_at_mut(h);
                for (k, (direct, cell)) in direct.iter_mut().zip(cell.iter_mut()).enumerate() {
                    let (d, y) = (*direct, after[k].tanh::<S>());
                    let e = *cell + d * o[k] * (T::ONE - y * y);
                    first[k] = e * g[k] * (i[k] - i[k] * i[k]);
                    second[k] = e * before[k] * (f[k] - f[k] * f[k]);
                    third[k] = e * i[k] * (T::ONE - g[k] * g[k]);
                    fourth[k] = d * y * (o[k] - o[k] * o[k]);
                    *cell = e * f[k];
                    *direct = T::ZERO;
                }
            }
            RecurrentFormula::Gru => {
                let [r, z, n, m] = [0, 1, 2, 3].map(|k| &saved[k * h..][..h]);
                let (first, rest) = sums.split_at_mut(h);
                let (second, rest) = rest.split_at_mut(h);
                let (third, fourth) = rest.split_at_mut(h);
                for (k, direct) in direct.iter_mut().enumerate() {
                    let d = *direct;
                    let v = (d - d * z[k]) * (T::ONE - n[k] * n[k]);
                    first[k] = v * m[k] * (r[k] - r[k] * r[k]);
                    second[k] = d * (before[k] - n[k]) * (z[k] - z[k] * z[k]);
                    third[k] = v;
                    fourth[k] = v * r[k];
                    *direct = d * z[k];
                }
            }
        }
    }
}
