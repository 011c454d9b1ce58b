//! The work of reading a file, which its size bounds.

use crate::Result;
use crate::error::bail;

/// The work that is always allowed.
const FIXED: usize = 1 << 20;

/// The work that each byte of the file allows. A tensor of its own takes hundreds of bytes in a file.
const PER_BYTE: usize = 4;

/// A count of steps: instructions, values visited, letters of names, axes. A pickle may refer to a value any number of
/// times, so a few bytes could describe endlessly repeated lists and names.
#[derive(Debug)]
pub(super) struct Work {
    done: usize,
    left: usize,
}

impl Work {
    /// The work for a file of this size.
    pub(super) fn of(size: usize) -> Self {
        Self { done: 0, left: FIXED.saturating_add(size.saturating_mul(PER_BYTE)) }
    }

    /// Counts steps that the size of the file bounds already.
    pub(super) fn count(&mut self, steps: usize) {
        self.done += steps;
    }

    /// Counts steps.
    ///
    /// # Errors
    ///
    /// Fails if they are too many for the file. Call this before the work.
    pub(super) fn spend(&mut self, steps: usize) -> Result<()> {
        let Some(left) = self.left.checked_sub(steps) else {
            bail!(
                Checkpoint,
                "lists, dictionaries or names that are repeated by reference describe much more than a file of this size \
                 holds"
            );
        };
        self.left = left;
        self.done += steps;
        Ok(())
    }

    /// The steps so far.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn done(&self) -> usize {
        self.done
    }
}
