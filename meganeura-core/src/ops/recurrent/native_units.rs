//! The formulas of recurrent layers on the CPU, for the units of a part of a step: some of one vector at a time.

use pulp::{Simd, WithSimd};

use super::RecurrentFormula;
use super::native_products::{Part, Sums};
use crate::kernel::native::{Real, Shared, sigmoid};

/// Units that are computed at a time: the widest vector.
const LANES: usize = 16;

type Lanes<T> = [T; LANES];

/// The numbers of neighbouring units, of at most a vector, and zeros behind them.
#[inline(always)]
fn load<T: Real>(x: &[T]) -> Lanes<T> {
    if let Ok(lanes) = x.try_into() {
        return lanes;
    }
    let mut lanes = [T::ZERO; LANES];
    lanes[..x.len()].copy_from_slice(x);
    lanes
}

/// Writes those of the first `len` units.
///
/// # Safety
///
/// No other thread reads or writes them.
#[inline(always)]
unsafe fn store<T: Real>(to: &Shared<'_, T>, at: usize, lanes: &Lanes<T>, len: usize) {
    // SAFETY: the caller's promise. A whole vector has a length that the compiler knows.
    unsafe { if len == LANES { to.write(at, lanes) } else { to.write(at, &lanes[..len]) } }
}

#[inline(always)]
fn sums<T: Real>(a: &Lanes<T>, b: &Lanes<T>) -> Lanes<T> {
    let mut y = *a;
    y.iter_mut().zip(b).for_each(|(y, &b)| *y += b);
    y
}

#[inline(always)]
fn sigmoids<T: Real, S: Simd>(mut x: Lanes<T>) -> Lanes<T> {
    for x in &mut x {
        *x = sigmoid::<T, S>(*x);
    }
    x
}

#[inline(always)]
fn tanhs<T: Real, S: Simd>(mut x: Lanes<T>) -> Lanes<T> {
    for x in &mut x {
        *x = x.tanh::<S>();
    }
    x
}

/// The rows of a step.
pub(super) struct Rows<'a, T> {
    pub(super) formula: RecurrentFormula,
    pub(super) h: usize,
    /// The numbers of each gate, one after the other.
    pub(super) input: &'a [T],
    pub(super) bias: Option<&'a [T]>,
    /// Of each row, 0 where the step leaves its state as it is.
    pub(super) mask: Option<&'a [T]>,
    pub(super) last: &'a [T],
    pub(super) next: Shared<'a, T>,
    /// Those of an LSTM, likewise.
    pub(super) cells: Option<(&'a [T], Shared<'a, T>)>,
    /// What the gradient needs, if that is read.
    pub(super) saved: Option<Shared<'a, T>>,
}

impl<T: Real> Rows<'_, T> {
    /// Computes the units of a part, from the products of the last states.
    ///
    /// # Safety
    ///
    /// No other thread reads or writes results of this part.
    pub(super) unsafe fn compute(&self, part: &Part, products: Sums<'_, T>, arch: pulp::Arch) {
        arch.dispatch(Forward { rows: self, part, products });
    }
}

struct Forward<'a, T> {
    rows: &'a Rows<'a, T>,
    part: &'a Part,
    products: Sums<'a, T>,
}

impl<T: Real> WithSimd for Forward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Part { rows, units } = self.part;
        for (at, row) in rows.clone().enumerate() {
            for first in units.clone().step_by(LANES) {
                // SAFETY: the promise of `compute`.
                unsafe { self.units::<S>(at, row, first, LANES.min(units.end - first)) };
            }
        }
    }
}

