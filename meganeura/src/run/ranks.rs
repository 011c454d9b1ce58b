//! A run of several ranks: what one of them writes, and what all decide together.

use super::Run;
use super::journal::Journal;
#[cfg(feature = "tensorboard")]
use super::journal::What;
use super::lock::Lock;
use super::metrics::Metrics;
use super::store::Saved;
use crate::Result;

/// The files of a run's folder, by the one process that writes them.
pub(super) struct Written {
    pub(super) metrics: Metrics,
    pub(super) journal: Journal,
    pub(super) saved: Vec<Saved>,
    pub(super) lock: Lock,
}

impl Written {
    /// Writes what was logged, where it will be found.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.lock.expect_held()?;
        self.metrics.flush()?;
        #[cfg(feature = "tensorboard")]
        if let Some((position, error)) = self.metrics.take_board_failure() {
            self.journal.write(
                position,
                What::Warned,
                &format!("the curves for TensorBoard are not whole: {error}"),
            )?;
        }
        Ok(())
    }
}

impl Run {
    /// From here on to the next position a request to end is there or not, whenever it comes: else one between the
    /// questions whether to save and whether to end would lose what was not saved.
    pub(super) fn notice(&mut self) {
        let world = &self.options.world;
        let is_requested = self.options.interrupt.is_requested();
        let is_time = world.is_first() && self.saved_at.elapsed() >= self.options.every;
        // One rank that is asked to end ends all, at the same step.
        match world.agree([is_requested, is_time]) {
            Ok(agreed) => [self.is_interrupted, self.is_time] = agreed,
            Err(error) => self.apart = self.apart.take().or(Some(error)),
        }
    }

    /// That ranks met at this position.
    pub(super) fn expect_together(&mut self) -> Result<()> {
        self.apart.take().map_or(Ok(()), Err)
    }
}
