//! What moves numbers between the ranks of a world.

use crate::{DType, Result};

/// What ranks meet for: they compare it before each exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// A step of a plan.
    Mean,
    /// Numbers of the program's.
    Count,
    /// Something that all decide.
    Agree,
    /// What rank 0 has.
    #[cfg(feature = "mpi")]
    Share,
}

impl Purpose {
    #[cfg(feature = "mpi")]
    pub(super) const ALL: [Self; 4] = [Self::Mean, Self::Count, Self::Agree, Self::Share];
}

/// A way to move numbers between ranks. Every rank makes the same calls in the same order; each call waits for all ranks.
pub(super) trait Engine: Send + Sync {
    /// The sum over all ranks of each number, of floats of one type, given as bytes. The same bits on every rank, and in every run with the same
    /// ranks: the standard of MPI recommends that, and its implementations do so.
    fn all_reduce(&self, purpose: Purpose, dtype: DType, from: &[u8], to: &mut [u8]) -> Result<()>;

    /// The bytes of rank 0.
    fn broadcast(&self, bytes: &mut [u8]) -> Result<()>;
}

/// One rank.
pub(super) struct Alone;

impl Engine for Alone {
    fn all_reduce(&self, _: Purpose, _: DType, from: &[u8], to: &mut [u8]) -> Result<()> {
        to.copy_from_slice(from);
        Ok(())
    }

    fn broadcast(&self, _: &mut [u8]) -> Result<()> {
        Ok(())
    }
}
