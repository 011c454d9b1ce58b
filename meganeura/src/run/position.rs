//! The position of a training run, and the best of several positions.

use std::fmt;

use super::store::{Saved, State};

/// The position of a training run. Together with the seed of the shuffle, it determines the position in the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The number of steps since the beginning.
    pub step: u64,
    /// The current epoch, from 0 on.
    pub epoch: u64,
    /// The number of batches taken from that epoch.
    pub batch: usize,
}

/// `step 400 (epoch 2, batch 30)`
impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {} (epoch {}, batch {})", self.step, self.epoch, self.batch)
    }
}

/// The direction in which a metric improves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Best {
    /// Low values are better, as for a loss.
    Lowest,
    /// High values are better, as for an accuracy.
    Highest,
}

impl Best {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Lowest => "lowest",
            Self::Highest => "highest",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        [Self::Lowest, Self::Highest].into_iter().find(|best| best.name() == name)
    }

    pub(crate) fn is_better(self, value: f64, than: f64) -> bool {
        match self {
            Self::Lowest => value < than,
            Self::Highest => value > than,
        }
    }

    /// The checkpoint with the best value of a metric, among those that have one; of several, the first.
    pub(super) fn of<'a>(self, saved: &'a [Saved], metric: &str) -> Option<(usize, &'a State, f64)> {
        let mut best: Option<(usize, &State, f64)> = None;
        for (index, saved) in saved.iter().enumerate() {
            let Ok(state) = &saved.state else { continue };
            let Some(&value) = state.metrics.get(metric).filter(|value| !value.is_nan()) else { continue };
            if best.is_none_or(|(.., than)| self.is_better(value, than)) {
                best = Some((index, state, value));
            }
        }
        best
    }
}
