//! Recurrent layers: the method, and the gradient rules.

mod recorded;

use super::Vjp;
use crate::ops::recurrent::{Recurrent, RecurrentFormula, RecurrentGrad, RecurrentShape};
use crate::{Result, Var};

/// The most multiply-adds of a step's product for which all steps are one operation. Larger ones keep a GPU busy on
/// their own, and are faster in the tiles of a product.
const MOST: usize = 1 << 29;

/// The options of [`Var::recurrent`].
#[derive(Clone, Copy, Debug)]
pub struct RecurrentOptions<'a> {
    /// The formula of a step.
    pub formula: RecurrentFormula,
    /// Goes from the last step to the first.
    pub reverse: bool,
    /// The bias within the formula, `[H]`.
    pub bias: Option<&'a Var>,
    /// The steps that exist: where it is 0, a step leaves the state as it is, `[T, N]`.
    pub mask: Option<&'a Var>,
}

impl Var {
    /// The states of a recurrent layer after each step, `[T, N, H]`, and its final state; see [`Recurrent`].
    ///
    /// `self` holds the input's products with their bias, `[T, N, G·H]`; the weight is `[G·H, H]`, and the parts of the
    /// initial state are `[N, H]`.
    #[doc(hidden)]
    #[must_use]
    #[track_caller]
    pub fn recurrent(&self, weight: &Self, state: &[Self], options: RecurrentOptions<'_>) -> (Self, Vec<Self>) {
        let RecurrentOptions { formula, reverse, bias, mask } = options;
        let op = Recurrent { formula, reverse, biased: bias.is_some(), masked: mask.is_some() };
        let mut x = vec![self.clone(), weight.clone()];
        x.extend_from_slice(state);
        x.extend(bias.cloned());
        x.extend(mask.cloned());
        let is_large = match (self.shape().dims(), weight.shape().dims()) {
            ([_, n, _], [rows, h]) => n.saturating_mul(*rows).saturating_mul(*h) > MOST,
            _ => false,
        };
        let results =
            if is_large { op.recorded(&x) } else { self.record_all(op.clone(), &x.iter().collect::<Vec<_>>()) };
        let states = &results[0];
        if states.error().is_some() {
            return (states.clone(), vec![states.clone(); state.len()]);
        }
        let steps = states.shape()[0] - 1;
        let (last, range) = if reverse { (0, 0..steps) } else { (steps, 1..steps + 1) };
        let h = states.slice(0, last..last + 1).reshape(state[0].shape());
        let c = op.formula.is_lstm().then(|| results[1].clone());
        (states.slice(0, range), std::iter::once(h).chain(c).collect())
    }
}

/// The cotangent of a value; zeros if it has none.
fn or_zeros(dy: Option<&Var>, y: &Var) -> Var {
    dy.cloned().unwrap_or_else(|| y.constant(0.0).expand(y.shape()))
}

/// The cotangents of `x`, from those of the values that `recorded` computes from `x` again.
fn pulled_back(x: &[Var], dy: &[Option<Var>], recorded: impl FnOnce() -> Vec<Var>) -> Result<Vec<Option<Var>>> {
    let tape = x[0].tape();
    let first = tape.with_graph(|graph| graph.nodes().len());
    let again = recorded();
    let seeds: Vec<_> = again.iter().zip(dy).filter_map(|(y, dy)| Some((y, dy.as_ref()?))).collect();
    // At most six operands; a number that is left over asks for one of them again.
    let of: [&Var; 6] = std::array::from_fn(|k| &x[k.min(x.len() - 1)]);
    let cotangents = tape.pull_back(first, &seeds, of)?;
    Ok(cotangents.into_iter().take(x.len()).collect())
}

