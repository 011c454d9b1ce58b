//! The recipe of a batch. It depends on the batch's index alone, so the batch has the same bits whichever thread makes
//! it, and whatever was made before.

use std::sync::Arc;

use super::collate::{Collate, Example};
use super::{Batch, Examples, Fields};
use crate::seed::Seed;
use crate::{Device, Result};

/// The source of a batch's examples: a dataset, and the changes to each example.
pub(super) trait Source<I, T>: Send + Sync {
    /// Example `row`. All randomness comes from the seed, which differs for each epoch and position.
    fn read(&self, row: usize, seed: Seed) -> Result<(I, T)>;
}

impl<I: Fields, T: Fields> Source<I, T> for Arc<dyn Examples<Inputs = I, Targets = T>> {
    fn read(&self, row: usize, _: Seed) -> Result<(I, T)> {
        (**self).read(row)
    }
}

/// Examples changed by a function. Each function draws from its own seed, so one more function at the end does not
/// affect the others.
pub(super) struct Mapped<I, T, F> {
    pub source: Arc<dyn Source<I, T>>,
    pub function: F,
    /// The number of functions before this one.
    pub stage: usize,
}

impl<I, T, J, U, F: Fn(I, T, Seed) -> Result<(J, U)> + Send + Sync> Source<J, U> for Mapped<I, T, F> {
    fn read(&self, row: usize, seed: Seed) -> Result<(J, U)> {
        let (inputs, targets) = self.source.read(row, seed)?;
        let changed = (self.function)(inputs, targets, seed.index(self.stage));
        changed.map_err(|error| error.context(format_args!("example {row}")))
    }
}

/// Everything that the batches of an epoch depend on.
pub(super) struct Recipe<I, T, C> {
    pub source: Arc<dyn Source<I, T>>,
    pub collate: C,
    pub device: Device,
    /// The examples, in their order. Positions past the end start again at the front.
    pub order: Vec<usize>,
    /// The position of the first batch.
    pub start: usize,
    /// The end of the positions for which there are batches.
    pub positions: usize,
    /// The number of positions in a batch; the last may have fewer.
    pub size: usize,
    /// The part of each batch to make, and the number of equal parts.
    pub part: usize,
    pub parts: usize,
    /// The seed of the random numbers for examples.
    pub seed: Seed,
}

/// A [`Recipe`], for code that knows only the batches.
pub(super) trait Make<I, T>: Send + Sync {
    /// The number of batches.
    fn count(&self) -> usize;

    /// Batch `number`; `None` if it is no longer wanted, which is checked before each example.
    fn batch(&self, number: usize, is_wanted: &dyn Fn() -> bool) -> Result<Option<Batch<I, T>>>;
}

/// The tensors of fields on the host.
type TensorsOf<F> = <F as Fields>::Tensors;

impl<I: Fields, T: Fields, C: Collate<I, T>> Make<TensorsOf<C::Inputs>, TensorsOf<C::Targets>> for Recipe<I, T, C> {
    fn count(&self) -> usize {
        self.positions.saturating_sub(self.start).div_ceil(self.size)
    }

    fn batch(
        &self,
        number: usize,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Batch<TensorsOf<C::Inputs>, TensorsOf<C::Targets>>>> {
        let first = self.start + number * self.size;
        let count = self.size.min(self.positions - first) / self.parts;
        let begin = first + self.part * count;
        let mut examples = (begin..begin + count).map(|position| {
            if !is_wanted() {
                return Ok(None);
            }
            let row = self.order[position % self.order.len()];
            Ok(Some(Example::new(row, self.source.read(row, self.seed.index(position))?)))
        });
        let Some((inputs, targets)) = self.collate.collate(&mut examples, count)? else { return Ok(None) };
        let in_batch = |error: crate::Error| error.context(format_args!("batch {number}"));
        let inputs = inputs.into_tensors(&self.device).map_err(in_batch)?;
        let targets = targets.into_tensors(&self.device).map_err(in_batch)?;
        Ok(Some(Batch { inputs, targets }))
    }
}
