//! Recurrent layers recorded with other operations: for steps that are large products, and for second derivatives.

use crate::Var;
use crate::ops::recurrent::{At, Recurrent, RecurrentFormula, RecurrentGrad, RecurrentShape, WEIGHT};

/// The part of a value that belongs to place `at` of its first axis, `[N, …]`.
#[track_caller]
fn at(x: &Var, at: usize) -> Var {
    let shape = x.shape();
    x.slice(0, at..at + 1).reshape(&shape.dims()[1..])
}

/// Block `k` of `h` columns.
#[track_caller]
fn block(x: &Var, k: usize, h: usize) -> Var {
    x.slice(1, k * h..(k + 1) * h)
}

/// Values of all steps or states, stacked in the order of time.
#[track_caller]
fn stacked(mut values: Vec<Var>, reverse: bool) -> Var {
    if reverse {
        values.reverse();
    }
    Var::stack(&values.iter().collect::<Vec<_>>(), 0)
}

impl Recurrent {
    /// The results, step by step. Not in closures, which have lines of their own.
    #[track_caller]
    pub(super) fn recorded(&self, x: &[Var]) -> Vec<Var> {
        let [t, _, width] = *x[0].shape().dims() else { unreachable!("checked when recorded") };
        let (formula, h) = (self.formula, width / self.formula.gates());
        let weight = x[WEIGHT].t();
        let [bias, mask] = [self.bias(), self.mask()].map(|k| k.map(|k| &x[k]));
        let (mut state, mut cell) = (x[2].clone(), formula.is_lstm().then(|| x[3].clone()));
        let (mut states, mut cells, mut saved) = (vec![state.clone()], Vec::new(), Vec::new());
        cells.extend(cell.clone());
        for step in 0..t {
            let At { time, .. } = self.at(step, t);
            let (input, products) = (at(&x[0], time), state.matmul(&weight));
            let mut next_cell = None;
            let mut next = match formula {
                RecurrentFormula::Tanh => (products + input).tanh(),
                RecurrentFormula::Relu => (products + input).relu(),
                RecurrentFormula::Lstm => {
                    // Whole rows, so that the sum is fused with the product.
                    let sums = products + input;
                    let (i, f) = (block(&sums, 0, h).sigmoid(), block(&sums, 1, h).sigmoid());
                    let (g, o) = (block(&sums, 2, h).tanh(), block(&sums, 3, h).sigmoid());
                    let c = &f * cell.as_ref().expect("an LSTM has cells") + &i * &g;
                    let next = &o * c.tanh();
                    saved.push(Var::concat(&[&i, &f, &g, &o], 1));
                    next_cell = Some(c);
                    next
                }
                RecurrentFormula::Gru => {
                    let r = (block(&input, 0, h) + block(&products, 0, h)).sigmoid();
                    let z = (block(&input, 1, h) + block(&products, 1, h)).sigmoid();
                    let m = match bias {
                        Some(bias) => block(&products, 2, h) + bias,
                        None => block(&products, 2, h),
                    };
                    let n = (block(&input, 2, h) + &r * &m).tanh();
                    saved.push(Var::concat(&[&r, &z, &n, &m], 1));
                    &z * (&state - &n) + &n
                }
            };
            if let Some(mask) = mask {
                let is_there = at(mask, time).reshape([mask.shape()[1], 1]);
                next = is_there.where_cond(&next, &state);
                if let (Some(new), Some(old)) = (&mut next_cell, &cell) {
                    *new = is_there.where_cond(new, old);
                }
            }
            (state, cell) = (next, next_cell);
            states.push(state.clone());
            cells.extend(cell.clone());
        }
        let mut results = vec![stacked(states, self.reverse)];
        if let Some(cell) = cell {
            results.extend([cell, stacked(cells, self.reverse)]);
        }
        if formula.saves() {
            results.push(stacked(saved, self.reverse));
        }
        results
    }
}

impl RecurrentGrad {
    /// The results, step by step.
    pub(super) fn recorded(&self, x: &[Var]) -> Vec<Var> {
        let (formula, RecurrentShape { t, n, h }) = (self.forward.formula, Recurrent::shape(x[0].shape()));
        let (d_states, weight, values) = (&x[0], &x[WEIGHT], &x[2]);
        let [saved, mask] = [self.saved(), self.mask()].map(|k| k.map(|k| &x[k]));
        let (zero, one) = (d_states.constant(0.0).expand([n, h]), d_states.constant(1.0));
        let mut d_cell = self.last().map_or_else(|| zero.clone(), |k| x[k].clone());
        let first = self.forward.at(t - 1, t).after;
        let mut d = at(d_states, first);
        let mut sums = Vec::new();
        for step in (0..t).rev() {
            let At { time, before, after } = self.forward.at(step, t);
            let gates: Vec<_> = saved.map_or(Vec::new(), |x| (0..4).map(|k| block(&at(x, time), k, h)).collect());
            let (mut direct, mut through, mut to_cell) = (zero.clone(), None, d_cell.clone());
            let mut of_step = match (formula, &gates[..]) {
                (RecurrentFormula::Lstm, [i, f, g, o]) => {
                    let y = at(values, after).tanh();
                    let e = &d_cell + &d * o * (&one - y.square());
                    to_cell = &e * f;
                    let of_input = &e * g * (i - i.square());
                    let of_forget = &e * at(values, before) * (f - f.square());
                    let of_candidate = &e * i * (&one - g.square());
                    Var::concat(&[&of_input, &of_forget, &of_candidate, &(&d * y * (o - o.square()))], 1)
                }
                (RecurrentFormula::Gru, [r, z, candidate, m]) => {
                    let v = (&d - &d * z) * (&one - candidate.square());
                    let of_reset = &v * m * (r - r.square());
                    let of_update = &d * (at(values, before) - candidate) * (z - z.square());
                    direct = &d * z;
                    Var::concat(&[&of_reset, &of_update, &v, &(&v * r)], 1)
                }
                (RecurrentFormula::Relu, _) => at(values, after).le(d.constant(0.0)).where_cond(&zero, &d),
                _ => &d - &d * at(values, after).square(),
            };
            if let Some(mask) = mask {
                let is_there = at(mask, time).reshape([n, 1]);
                of_step = is_there.where_cond(&of_step, &d.constant(0.0));
                direct = is_there.where_cond(&direct, &d);
                to_cell = is_there.where_cond(&to_cell, &d_cell);
            }
            if formula == RecurrentFormula::Gru {
                let gates = Var::concat(&[&of_step.slice(1, 0..2 * h), &block(&of_step, 3, h)], 1);
                through = Some(gates.matmul(weight));
            }
            let through = through.unwrap_or_else(|| of_step.matmul(weight));
            sums.push(of_step);
            d = at(d_states, before) + direct + through;
            d_cell = to_cell;
        }
        let mut results = vec![stacked(sums, !self.forward.reverse), d];
        if formula.is_lstm() {
            results.push(d_cell);
        }
        results
    }
}
