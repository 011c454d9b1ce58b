//! The result of a training.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::run::{Overview, Position, Status};

/// The result of [`Trainer::fit`](super::Trainer::fit). `{}` prints its metrics and its [`Overview`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The metrics of the last epoch: `epoch_loss`, the measures of validations, and those that callbacks logged.
    pub metrics: BTreeMap<String, f64>,
    /// `true` if [`Trainer::stop_early`](super::Trainer::stop_early) or [`At::stop`](super::At::stop) ended it.
    pub is_stopped: bool,
    /// The time that it took, without that of earlier processes.
    pub time: Duration,
    /// The run at its end: its position, its checkpoints, how to resume it.
    pub overview: Overview,
}

impl Report {
    /// The position at the end.
    #[must_use]
    pub fn position(&self) -> Position {
        self.overview.position
    }

    /// `true` if the training was interrupted, so that it should be resumed.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.overview.status == Status::Interrupted
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (name, metric)) in self.metrics.iter().enumerate() {
            write!(f, "{}{name} {metric:.4}", if number == 0 { "" } else { "   " })?;
        }
        if !self.metrics.is_empty() {
            writeln!(f)?;
        }
        self.overview.fmt(f)
    }
}