impl Vjp for Recurrent {
    fn vjp(&self, x: &[Var], y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let mut dx = vec![None; x.len()];
        if dy.iter().all(Option::is_none) {
            return Ok(dx);
        }
        // What was saved for the gradient has cotangents of its own in second derivatives.
        let given = |k: Option<usize>| k.is_some_and(|k| dy[k].is_some());
        if given(self.cells()) || given(self.saved()) {
            dx = pulled_back(x, dy, || self.recorded(x))?;
            if let Some(k) = self.mask() {
                dx[k] = None;
            }
            return Ok(dx);
        }
        let RecurrentShape { t, n, h } = Self::shape(y[0].shape());
        let last = if self.formula.is_lstm() { dy[1].as_ref() } else { None };
        let mut operands = vec![or_zeros(dy[0].as_ref(), &y[0]), x[1].clone(), y[self.cells().unwrap_or(0)].clone()];
        operands.extend(self.saved().map(|k| y[k].clone()));
        operands.extend(self.mask().map(|k| x[k].clone()));
        operands.extend(last.cloned());
        let grad = RecurrentGrad { forward: self.clone(), of_last: last.is_some() };
        let results = y[0].record_all(grad, &operands.iter().collect::<Vec<_>>());
        let (rows, blocks) = (t * n, self.formula.blocks());
        let sums = results[0].reshape([rows, blocks * h]);
        // The gradient of the weight is one product over all steps.
        let before = if self.reverse { 1..t + 1 } else { 0..t };
        let before = y[0].slice(0, before).reshape([rows, h]);
        let of = |first: usize, end: usize| sums.slice(1, first * h..end * h).t().matmul(&before);
        if self.formula == RecurrentFormula::Gru {
            dx[0] = Some(results[0].slice(2, 0..3 * h));
            dx[1] = Some(Var::concat(&[&of(0, 2), &of(3, 4)], 0));
            if let Some(k) = self.bias() {
                dx[k] = Some(sums.slice(1, 3 * h..4 * h).sum_over(&[0]));
            }
        } else {
            dx[0] = Some(results[0].clone());
            dx[1] = Some(of(0, blocks));
        }
        dx[2] = Some(results[1].clone());
        if self.formula.is_lstm() {
            dx[3] = Some(results[2].clone());
        }
        Ok(dx)
    }
}

impl Vjp for RecurrentGrad {
    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        if dy.iter().all(Option::is_none) {
            return Ok(vec![None; x.len()]);
        }
        let mut dx = pulled_back(x, dy, || self.recorded(x))?;
        if let Some(k) = self.mask() {
            dx[k] = None;
        }
        Ok(dx)
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::functions::case::{Array, Case, Special, Tested};

    const FORMULAS: [RecurrentFormula; 4] =
        [RecurrentFormula::Tanh, RecurrentFormula::Relu, RecurrentFormula::Lstm, RecurrentFormula::Gru];

    /// The states and, of an LSTM, the last cell state, by loops over the formula.
    fn naive(op: &Recurrent, a: &[Array]) -> Vec<Array> {
        let [t, n, width] = *a[0].shape.dims() else { unreachable!("three axes") };
        let h = width / op.formula.gates();
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let (mut state, mut cell) = (a[2].data.clone(), a[3 % a.len()].data.clone());
        cell.resize(n * h, 0.0);
        let (mut states, mut cells, mut saved) = (vec![state.clone()], vec![cell.clone()], Vec::new());
        for step in 0..t {
            let time = op.at(step, t).time;
            let (last, mut kept) = (state.clone(), vec![0.0; n * 4 * h]);
            for (row, unit) in (0..n).flat_map(|row| (0..h).map(move |unit| (row, unit))) {
                let x = |gate: usize| a[0].data[((time * n + row) * op.formula.gates() + gate) * h + unit];
                let product = |gate: usize| -> f64 {
                    (0..h).map(|k| last[row * h + k] * a[1].data[(gate * h + unit) * h + k]).sum()
                };
                let sum = |gate: usize| x(gate) + product(gate);
                let own = row * h + unit;
                let numbers = match op.formula {
                    RecurrentFormula::Tanh | RecurrentFormula::Relu => {
                        let is_tanh = op.formula == RecurrentFormula::Tanh;
                        state[own] = if is_tanh { sum(0).tanh() } else { sum(0).max(0.0) };
                        [0.0; 4]
                    }
                    RecurrentFormula::Lstm => {
                        let gates = [sigmoid(sum(0)), sigmoid(sum(1)), sum(2).tanh(), sigmoid(sum(3))];
                        cell[own] = gates[1] * cell[own] + gates[0] * gates[2];
                        state[own] = gates[3] * cell[own].tanh();
                        gates
                    }
                    RecurrentFormula::Gru => {
                        let m = product(2) + op.bias().map_or(0.0, |k| a[k].data[unit]);
                        let (r, z) = (sigmoid(sum(0)), sigmoid(sum(1)));
                        let new = (x(2) + r * m).tanh();
                        state[own] = z * last[own] + (1.0 - z) * new;
                        [r, z, new, m]
                    }
                };
                numbers.iter().enumerate().for_each(|(k, number)| kept[(row * 4 + k) * h + unit] = *number);
            }
            states.push(state.clone());
            cells.push(cell.clone());
            saved.push(kept);
        }
        let stacked = |mut values: Vec<Vec<f64>>, width: usize| {
            if op.reverse {
                values.reverse();
            }
            Array { shape: [values.len(), n, width].into(), data: values.concat() }
        };
        let mut results = vec![stacked(states, h)];
        if op.formula.is_lstm() {
            results.extend([Array { shape: [n, h].into(), data: cell }, stacked(cells, h)]);
        }
        if op.formula.saves() {
            results.push(stacked(saved, 4 * h));
        }
        results
    }

