//! The MPI engine. Its callers know from the [watch](super::watch) that all ranks have arrived.

use std::mem;
use std::time::Duration;

use mpi::Threading;
use mpi::collective::SystemOperation;
use mpi::datatype::Equivalence;
use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Root};

use super::Engine;
use crate::error::bail;
use crate::{DType, Result};

/// The maximum number of elements per call: MPI counts in 32 bits.
const MOST: usize = 1 << 30;

/// The time that a rank stays after it lost another, so that the other can report its error before `mpirun` kills it.
const PARTING: Duration = Duration::from_millis(500);

/// A process started by `mpirun`.
pub(super) struct Mpi {
    /// `None` after MPI ended.
    universe: Option<Universe>,
}

impl Mpi {
    /// Initialises MPI, once per process.
    pub(super) fn start() -> Result<Self> {
        let Some((universe, threading)) = mpi::initialize_with_threading(Threading::Serialized) else {
            bail!(Argument, "MPI was started before, and a process joins a world once");
        };
        if threading < Threading::Serialized {
            bail!(Argument, "this MPI lets no other thread than the first one call it, and plans run on others");
        }
        Ok(Self { universe: Some(universe) })
    }

    pub(super) fn rank(&self) -> usize {
        SimpleCommunicator::world().rank() as usize
    }

    pub(super) fn size(&self) -> usize {
        SimpleCommunicator::world().size() as usize
    }

    /// This host's name according to MPI.
    pub(super) fn host(&self) -> String {
        mpi::environment::processor_name().unwrap_or_else(|_| super::watch::host())
    }

    /// `true` if all ranks share one host.
    pub(super) fn is_one_host(&self) -> bool {
        let world = SimpleCommunicator::world();
        let own = f64::from(world.split_shared(0).size());
        let mut fewest = 0.0;
        world.all_reduce_into(&own, &mut fewest, SystemOperation::min());
        fewest == f64::from(world.size())
    }
}

fn all_reduce_of<T: Equivalence + bytemuck::Pod>(from: &[u8], to: &mut [u8]) {
    let (from, to): (&[T], &mut [T]) = (bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to));
    for (from, to) in from.chunks(MOST).zip(to.chunks_mut(MOST)) {
        SimpleCommunicator::world().all_reduce_into(from, to, SystemOperation::sum());
    }
}

fn reduce_scatter_of<T: Equivalence + bytemuck::Pod>(from: &[u8], to: &mut [u8]) -> Result<()> {
    let (from, to): (&[T], &mut [T]) = (bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to));
    expect_countable(from.len())?;
    SimpleCommunicator::world().reduce_scatter_block_into(from, to, SystemOperation::sum());
    Ok(())
}

fn expect_countable(elements: usize) -> Result<()> {
    if elements > MOST {
        bail!(OutOfMemory, "{elements} numbers are more than MPI exchanges at once, which is {MOST}");
    }
    Ok(())
}

impl Engine for Mpi {
    fn name(&self) -> String {
        let version = mpi::environment::library_version().unwrap_or_default();
        // `Open MPI v4.1.4, package: …`, or several lines.
        let version = version.split([',', '\n']).next().unwrap_or_default().trim();
        format!("{} through the host", if version.is_empty() { "MPI" } else { version })
    }

    fn all_reduce(&mut self, dtype: DType, from: &[u8], to: &mut [u8]) -> Result<()> {
        match dtype {
            DType::F32 => all_reduce_of::<f32>(from, to),
            DType::F64 => all_reduce_of::<f64>(from, to),
            DType::U32 => all_reduce_of::<u32>(from, to),
            DType::I32 => all_reduce_of::<i32>(from, to),
            DType::I64 => all_reduce_of::<i64>(from, to),
        }
        Ok(())
    }

    fn reduce_scatter(&mut self, dtype: DType, from: &[u8], to: &mut [u8]) -> Result<()> {
        match dtype {
            DType::F32 => reduce_scatter_of::<f32>(from, to),
            DType::F64 => reduce_scatter_of::<f64>(from, to),
            DType::U32 => reduce_scatter_of::<u32>(from, to),
            DType::I32 => reduce_scatter_of::<i32>(from, to),
            DType::I64 => reduce_scatter_of::<i64>(from, to),
        }
    }

    fn all_gather(&mut self, from: &[u8], to: &mut [u8]) -> Result<()> {
        // As words, of which there are fewer than bytes.
        let (from, to): (&[u32], &mut [u32]) = (bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to));
        expect_countable(to.len())?;
        SimpleCommunicator::world().all_gather_into(from, to);
        Ok(())
    }

    fn broadcast(&mut self, bytes: &mut [u8]) -> Result<()> {
        for chunk in bytes.chunks_mut(MOST) {
            SimpleCommunicator::world().process_at_rank(0).broadcast_into(chunk);
        }
        Ok(())
    }

    fn end(&mut self, in_order: bool) {
        let Some(universe) = self.universe.take() else { return };
        if in_order {
            return drop(universe);
        }
        // Ending MPI would wait for ranks that do not come. The starter ends the others once this process is gone.
        mem::forget(universe);
        std::thread::sleep(PARTING);
    }
}
