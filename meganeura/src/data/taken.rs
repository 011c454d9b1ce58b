//! The part of an epoch that a run has taken.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::Result;
use crate::error::bail;

/// The batches that a [run](crate::run::Run) has taken from an epoch, for [`Batches::skip`](super::Batches::skip).
///
/// It also counts their examples, and knows their order. So a run may resume with another batch size: it continues with
/// the first example that it has not seen. Another order of the examples is an error.
///
/// A number of batches converts to it, and then stands for as many batches of whatever size.
#[derive(Clone, Debug)]
pub struct Taken {
    batches: usize,
    counts: Vec<Count>,
    /// Where batches that continue from here leave their own count.
    record: Option<Record>,
}

/// The counts of the batches in use.
pub(crate) type Record = Arc<Mutex<Vec<Count>>>;

/// The examples taken in one order: `examples` in the first `batch` batches, and `size` in each one since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) batch: usize,
    pub(crate) examples: usize,
    pub(crate) size: usize,
    /// Differs for other orders, and for other examples.
    pub(crate) order: u64,
}

impl Count {
    /// The number of examples in this many batches.
    fn after(&self, batches: usize) -> usize {
        self.examples.saturating_add(batches.saturating_sub(self.batch).saturating_mul(self.size))
    }
}

impl Taken {
    /// The batches that a run has taken; `record` counts their examples.
    pub(crate) fn of_run(batches: usize, record: &Record) -> Self {
        let counts = record.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Self { batches, counts, record: Some(Arc::clone(record)) }
    }

    /// The number of batches.
    #[must_use]
    pub fn batches(&self) -> usize {
        self.batches
    }

    /// The number of examples that batches of `size` skip, in this order.
    pub(super) fn skipped(&self, size: usize, order: &[usize]) -> Result<usize> {
        let Some(record) = &self.record else { return Ok(self.batches.saturating_mul(size)) };
        let order = digest(order);
        let of_order: Vec<_> = self.counts.iter().filter(|count| count.order == order).collect();
        let known = match &of_order[..] {
            _ if self.batches == 0 || self.counts.is_empty() => None,
            [count] => Some(*count),
            [] => bail!(
                Argument,
                "the {} batches that the run has taken from this epoch had the examples in another order, so some would come \
                 twice and others never: resume with the seed, the epoch and the examples as they were, or skip batches by \
                 their number, `skip(run.batch().batches())`",
                self.batches
            ),
            several => match several.iter().find(|count| count.size == size) {
                Some(count) => Some(*count),
                None => bail!(
                    Argument,
                    "the run has taken batches of several sizes from these examples, and none of {size}: resume with the same \
                     sizes, or skip batches by their number, `skip(run.batch().batches())`"
                ),
            },
        };
        let examples = known.map_or_else(|| self.batches.saturating_mul(size), |count| count.after(self.batches));
        let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
        record.retain(|count| Some(count) != known && (count.order, count.size) != (order, size));
        record.push(Count { batch: self.batches, examples, size, order });
        Ok(examples)
    }
}

/// FNV-1a of the examples in their order. Runs save it, and ranks compare it.
pub(super) fn digest(order: &[usize]) -> u64 {
    let bytes = order.iter().flat_map(|&row| (row as u64).to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

impl From<usize> for Taken {
    fn from(batches: usize) -> Self {
        Self { batches, counts: Vec::new(), record: None }
    }
}

/// Compares the number of batches.
impl PartialEq<usize> for Taken {
    fn eq(&self, batches: &usize) -> bool {
        self.batches == *batches
    }
}

/// The number of batches.
impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.batches.fmt(f)
    }
}