impl<T: Real> Forward<'_, T> {
    /// Computes `len` units of a row, from unit `first` on.
    ///
    /// # Safety
    ///
    /// As [`Rows::compute`].
    #[inline(always)]
    unsafe fn units<S: Simd>(&self, at: usize, row: usize, first: usize, len: usize) {
        let &Rows { formula, h, input, bias, mask, last, ref next, ref cells, ref saved } = self.rows;
        let (place, gates) = (row * h + first, formula.gates());
        let unit = first - self.part.units.start;
        let last = load(&last[place..][..len]);
        let last_cell = match cells {
            Some((last, _)) => load(&last[place..][..len]),
            None => [T::ZERO; LANES],
        };
        let x = |gate: usize| load(&input[(row * gates + gate) * h + first..][..len]);
        let product = |gate: usize| load(&self.products.at(at, gate, unit)[..len]);
        let (mut state, mut cell, mut kept) = ([T::ZERO; LANES], last_cell, [[T::ZERO; LANES]; 4]);
        match formula {
            RecurrentFormula::Tanh => state = tanhs::<T, S>(sums(&product(0), &x(0))),
            RecurrentFormula::Relu => {
                state = sums(&product(0), &x(0));
                state.iter_mut().for_each(|y| *y = if *y <= T::ZERO { T::ZERO } else { *y });
            }
            RecurrentFormula::Lstm => {
                let i = sigmoids::<T, S>(sums(&product(0), &x(0)));
                let f = sigmoids::<T, S>(sums(&product(1), &x(1)));
                let g = tanhs::<T, S>(sums(&product(2), &x(2)));
                let o = sigmoids::<T, S>(sums(&product(3), &x(3)));
                for k in 0..LANES {
                    cell[k] = f[k] * cell[k] + i[k] * g[k];
                }
                let y = tanhs::<T, S>(cell);
                for k in 0..LANES {
                    state[k] = o[k] * y[k];
                }
                kept = [i, f, g, o];
            }
            RecurrentFormula::Gru => {
                let r = sigmoids::<T, S>(sums(&product(0), &x(0)));
                let z = sigmoids::<T, S>(sums(&product(1), &x(1)));
                let mut m = product(2);
                if let Some(bias) = bias {
                    m = sums(&m, &load(&bias[first..][..len]));
                }
                let mut new = x(2);
                for k in 0..LANES {
                    new[k] += r[k] * m[k];
                }
                let new = tanhs::<T, S>(new);
                for k in 0..LANES {
                    state[k] = z[k] * (last[k] - new[k]) + new[k];
                }
                kept = [r, z, new, m];
            }
        }
        if mask.is_some_and(|mask| mask[row] == T::ZERO) {
            (state, cell) = (last, last_cell);
        }
        // SAFETY: the caller's promise.
        unsafe {
            store(next, place, &state, len);
            if let Some((_, to)) = cells {
                store(to, place, &cell, len);
            }
            if let Some(saved) = saved {
                kept.iter().enumerate().for_each(|(k, kept)| store(saved, (row * 4 + k) * h + first, kept, len));
            }
        }
    }
}

/// The gradient of a step's rows.
pub(super) struct GradRows<'a, T> {
    pub(super) formula: RecurrentFormula,
    pub(super) h: usize,
    /// The cotangents of the states after the step.
    pub(super) d_states: &'a [T],
    /// Of each row, 0 where the step left its state as it was.
    pub(super) mask: Option<&'a [T]>,
    pub(super) saved: Option<&'a [T]>,
    /// States, or cells of an LSTM, before and after the step.
    pub(super) before: &'a [T],
    pub(super) after: &'a [T],
    /// What the step after this one passes on directly; then what goes on to the step before this one.
    pub(super) direct: &'a Shared<'a, T>,
    /// Likewise for the cell state.
    pub(super) cells: &'a Shared<'a, T>,
    /// The cotangents of each gate's sums, one after the other.
    pub(super) sums: Shared<'a, T>,
}

impl<T: Real> GradRows<'_, T> {
    /// Computes the units of a part, from the cotangents that the step after this one passes on through its products.
    ///
    /// # Safety
    ///
    /// No other thread reads or writes numbers of this part in what is written.
    pub(super) unsafe fn compute(&self, part: &Part, through: Sums<'_, T>, arch: pulp::Arch) {
        arch.dispatch(Backward { rows: self, part, through });
    }
}

