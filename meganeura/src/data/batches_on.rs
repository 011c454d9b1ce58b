//! The iterator over the batches of an epoch.

use std::fmt;
use std::iter::FusedIterator;
use std::panic::Location;
use std::sync::Arc;

use super::loader::Loader;
use super::recipe::Make;
use super::{Batch, Batches};
use crate::{Error, Result, Tensor};

/// The batches of a dataset on a device, as an iterator. `nth` does not read what it skips, nor do loops over `skip`
/// and `step_by`, which call it.
#[must_use]
pub struct BatchesOn<I = Tensor, T = Tensor> {
    state: State<I, T>,
    /// The line that asked for the batches: a `for` loop has no line to call from.
    line: &'static Location<'static>,
}

enum State<I, T> {
    /// Invalid settings. The error is returned once.
    Wrong(Option<Error>),
    Ready {
        recipe: Arc<dyn Make<I, T>>,
        next: usize,
        workers: usize,
        ahead: usize,
        /// Set when the first batch is requested, if there are workers.
        loader: Option<Loader<I, T>>,
    },
}

impl<I, T> fmt::Debug for BatchesOn<I, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BatchesOn({} to come)", self.state.left())
    }
}

impl<I: Send + 'static, T: Send + 'static> BatchesOn<I, T> {
    /// The batches of a recipe from a number on, made by `workers` threads, which may be `ahead` batches ahead.
    pub(super) fn new(
        recipe: Result<(Arc<dyn Make<I, T>>, usize)>,
        [workers, ahead]: [usize; 2],
        line: &'static Location<'static>,
    ) -> Self {
        let state = match recipe {
            Ok((recipe, first)) => {
                let next = first.min(recipe.count());
                State::Ready { recipe, next, workers, ahead, loader: None }
            }
            Err(error) => State::Wrong(Some(error)),
        };
        Self { state, line }
    }

    /// Errors name this line instead.
    #[cfg(not(target_family = "wasm"))]
    pub(crate) fn at_line(self, line: &'static Location<'static>) -> Self {
        Self { line, ..self }
    }

    #[cfg(test)]
    pub(super) fn loader(&self) -> Option<&Loader<I, T>> {
        match &self.state {
            State::Ready { loader, .. } => loader.as_ref(),
            State::Wrong(_) => None,
        }
    }
}

impl<I, T> State<I, T> {
    /// The number of remaining results.
    fn left(&self) -> usize {
        match self {
            Self::Wrong(error) => usize::from(error.is_some()),
            Self::Ready { recipe, next, .. } => recipe.count() - next,
        }
    }
}

impl<I: Send + 'static, T: Send + 'static> State<I, T> {
    fn nth(&mut self, skipped: usize) -> Option<Result<Batch<I, T>>> {
        let (recipe, next, workers, ahead, loader) = match self {
            State::Wrong(error) => return error.take().filter(|_| skipped == 0).map(Err),
            State::Ready { recipe, next, workers, ahead, loader } => (recipe, next, *workers, *ahead, loader),
        };
        let number = next.saturating_add(skipped);
        *next = number.saturating_add(1).min(recipe.count());
        if number >= recipe.count() {
            // No batch remains for the threads.
            *loader = None;
            return None;
        }
        if workers == 0 {
            return recipe.batch(number, &|| true).transpose();
        }
        if loader.is_none() {
            match Loader::new(recipe, workers, ahead, number) {
                Ok(started) => *loader = Some(started),
                Err(error) => return Some(Err(error)),
            }
        }
        loader.as_mut()?.batch(number)
    }
}

impl<I: Send + 'static, T: Send + 'static> Iterator for BatchesOn<I, T> {
    type Item = Result<Batch<I, T>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.nth(0)
    }

    fn nth(&mut self, skipped: usize) -> Option<Self::Item> {
        let batch = self.state.nth(skipped)?;
        Some(batch.map_err(|error| error.at(self.line)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.state.left(), Some(self.state.left()))
    }
}

impl<I: Send + 'static, T: Send + 'static> ExactSizeIterator for BatchesOn<I, T> {}

impl<I: Send + 'static, T: Send + 'static> FusedIterator for BatchesOn<I, T> {}

/// The trait that batches without a device would need to be an iterator.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "these batches are on no device yet, so they are not an iterator",
    label = "not an iterator",
    note = "`for batch in batches.on(&device)` makes the tensors",
    note = "several epochs: `for epoch in batches.shuffle(7).epochs(0..12) {{ for batch in epoch.on(&device) {{ … }} }}`"
)]
pub trait OnDevice {}

/// Stands in for the batches.
#[doc(hidden)]
#[derive(Debug)]
pub struct OnNoDevice;

/// Never holds: the bound exists for its message. Without the lifetime, the compiler would refuse the impl.
#[doc(hidden)]
impl<I, T, C> Iterator for Batches<I, T, C>
where
    for<'never> OnNoDevice: OnDevice,
{
    type Item = ();

    fn next(&mut self) -> Option<()> {
        None
    }
}
