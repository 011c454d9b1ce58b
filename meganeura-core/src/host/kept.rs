//! Operands that native kernels have prepared, such as packed weights, kept from run to run of one function.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::HostBuffer;

/// The prepared operands of a compiled function, each in its latest version.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    operands: Mutex<HashMap<Place, Prepared>>,
}

/// The number of a step, and that of its operand.
type Place = (usize, usize);

#[derive(Debug)]
struct Prepared {
    version: u64,
    numbers: Arc<HostBuffer>,
}

impl Kept {
    /// Bytes of all of them.
    pub(crate) fn bytes(&self) -> usize {
        self.operands().values().map(|Prepared { numbers, .. }| numbers.len() * numbers.dtype().bytes()).sum()
    }

    pub(crate) fn find(&self, place: Place, version: u64) -> Option<Arc<HostBuffer>> {
        let operands = self.operands();
        operands.get(&place).filter(|known| known.version == version).map(|known| Arc::clone(&known.numbers))
    }

    /// Keeps the numbers of a version in place of those of an earlier one.
    pub(crate) fn keep(&self, place: Place, version: u64, numbers: HostBuffer) -> Arc<HostBuffer> {
        let numbers = Arc::new(numbers);
        let mut operands = self.operands();
        // A slow run of an earlier version may finish after a later one.
        if operands.get(&place).is_none_or(|known| known.version < version) {
            operands.insert(place, Prepared { version, numbers: Arc::clone(&numbers) });
        }
        numbers
    }

    fn operands(&self) -> MutexGuard<'_, HashMap<Place, Prepared>> {
        self.operands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
