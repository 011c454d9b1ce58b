//! A line search for a step length that satisfies the strong Wolfe conditions.
//!
//! The loss along a direction is `φ(t)`. The conditions are `φ(t) ≤ φ(0) + c₁·t·φ′(0)` (it falls enough) and
//! `|φ′(t)| ≤ c₂·|φ′(0)|` (it is nearly flat). The search first finds two lengths with such a length between them, then
//! narrows the interval; both by cubic interpolation.

use crate::Result;

/// The share of the decrease promised by the slope that is enough, c₁.
const FALL: f64 = 1e-4;

/// The share of the slope that may remain, c₂.
const FLAT: f64 = 0.9;

/// The maximum number of evaluations after the first.
const MOST: usize = 25;

/// A length that was tried.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    pub(super) length: f64,
    /// The derivative with respect to the length.
    pub(super) slope: f64,
    pub(super) loss: f64,
    pub(super) gradient: Vec<f64>,
}

pub(super) struct Search {
    /// The largest change of a parameter over an interval that is no longer narrowed.
    pub(super) tolerance: f64,
    /// The largest element of the direction.
    pub(super) largest: f64,
}

impl Search {
    /// The end of the search, from length 0 and a first length to try.
    pub(super) fn run(&self, start: Trial, first: f64, at: &mut impl FnMut(f64) -> Result<Trial>) -> Result<Trial> {
        let mut before = start.clone();
        let mut trial = at(first)?;
        let mut tries = 0;
        while tries < MOST {
            let is_higher = tries > 1 && trial.loss >= before.loss;
            if !falls_enough(&start, &trial) || is_higher {
                return self.narrow(&start, [before, trial], tries, at);
            }
            if is_flat(&start, &trial) {
                return Ok(trial);
            }
            if trial.slope >= 0.0 {
                return self.narrow(&start, [before, trial], tries, at);
            }
            let (least, most) = (trial.length + 0.01 * (trial.length - before.length), trial.length * 10.0);
            let next = lowest(&before, &trial, least, most);
            before = trial;
            trial = at(next)?;
            tries += 1;
        }
        Ok(if trial.loss < start.loss { trial } else { start })
    }

    /// Narrows the interval between two lengths until one of its ends satisfies the conditions.
    fn narrow(
        &self,
        start: &Trial,
        ends: [Trial; 2],
        mut tries: usize,
        at: &mut impl FnMut(f64) -> Result<Trial>,
    ) -> Result<Trial> {
        let [first, second] = ends;
        let is_second_lower = second.loss < first.loss;
        let (mut low, mut high) = if is_second_lower { (second, first) } else { (first, second) };
        let mut was_slow = false;
        while tries < MOST {
            let (least, most) = (low.length.min(high.length), low.length.max(high.length));
            if (most - least) * self.largest < self.tolerance {
                break;
            }
            let (left, right) = if low.length <= high.length { (&low, &high) } else { (&high, &low) };
            let mut length = lowest(left, right, least, most);
            // Trying an end repeatedly would make no progress: the second time, the length stays a tenth of the
            // interval away from it.
            let tenth = 0.1 * (most - least);
            let is_slow = (most - length).min(length - least) < tenth;
            if is_slow && (was_slow || length >= most || length <= least) {
                length = if most - length < length - least { most - tenth } else { least + tenth };
                was_slow = false;
            } else {
                was_slow = is_slow;
            }
            let trial = at(length)?;
            tries += 1;
            if !falls_enough(start, &trial) || trial.loss >= low.loss {
                high = trial;
                if high.loss < low.loss {
                    std::mem::swap(&mut low, &mut high);
                }
            } else if is_flat(start, &trial) {
                return Ok(trial);
            } else {
                if trial.slope * (high.length - low.length) >= 0.0 {
                    high = low;
                }
                low = trial;
            }
        }
        Ok(low)
    }
}

/// False where the loss is NaN.
fn falls_enough(start: &Trial, trial: &Trial) -> bool {
    trial.loss <= start.loss + FALL * trial.length * start.slope
}

fn is_flat(start: &Trial, trial: &Trial) -> bool {
    trial.slope.abs() <= -FLAT * start.slope
}

/// The minimum of the cubic polynomial through the losses and slopes of two trials, or the midpoint if there is none.
fn lowest(a: &Trial, b: &Trial, least: f64, most: f64) -> f64 {
    let (a, b) = if a.length <= b.length { (a, b) } else { (b, a) };
    let mean = a.slope + b.slope - 3.0 * (a.loss - b.loss) / (a.length - b.length);
    let square = mean * mean - a.slope * b.slope;
    let root = square.sqrt();
    let length = b.length - (b.length - a.length) * ((b.slope + root - mean) / (b.slope - a.slope + 2.0 * root));
    // NaN where the square is negative, or an end is not finite.
    if length.is_nan() { f64::midpoint(least, most) } else { length.max(least).min(most) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of a search along a function, and the number of evaluations.
    fn found(first: f64, f: impl Fn(f64) -> (f64, f64)) -> (Trial, Trial, usize) {
        let trial = |length: f64| Trial { length, slope: f(length).1, loss: f(length).0, gradient: Vec::new() };
        let mut count = 0;
        let mut at = |length| {
            count += 1;
            Ok(trial(length))
        };
        let search = Search { tolerance: 1e-9, largest: 1.0 };
        let found = search.run(trial(0.0), first, &mut at).unwrap();
        (trial(0.0), found, count)
    }

    #[test]
    fn both_conditions_are_fulfilled() {
        let functions: [fn(f64) -> (f64, f64); 3] = [
            |t| ((t - 3.0).powi(2), 2.0 * (t - 3.0)),
            |t| (-t / (t * t + 2.0), (t * t - 2.0) / (t * t + 2.0).powi(2)),
            |t| ((0.1 * t).cosh() - t, 0.1 * (0.1 * t).sinh() - 1.0),
        ];
        for (k, f) in functions.into_iter().enumerate() {
            for first in [1e-3, 0.1, 1.0, 10.0] {
                let (start, found, count) = found(first, f);
                let will_do = falls_enough(&start, &found) && is_flat(&start, &found);
                assert!(will_do && count <= MOST + 1, "{k} from {first}: {found:?} after {count}");
            }
        }
    }

    #[test]
    fn a_cubic_has_its_lowest_point_where_it_should() {
        // (t − 1)²·(t + 2), lowest at 1.
        let trial = |t: f64| {
            let loss = (t - 1.0).powi(2) * (t + 2.0);
            Trial { length: t, slope: 3.0 * t * t - 3.0, loss, gradient: Vec::new() }
        };
        for (a, b) in [(0.0, 3.0), (3.0, 0.0), (0.5, 0.75)] {
            assert!((lowest(&trial(a), &trial(b), -10.0, 10.0) - 1.0).abs() < 1e-12, "{a} {b}");
        }
        assert_eq!(lowest(&trial(0.0), &trial(3.0), 1.5, 3.0), 1.5);
    }

    #[test]
    fn non_finite_losses_shorten_the_step() {
        for beyond in [f64::NAN, f64::INFINITY] {
            let f = move |t: f64| if t > 0.5 { (beyond, beyond) } else { ((t - 0.3).powi(2), 2.0 * (t - 0.3)) };
            let (start, found, _) = found(1.0, f);
            assert!(found.length <= 0.5 && falls_enough(&start, &found), "{found:?}");
        }
    }
}
