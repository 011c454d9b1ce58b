//! The end of a training that no longer improves.

use crate::run::Best;

/// Says when a metric has stopped improving.
///
/// ```
/// use meganeura::prelude::*;
/// use meganeura::train::EarlyStop;
///
/// let mut stop = EarlyStop::new(Best::Lowest, 2);
/// let losses = [0.9, 0.5, 0.6, 0.4, 0.4, 0.7];
/// assert_eq!(losses.map(|loss| stop.tell(loss)), [false, false, false, false, false, true]);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct EarlyStop {
    which: Best,
    patience: u64,
    best: Option<f64>,
    worse: u64,
}

impl EarlyStop {
    /// Waits for `patience` metrics in a row that are no better than the best one before them. NaN is never better.
    pub fn new(which: Best, patience: u64) -> Self {
        Self { which, patience, best: None, worse: 0 }
    }

    /// Takes the next metric; returns `true` if it is time to stop.
    pub fn tell(&mut self, metric: f64) -> bool {
        let is_better = !metric.is_nan() && self.best.is_none_or(|best| self.which.is_better(metric, best));
        if is_better {
            (self.best, self.worse) = (Some(metric), 0);
        } else {
            self.worse += 1;
        }
        self.is_over()
    }

    /// `true` if it is time to stop.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.worse >= self.patience && self.worse > 0
    }

    /// The best metric so far.
    #[must_use]
    pub fn best(&self) -> Option<f64> {
        self.best
    }
}
