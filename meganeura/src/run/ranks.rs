//! A run of several ranks: one of them writes, and all decide together.

use super::Run;
use super::journal::Journal;
#[cfg(feature = "tensorboard")]
use super::journal::What;
use super::lock::Lock;
use super::metrics::Metrics;
use super::store::Saved;
use crate::Result;

/// The files of a run's folder, held by the one process that writes them.
pub(super) struct Written {
    pub(super) metrics: Metrics,
    pub(super) journal: Journal,
    pub(super) saved: Vec<Saved>,
    pub(super) lock: Lock,
}

impl Written {
    /// Writes everything logged.
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
    /// Fixes, up to the next position, whether a stop was requested. Otherwise a request between the questions whether
    /// to save and whether to stop would lose unsaved steps.
    pub(super) fn notice(&mut self) {
        let world = &self.options.world;
        let is_requested = self.options.interrupt.is_requested();
        let is_time = world.is_first() && self.saved_at.elapsed() >= self.options.every;
        // A request at one rank stops all, at the same step.
        match world.agree([is_requested, is_time]) {
            Ok(agreed) => [self.is_interrupted, self.is_time] = agreed,
            Err(error) => self.apart = self.apart.take().or(Some(error)),
        }
    }

    /// Fails unless the ranks met at this position.
    pub(super) fn expect_together(&mut self) -> Result<()> {
        self.apart.take().map_or(Ok(()), Err)
    }
}
