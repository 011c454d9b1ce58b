//! What moves numbers between the ranks of a world.

use crate::{DType, Result};

/// What ranks meet for: they compare it before each exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// The means of a step of a plan.
    Mean,
    /// What each rank has a part of.
    Owners,
    /// Numbers of the program's.
    Count,
    /// Something that all decide.
    Agree,
    /// What rank 0 has.
    Share,
}

impl Purpose {
    pub(super) fn of(number: u64) -> Option<Self> {
        [Self::Mean, Self::Owners, Self::Count, Self::Agree, Self::Share]
            .into_iter()
            .find(|purpose| *purpose as u64 == number)
    }
}

/// A way to move numbers of the host's memory between ranks. Every rank makes the same calls in the same order; each call waits for all
/// ranks. Floats are given as bytes.
pub(super) trait Engine: Send {
    /// Its name, for those who wonder what is used.
    fn name(&self) -> String;

    /// The sum over all ranks of each number. The same bits on every rank, and in every run with the same ranks: the standard of MPI
    /// recommends that, and its implementations do so.
    fn all_reduce(&mut self, dtype: DType, from: &[u8], to: &mut [u8]) -> Result<()>;

    /// Of the sums over all ranks, as many parts as there are ranks, the part of this rank.
    fn reduce_scatter(&mut self, dtype: DType, from: &[u8], to: &mut [u8]) -> Result<()>;

    /// The parts of all ranks, one after the other.
    fn all_gather(&mut self, from: &[u8], to: &mut [u8]) -> Result<()>;

    /// The bytes of rank 0.
    fn broadcast(&mut self, bytes: &mut [u8]) -> Result<()>;

    /// Ends it; `in_order` if all ranks do so now, and none was lost.
    fn end(&mut self, in_order: bool);
}

/// One rank.
pub(super) struct Alone;

impl Engine for Alone {
    fn name(&self) -> String {
        "one rank".to_owned()
    }

    fn all_reduce(&mut self, _: DType, from: &[u8], to: &mut [u8]) -> Result<()> {
        to.copy_from_slice(from);
        Ok(())
    }

    fn reduce_scatter(&mut self, _: DType, from: &[u8], to: &mut [u8]) -> Result<()> {
        to.copy_from_slice(from);
        Ok(())
    }

    fn all_gather(&mut self, from: &[u8], to: &mut [u8]) -> Result<()> {
        to.copy_from_slice(from);
        Ok(())
    }

    fn broadcast(&mut self, _: &mut [u8]) -> Result<()> {
        Ok(())
    }

    fn end(&mut self, _: bool) {}
}
