//! The native kernels of recurrent layers: for each step a product, then the formula for parts of its results.

use super::native_products::{Factor, Products};
use super::native_units::{GradRows, Rows};
use super::{At, Recurrent, RecurrentGrad, RecurrentShape, WEIGHT};
use crate::kernel::native::{OutView, Real, Scratch, Shared, View};

/// Two neighbouring states of all steps: that at `from`, and that at `to`.
fn neighbours<T>(states: &mut [T], from: usize, to: usize, len: usize) -> (&[T], &mut [T]) {
    let (low, high) = states.split_at_mut(from.max(to) * len);
    let (low, high) = (&mut low[from.min(to) * len..], &mut high[..len]);
    if from < to { (low, high) } else { (high, low) }
}

pub(super) fn forward<T: Real>(op: &Recurrent, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
    let formula = op.formula;
    let mut results: Vec<&mut [T]> = y.iter_mut().map(OutView::floats).collect();
    let mut saved = op.saved().map(|k| results.remove(k));
    let mut cells = op.cells().map(|k| results.remove(k));
    let width = x[0].dims()[2];
    let [t, n, _] = *x[0].dims() else { unreachable!("three axes") };
    let h = width / formula.gates();
    let (input, state) = (x[0].floats(), n * h);
    let bias = op.bias().map(|k| x[k].floats());
    let mask = op.mask().map(|k| x[k].floats());
    let of = (Factor::States, formula);
    let Some(mut products) = Products::new(of, [t, n, h], x[WEIGHT].floats(), scratch) else { return };
    let first = op.at(0, t).before;
    results[0][first * state..][..state].copy_from_slice(&x[2].floats()[..state]);
    if let Some(cells) = &mut cells {
        cells[first * state..][..state].copy_from_slice(&x[3].floats()[..state]);
    }
    let is_saved = op.saved().is_some_and(|k| scratch.is_read(k));
    let arch = pulp::Arch::new();
    for step in 0..t {
        let At { time, before, after } = op.at(step, t);
        let (last, next) = neighbours(results[0], before, after, state);
        let saved = saved.as_mut().filter(|_| is_saved);
        let rows = Rows {
            formula,
            h,
            input: &input[time * n * width..][..n * width],
            bias,
            mask: mask.map(|mask| &mask[time * n..][..n]),
            last: &last[..state],
            next: Shared::new(&mut next[..state]),
            cells: cells.as_mut().map(|cells| {
                let (last, next) = neighbours(cells, before, after, state);
                (&last[..state], Shared::new(&mut next[..state]))
            }),
            saved: saved.map(|saved| Shared::new(&mut saved[time * 4 * state..][..4 * state])),
        };
        // SAFETY: each part has rows and units of its own.
        products.step(Some(rows.last), &|part, sums| unsafe { rows.compute(part, sums, arch) });
    }
    if let Some(cells) = cells {
        let after = op.at(t - 1, t).after;
        results[1].copy_from_slice(&cells[after * state..][..state]);
    }
}

pub(super) fn backward<T: Real>(op: &RecurrentGrad, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
    let formula = op.forward.formula;
    let RecurrentShape { t, n, h } = Recurrent::shape(x[0].layout().shape());
    let (d_states, values, state) = (x[0].floats(), x[2].floats(), n * h);
    let saved = op.saved().map(|k| x[k].floats());
    let mask = op.mask().map(|k| x[k].floats());
    let mut results: Vec<&mut [T]> = y.iter_mut().map(OutView::floats).collect();
    let (sums, initial) = results.split_first_mut().expect("there are cotangents of sums");
    let width = n * formula.blocks() * h;
    let of = (Factor::Cotangents, formula);
    let Some(mut products) = Products::new(of, [t, n, h], x[WEIGHT].floats(), scratch) else { return };
    let [Some(mut direct), Some(mut cells)] = [(); 2].map(|()| scratch.zeros::<T>(state)) else { return };
    if let Some(k) = op.last() {
        cells.copy_from_slice(&x[k].floats()[..state]);
    }
    let arch = pulp::Arch::new();
    // The cotangents of the sums of the step after this one.
    let mut of_next: Option<usize> = None;
    for step in (0..t).rev() {
        let At { time, before, after } = op.forward.at(step, t);
        let (next, own) = match of_next {
            Some(next) => {
                let (next, own) = neighbours(sums, next, time, width);
                (Some(&next[..width]), &mut own[..width])
            }
            None => (None, &mut sums[time * width..][..width]),
        };
        let rows = GradRows {
            formula,
            h,
            d_states: &d_states[after * state..][..state],
            mask: mask.map(|mask| &mask[time * n..][..n]),
            saved: saved.map(|saved| &saved[time * 4 * state..][..4 * state]),
            before: &values[before * state..][..state],
            after: &values[after * state..][..state],
            direct: &Shared::new(&mut direct),
            cells: &Shared::new(&mut cells),
            sums: Shared::new(own),
        };
        // SAFETY: each part has rows and units of its own.
        products.step(next, &|part, through| unsafe { rows.compute(part, through, arch) });
        of_next = Some(time);
    }
    let last = of_next.map(|time| &sums[time * width..][..width]);
    let first = &d_states[op.forward.at(0, t).before * state..][..state];
    let initial_state = Shared::new(&mut *initial[0]);
    products.step(last, &|part, through| {
        for (at, row) in part.rows.clone().enumerate() {
            let (place, len) = (row * h + part.units.start, part.units.len());
            // SAFETY: each part has rows and units of its own.
            let to = unsafe { initial_state.part(place, len) };
            let numbers = first[place..].iter().zip(&direct[place..]).zip(through.at(at, 0, 0));
            to.iter_mut().zip(numbers).for_each(|(to, ((&d, &direct), &through))| *to = (d + direct) + through);
        }
    });
    if formula.is_lstm() {
        initial[1].copy_from_slice(&cells);
    }
}