struct Backward<'a, T> {
    rows: &'a GradRows<'a, T>,
    part: &'a Part,
    through: Sums<'a, T>,
}

impl<T: Real> WithSimd for Backward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Part { rows, units } = self.part;
        for (at, row) in rows.clone().enumerate() {
            for first in units.clone().step_by(LANES) {
                // SAFETY: the promise of `compute`.
                unsafe { self.units::<S>(at, row, first, LANES.min(units.end - first)) };
            }
        }
    }
}

impl<T: Real> Backward<'_, T> {
    /// Computes `len` units of a row, from unit `first` on.
    ///
    /// # Safety
    ///
    /// As [`GradRows::compute`].
    #[inline(always)]
    unsafe fn units<S: Simd>(&self, at: usize, row: usize, first: usize, len: usize) {
        let &GradRows { formula, h, d_states, mask, saved, before, after, direct, cells, ref sums } = self.rows;
        let place = row * h + first;
        let of = |x: &[T]| load(&x[place..][..len]);
        // SAFETY: the caller's promise, as below.
        let mut d = unsafe { load(direct.part(place, len)) };
        let (d_state, through) = (of(d_states), load(&self.through.at(at, 0, first - self.part.units.start)[..len]));
        for k in 0..LANES {
            d[k] = (d_state[k] + d[k]) + through[k];
        }
        let (mut of_sums, mut on) = ([[T::ZERO; LANES]; 4], [T::ZERO; LANES]);
        let kept = |number: usize| load(&saved.expect("the formula saves")[(row * 4 + number) * h + first..][..len]);
        match formula {
            _ if mask.is_some_and(|mask| mask[row] == T::ZERO) => on = d,
            RecurrentFormula::Tanh => {
                let y = of(after);
                for k in 0..LANES {
                    of_sums[0][k] = d[k] - d[k] * y[k] * y[k];
                }
            }
            RecurrentFormula::Relu => {
                let y = of(after);
                for k in 0..LANES {
                    of_sums[0][k] = if y[k] <= T::ZERO { T::ZERO } else { d[k] };
                }
            }
            RecurrentFormula::Lstm => {
                let ([i, f, g, o], before, y) = ([0, 1, 2, 3].map(kept), of(before), tanhs::<T, S>(of(after)));
                // SAFETY: as above.
                let mut cell = unsafe { load(cells.part(place, len)) };
                for k in 0..LANES {
                    let e = cell[k] + d[k] * o[k] * (T::ONE - y[k] * y[k]);
                    of_sums[0][k] = e * g[k] * (i[k] - i[k] * i[k]);
                    of_sums[1][k] = e * before[k] * (f[k] - f[k] * f[k]);
                    of_sums[2][k] = e * i[k] * (T::ONE - g[k] * g[k]);
                    of_sums[3][k] = d[k] * y[k] * (o[k] - o[k] * o[k]);
                    cell[k] = e * f[k];
                }
                // SAFETY: as above.
                unsafe { store(cells, place, &cell, len) };
            }
            RecurrentFormula::Gru => {
                let ([r, z, n, m], before) = ([0, 1, 2, 3].map(kept), of(before));
                for k in 0..LANES {
                    let v = (d[k] - d[k] * z[k]) * (T::ONE - n[k] * n[k]);
                    of_sums[0][k] = v * m[k] * (r[k] - r[k] * r[k]);
                    of_sums[1][k] = d[k] * (before[k] - n[k]) * (z[k] - z[k] * z[k]);
                    of_sums[2][k] = v;
                    of_sums[3][k] = v * r[k];
                    on[k] = d[k] * z[k];
                }
            }
        }
        // SAFETY: as above.
        unsafe {
            store(direct, place, &on, len);
            for (block, of_sums) in of_sums.iter().take(formula.blocks()).enumerate() {
                store(sums, (row * formula.blocks() + block) * h + first, of_sums, len);
            }
        }
    }
}
