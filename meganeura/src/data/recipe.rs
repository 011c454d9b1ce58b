//! How a batch is made: by its number alone, so that it has the same bits whoever makes it, and whatever was made
//! before.

use std::sync::Arc;

use super::collate::{Collate, Example};
use super::{Batch, Examples, Fields};
use crate::seed::Seed;
use crate::{Device, Result};

/// Where the examples of a batch come from: a dataset, and what is done to each.
pub(super) trait Source<I, T>: Send + Sync {
    /// Example `row`. All that is random about it comes from the seed, which is another for each epoch and position.
    fn read(&self, row: usize, seed: Seed) -> Result<(I, T)>;
}

impl<I: Fields, T: Fields> Source<I, T> for Arc<dyn Examples<Inputs = I, Targets = T>> {
    fn read(&self, row: usize, _: Seed) -> Result<(I, T)> {
        (**self).read(row)
    }
}

/// Examples changed by a function. Each function draws from a seed of its own, so that one more at the end leaves the
/// others as they were.
pub(super) struct Mapped<I, T, F> {
    pub source: Arc<dyn Source<I, T>>,
    pub function: F,
    /// How many functions come before.
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
    /// The examples, in the order in which they come. Positions past the end begin again at the front.
    pub order: Vec<usize>,
    /// Positions of the epoch: up to here there are batches.
    pub positions: usize,
    /// Positions of a batch; the last may have fewer.
    pub size: usize,
    /// Which of how many equal parts of each batch is made.
    pub part: usize,
    pub parts: usize,
    /// Of what is random about examples.
    pub seed: Seed,
}

/// A [`Recipe`] for whoever knows the batches only.
pub(super) trait Make<I, T>: Send + Sync {
    /// The number of batches.
    fn count(&self) -> usize;

    /// Batch `number`; `None` if it is not wanted any more, which is asked before each example.
    fn batch(&self, number: usize, is_wanted: &dyn Fn() -> bool) -> Result<Option<Batch<I, T>>>;
}

/// The tensors of fields on the host.
type TensorsOf<F> = <F as Fields>::Tensors;

impl<I: Fields, T: Fields, C: Collate<I, T>> Make<TensorsOf<C::Inputs>, TensorsOf<C::Targets>> for Recipe<I, T, C> {
    fn count(&self) -> usize {
        self.positions.div_ceil(self.size)
    }

    fn batch(
        &self,
        number: usize,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Batch<TensorsOf<C::Inputs>, TensorsOf<C::Targets>>>> {
        let first = number * self.size;
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
