//! What moves numbers between the ranks of a world.

use crate::{DType, Result};

/// A way to move numbers between ranks. Every rank makes the same calls in the same order; each call waits for all ranks.
pub(super) trait Engine: Send + Sync {
    /// The sum over all ranks of each number, the same bits on every rank and in every run: floats of one type, given as bytes.
    fn all_reduce(&self, dtype: DType, from: &[u8], to: &mut [u8]) -> Result<()>;

    /// The bytes of rank 0.
    fn broadcast(&self, bytes: &mut [u8]) -> Result<()>;
}

/// One rank.
pub(super) struct Alone;

impl Engine for Alone {
    fn all_reduce(&self, _: DType, from: &[u8], to: &mut [u8]) -> Result<()> {
        to.copy_from_slice(from);
        Ok(())
    }

    fn broadcast(&self, _: &mut [u8]) -> Result<()> {
        Ok(())
    }
}