    fn case(op: &Recurrent, [t, n, h]: [usize; 3]) -> Case {
        let gates = op.formula.gates();
        let mut case = Case::new(op.clone()).input(&[t, n, gates * h]).input(&[gates * h, h]).input(&[n, h]);
        if op.formula.is_lstm() {
            case = case.input(&[n, h]);
        }
        if op.biased {
            case = case.input(&[h]);
        }
        let (op, scale) = (op.clone(), 1.0 / (h as f64).sqrt());
        // Errors of a step's sums grow with those of later steps; weights of size 1/√H keep them from growing.
        case.scale(scale.max(0.3)).tolerance(1e-5).naive(move |a| naive(&op, a))
    }

    /// All results that have gradients, through the public way, with a mask where `x[0] > 0` in the first unit.
    fn recorded(formula: RecurrentFormula, reverse: bool, [t, n, h]: [usize; 3]) -> Case {
        let gates = formula.gates();
        let shapes: [&[usize]; 5] = [&[t, n, gates * h], &[gates * h, h], &[n, h], &[n, h], &[h]];
        let name = format!("recurrent {} {reverse}", format!("{formula:?}").to_lowercase());
        Case::recorded(&name, &shapes, move |x| {
            let mask = x[0].slice(2, 0..1).gt(x[0].constant(0.0)).reshape([t, n]).detach();
            let state = &x[2..if formula.is_lstm() { 4 } else { 3 }];
            let bias = (formula == RecurrentFormula::Gru).then(|| &x[4]);
            let options = RecurrentOptions { formula, reverse, bias, mask: Some(&mask) };
            let (y, last) = x[0].recurrent(&x[1], state, options);
            let last = last.iter().map(Var::square).reduce(|sum, part| sum + part).expect("a state has parts");
            y.square().sum_over(&[0]) + last + x[3].scale(0.1) + &x[4]
        })
        .scale(0.5)
        .tolerance(1e-5)
    }

    impl Tested for Recurrent {
        fn special() -> &'static [Special] {
            &[Special::Statistics, Special::AtBaseline]
        }

        fn cases() -> Vec<Case> {
            let mut cases = Vec::new();
            for formula in FORMULAS {
                let op = |reverse: bool| {
                    let biased = formula == RecurrentFormula::Gru && !reverse;
                    Self { formula, reverse, biased, masked: false }
                };
                // One of everything; widths of no multiple of four, of four and of eight; more rows and units than a
                // tile has; steps for which weights are put in order.
                for shape in [
                    [1, 1, 1],
                    [3, 2, 3],
                    [2, 33, 20],
                    [4, 5, 8],
                    [2, 3, 60],
                    [2, 17, 64],
                    [2, 2, 129],
                    [4, 38, 37],
                    [5, 1, 70],
                ] {
                    cases.push(case(&op(false), shape));
                }
                cases.push(case(&op(true), [3, 3, 5]));
                cases.extend([false, true].map(|reverse| recorded(formula, reverse, [4, 3, 5])));
                cases.push(recorded(formula, false, [3, 2, 8]));
            }
            cases
        }
    }

    impl Tested for RecurrentGrad {
        fn special() -> &'static [Special] {
            &[Special::WithoutOnnx]
        }

        fn cases() -> Vec<Case> {
            // Tested on every device through the gradients of `recurrent`'s cases.
            Vec::new()
        }
    }
}
