//! The way of a run through epochs and their batches.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::Run;
use crate::Result;
use crate::data::{Batches, BatchesOn, Collate, Fields, Taken};
use crate::error::bail;

impl Run {
    /// The batches taken from this epoch, for [`Batches::skip`](crate::data::Batches::skip). Batches that get it record
    /// here their size and the order of the examples, for a resumed run that has batches of another size.
    #[must_use]
    pub fn batch(&self) -> Taken {
        self.unasked.store(false, Ordering::Relaxed);
        Taken::of_run(self.position.batch, &self.taken)
    }

    /// The batches of the next epoch, if it is one of the first `epochs`, on the run's device; the previous epoch is
    /// then over.
    ///
    /// It has its own order and its own random changes. In the middle of an epoch, as after a resumption, it continues
    /// with the first example that the run has not seen. In a [world](super::RunOptions::world), each rank gets its
    /// part.
    ///
    /// ```
    /// use meganeura::prelude::*;
    /// use meganeura::run::Run;
    ///
    /// # fn main() -> meganeura::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// let device = Device::cpu();
    /// let train = Dataset::new(vec![0.5; 64], [1], vec![0; 64])?;
    /// let batches = train.batches(16).shuffle(7);
    /// let mut run = Run::at(folder.path(), &device).open()?;
    /// while let Some(epoch) = run.next_epoch_of(&batches, 5) {
    ///     for batch in epoch {
    ///         let batch = batch?;
    ///         // … a step
    ///         run.advance();
    ///     }
    /// }
    /// assert_eq!(run.step(), 20);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`position`](Self::position) has the number of the epoch. Programs whose data are not [`Batches`] count with
    /// [`next_epoch`](Self::next_epoch).
    #[expect(clippy::type_complexity, reason = "a name of its own would hide which iterator it is")]
    #[track_caller]
    pub fn next_epoch_of<I: Fields, T: Fields, C: Collate<I, T>>(
        &mut self,
        batches: &Batches<I, T, C>,
        epochs: u64,
    ) -> Option<BatchesOn<<C::Inputs as Fields>::Tensors, <C::Targets as Fields>::Tensors>> {
        let epoch = self.next_epoch(epochs)?;
        let batches = batches.clone().epoch(epoch).skip(self.batch());
        Some(batches.part_of(&self.options.world).on(&self.device))
    }

    /// The number of the next epoch to train, if it is one of the first `epochs`; the previous one is then over.
    ///
    /// [`next_epoch_of`](Self::next_epoch_of) returns its batches. A loop that makes its own passes this number to
    /// [`Batches::epoch`], and [`batch`](Self::batch) to [`Batches::skip`].
    pub fn next_epoch(&mut self, epochs: u64) -> Option<u64> {
        if self.has_epoch {
            self.end_epoch();
        }
        self.has_epoch = self.position.epoch < epochs;
        self.has_epoch.then_some(self.position.epoch)
    }

    /// Advances by one step and one batch. In a [world](super::RunOptions::world), the call is collective. Call it
    /// after each step or micro-batch.
    pub fn advance(&mut self) {
        if self.has_epoch && self.unasked.swap(false, Ordering::Relaxed) {
            self.begun_anew = Some(self.position);
        }
        self.position.step += 1;
        self.position.batch += 1;
        self.notice();
    }

    /// Ends the epoch. A checkpoint saved after this resumes with the next one.
    pub fn end_epoch(&mut self) {
        self.position.epoch += 1;
        self.position.batch = 0;
        self.has_epoch = false;
        self.has_ended_epoch = true;
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.notice();
    }

    /// Fails if the run was resumed in the middle of an epoch and the loop began that epoch anew.
    pub(super) fn expect_skipped(&self) -> Result<()> {
        let Some(from) = self.begun_anew else { return Ok(()) };
        bail!(
            Argument,
            "the run was resumed at {from}, and the loop did not ask for the batches that had been taken from the epoch, so \
             their examples would come twice: `run.next_epoch_of(&batches, epochs)` continues after them, and so does \
             `batches.skip(run.batch())`; a loop that finds its data otherwise calls `run.batch()`"
        )
    }
}
