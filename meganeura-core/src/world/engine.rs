//! Engines: ways to move numbers between ranks.

use crate::{DType, Result};

/// The purpose of an exchange. Ranks compare it first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// Sums of a step of a plan.
    Sum,
    /// Values with owners, to or from these.
    Owners,
    /// Sums for the program.
    Count,
    /// Decisions that all ranks take together.
    Agree,
    /// Rank 0's data.
    Share,
}

impl Purpose {
    pub(super) fn of(number: u64) -> Option<Self> {
        [Self::Sum, Self::Owners, Self::Count, Self::Agree, Self::Share]
            .into_iter()
            .find(|purpose| *purpose as u64 == number)
    }
}

/// A way to exchange host memory. Every rank makes the same calls in the same order, and each call waits for all ranks.
/// Floats are passed as bytes.
pub(super) trait Engine: Send {
    /// The name, for example `Open MPI v4.1.4 through the host`.
    fn name(&self) -> String;

    /// The sums over all ranks: the same bits on every rank, and in every run with the same ranks. The MPI standard
    /// recommends this, and its implementations follow it.
    fn all_reduce(&mut self, dtype: DType, from: &[u8], to: &mut [u8]) -> Result<()>;

    /// This rank's part of the sums over all ranks; all parts are of equal size.
    fn reduce_scatter(&mut self, dtype: DType, from: &[u8], to: &mut [u8]) -> Result<()>;

    /// The parts of all ranks, in order.
    fn all_gather(&mut self, from: &[u8], to: &mut [u8]) -> Result<()>;

    /// Rank 0's bytes.
    fn broadcast(&mut self, bytes: &mut [u8]) -> Result<()>;

    /// Ends the engine; `in_order` if all ranks end theirs now, and none was lost.
    fn end(&mut self, in_order: bool);
}

/// The engine of a world of one rank.
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
