//! The native recursions of CTC.

use pulp::Scalar;

use super::{CtcShape, LEAST};
use crate::kernel::native::{Real, View};

/// One example of a batch.
pub(super) struct Example<'a, T> {
    x: &'a [T],
    targets: &'a [u32],
    g: CtcShape,
    blank: usize,
    n: usize,
    steps: usize,
    labels: usize,
    /// `true` if a length exceeds its bound; then all results are NaN.
    is_broken: bool,
}

fn is_impossible<T: Real>(x: T) -> bool {
    x < T::from_f64(0.5 * LEAST)
}

/// The larger one; NaN if either is.
fn larger<T: Real>(a: T, b: T) -> T {
    if b.is_nan() || b > a { b } else { a }
}

/// `ln Σ eˣ`
fn log_sum<T: Real>(x: [T; 3]) -> T {
    let peak = x.into_iter().fold(T::NEG_INFINITY, larger);
    if is_impossible(peak) {
        return T::from_f64(LEAST);
    }
    peak + x.into_iter().map(|x| (x - peak).exp::<Scalar>()).sum::<T>().ln()
}

impl<'a, T: Real> Example<'a, T> {
    pub(super) fn new(x: &[View<'a, T>], g: CtcShape, blank: u32, n: usize) -> Self {
        let targets = &x[1].contiguous_indices()[n * g.labels..][..g.labels];
        let [steps, labels] = [2, 3].map(|k| x[k].contiguous_indices()[n] as usize);
        Self {
            x: x[0].floats(),
            targets,
            g,
            blank: blank as usize,
            n,
            steps: steps.min(g.steps),
            labels: labels.min(g.labels),
            is_broken: steps > g.steps || labels > g.labels,
        }
    }

    fn states(&self) -> usize {
        2 * self.labels + 1
    }

    fn class(&self, state: usize) -> usize {
        if state.is_multiple_of(2) { self.blank } else { self.targets[state / 2] as usize }
    }

    /// The logarithm of the probability of a state's class.
    fn emission(&self, t: usize, state: usize) -> T {
        let (class, row) = (self.class(state), (t * self.g.examples + self.n) * self.g.classes);
        if self.is_broken || class >= self.g.classes {
            return T::NAN;
        }
        larger(self.x[row + class], T::from_f64(LEAST))
    }

    /// Writes all rows of `ln α`, or of `ln β` from the end. Each row is computed from the previous one, relative to
    /// that row's largest number. Returns the logarithm of the probability of all paths.
    pub(super) fn recursion(&self, rows: &mut [T], from_end: bool) -> T {
        let (states, width, least) = (self.states(), self.g.states(), T::from_f64(LEAST));
        rows.fill(least);
        // Counted from the start of the paths.
        let place = |q: usize| if from_end { states - 1 - q } else { q };
        let row_of = |step: usize| if from_end { self.steps - 1 - step } else { step } * width;
        let mut scale = T::ZERO;
        for step in 0..self.steps {
            let t = row_of(step) / width;
            let mut shift = T::ZERO;
            if step > 0 {
                let before = &rows[row_of(step - 1)..][..states];
                let peak = before.iter().copied().fold(T::NEG_INFINITY, larger);
                shift = if is_impossible(peak) { T::ZERO } else { peak };
                scale += shift;
            }
            for q in 0..states {
                let before = |back: usize| match q.checked_sub(back) {
                    Some(q) if step > 0 => rows[row_of(step - 1) + place(q)] - shift,
                    _ => least,
                };
                let skips = q >= 2 && q % 2 == 1 && self.class(place(q)) != self.class(place(q - 2));
                let reached = match step {
                    0 if q < 2 => T::ZERO,
                    0 => least,
                    _ => log_sum([before(0), before(1), if skips { before(2) } else { least }]),
                };
                let value = reached + self.emission(t, place(q));
                rows[row_of(step) + place(q)] = if is_impossible(value) { least } else { value };
            }
        }
        if self.steps == 0 {
            return match self.labels {
                _ if self.is_broken => T::NAN,
                0 => T::ZERO,
                _ => T::NEG_INFINITY,
            };
        }
        let last = &rows[row_of(self.steps - 1)..];
        let end = |back: usize| if back < states { last[place(states - 1 - back)] } else { least };
        let total = log_sum([end(0), end(1), least]);
        if is_impossible(total) { T::NEG_INFINITY } else { scale + total }
    }

    /// Turns `ln β` into the share of all paths in each state. The shares add up to 1 at each step.
    pub(super) fn shares(&self, alphas: &[T], betas: &mut [T], zero_infinity: bool) {
        let width = self.g.states();
        let rows = alphas.chunks_exact(width).zip(betas.chunks_exact_mut(width)).enumerate();
        for (t, (alphas, betas)) in rows.take(self.steps) {
            for (state, (beta, &alpha)) in betas.iter_mut().zip(alphas).enumerate().take(self.states()) {
                *beta += alpha - self.emission(t, state);
            }
            let shares = &mut betas[..self.states()];
            let peak = shares.iter().copied().fold(T::NEG_INFINITY, larger);
            if is_impossible(peak) {
                shares.fill(if zero_infinity { T::ZERO } else { T::NAN });
                continue;
            }
            shares.iter_mut().for_each(|share| *share = (*share - peak).exp::<Scalar>());
            let sum: T = shares.iter().copied().sum();
            shares.iter_mut().for_each(|share| *share = *share / sum);
        }
    }

    /// A row of the gradient.
    pub(super) fn gradient(&self, t: usize, shares: &[T], dloss: T, dx: &mut [T]) {
        dx.fill(if self.is_broken { T::NAN } else { T::ZERO });
        if t >= self.steps {
            return;
        }
        // NaN if there is no path, or if a path has a NaN: then all are.
        if shares[0].is_nan() {
            return dx.fill(T::NAN);
        }
        for (state, &share) in shares[..self.states()].iter().enumerate() {
            match dx.get_mut(self.class(state)) {
                Some(dx) => *dx = *dx - dloss * share,
                // The label is past the classes.
                None => return dx.fill(T::NAN),
            }
        }
    }
}
