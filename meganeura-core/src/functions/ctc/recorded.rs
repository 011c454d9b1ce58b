//! The CTC loss, recorded with differentiable operations, so that its gradient can be differentiated.

use crate::ops::ctc::{Ctc, CtcShape, LEAST};
use crate::ops::gather::Gather;
use crate::tape::Var;

impl Ctc {
    /// The loss of each example up to a constant, `[N]`, by one elementwise step for each step of the input; `None` if
    /// there are no steps.
    ///
    /// The constant comes from the scales of the rows: `ln α` is kept relative to the largest number of a row, which is
    /// detached. Derivatives of every order are those of the loss, since the two differ only by the peaks, which are
    /// detached.
    pub(crate) fn recorded(&self, x: &[Var]) -> Option<Var> {
        let [x, targets, steps, lengths] = x else { unreachable!("four operands") };
        let g = CtcShape::of(&[x, targets, steps, lengths].map(Var::ty));
        if g.steps == 0 || g.examples == 0 {
            return None;
        }
        let states = [g.examples, g.states()];
        let column = |x: &Var| x.to_float().reshape([g.examples, 1]);
        let (steps, last) = (column(steps), column(lengths).scale(2.0));
        let place = x.tape().iota(states, 1);
        let (zero, least) = (x.constant(0.0), x.constant(LEAST));
        let is_state = place.le(&last);

        let classes = self.classes(targets, g);
        let skips = match g.labels {
            0 => zero.expand(states),
            _ => classes.slice(1, 2..g.states()).ne(classes.slice(1, 0..g.states() - 2)).pad(&[(0, 0), (2, 0)], 0.0),
        };
        // Targets may be padded with any class.
        let index = is_state.where_cond(&classes, &x.constant(f64::from(self.blank))).to_index();
        let index = index.reshape([1, g.examples, g.states()]).expand([g.steps, g.examples, g.states()]);
        let emissions = x.record(Gather { axis: 2, permutation: false }, &[x, &index]).maximum(&least);

        let mut row = zero.expand(states);
        for t in 0..g.steps {
            let reached = match t {
                0 => place.lt(x.constant(2.0)).where_cond(&zero, &least),
                _ => reached(&row, &skips, &least),
            };
            let next = is_state.where_cond(&(reached + emissions.slice(0, t..t + 1).reshape(states)), &least);
            row = x.constant(t as f64).lt(&steps).where_cond(&next, &row);
        }
        let is_end = place.eq(&last) + place.eq(&(last - x.constant(1.0)));
        let losses = -log_sum(&is_end.where_cond(&row, &least)).reshape([g.examples]);
        // An example without a path has no gradient, or that of the kernel, which is NaN.
        Some(losses.gt(x.constant(-0.5 * LEAST)).where_cond(&zero, &losses))
    }

    /// The class of each state, `[N, 2S + 1]`, as floats: a blank before, between and after the labels.
    fn classes(&self, targets: &Var, g: CtcShape) -> Var {
        let blank = targets.constant(f64::from(self.blank));
        let last = blank.expand([g.examples, 1]);
        if g.labels == 0 {
            return last;
        }
        let pairs = [g.examples, g.labels, 1];
        let pairs = Var::concat(&[&blank.expand(pairs), &targets.to_float().reshape(pairs)], 2);
        Var::concat(&[&pairs.reshape([g.examples, 2 * g.labels]), &last], 1)
    }
}

/// `ln Σ` of the paths that reach each state of the next row, relative to the largest number of this one.
fn reached(row: &Var, skips: &Var, least: &Var) -> Var {
    let states = row.shape()[1];
    let peak = row.max_keep(&[1]).detach();
    let is_possible = peak.gt(least.scale(0.5));
    let stay = row - is_possible.where_cond(&peak, &peak.constant(0.0));
    if states == 1 {
        return stay;
    }
    let back = |by: usize| stay.slice(1, 0..states - by).pad(&[(0, 0), (by, 0)], LEAST);
    let (next, skip) = (back(1), skips.where_cond(&back(2), least));
    let peak = stay.maximum(&next).maximum(&skip).detach();
    let [a, b, c] = [&stay, &next, &skip].map(|x| (x - &peak).exp());
    (a + b + c).log() + peak
}

/// `ln Σ eˣ` over the last of two axes.
fn log_sum(x: &Var) -> Var {
    let peak = x.max_keep(&[1]).detach();
    (x - &peak).exp().sum_keep(&[1]).log() + peak
}
