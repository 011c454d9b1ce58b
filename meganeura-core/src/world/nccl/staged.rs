//! The NCCL engine for host memory, staged through the GPU: for ranks without MPI.

use std::ffi::c_void;
use std::sync::Arc;
use std::thread;

use super::library::{Address, Handle};
use super::{ASKING, BYTES, Call, Nccl};
use crate::world::Engine;
use crate::world::watch::Watch;
use crate::{DType, Result};

/// NCCL with a staging buffer in device memory.
pub(in crate::world) struct Staged {
    nccl: Arc<Nccl>,
    watch: Arc<Watch>,
    memory: Address,
    bytes: usize,
}

impl Staged {
    pub(in crate::world) fn new(nccl: Arc<Nccl>, watch: Arc<Watch>) -> Self {
        Self { nccl, watch, memory: 0, bytes: 0 }
    }

    /// Grows the staging buffer.
    fn reserve(&mut self, bytes: usize) -> Result<()> {
        if bytes <= self.bytes {
            return Ok(());
        }
        self.free();
        let (bytes, Nccl { libraries, .. }) = (bytes.next_power_of_two(), &*self.nccl);
        // SAFETY: it writes an address.
        let made = unsafe { (libraries.cuda.allocate)(&raw mut self.memory, bytes) };
        libraries.cuda(made, "memory for an exchange")?;
        self.bytes = bytes;
        Ok(())
    }

    fn free(&mut self) {
        if self.bytes > 0 {
            // SAFETY: it was allocated, and every exchange was waited for.
            unsafe { (self.nccl.libraries.cuda.free)(self.memory) };
            self.bytes = 0;
        }
    }

    /// Uploads `from`, runs the collective that `enqueue` enqueues, given source and target addresses, and downloads
    /// `to`.
    fn run_collective(
        &mut self,
        from: &[u8],
        to: &mut [u8],
        enqueue: impl FnOnce(&Nccl, Address, Address) -> Result<()>,
    ) -> Result<()> {
        self.nccl.enter()?;
        let begin = from.len().next_multiple_of(256);
        self.reserve(begin + to.len())?;
        let Nccl { libraries, .. } = &*self.nccl;
        let (source, target) = (self.memory, self.memory + begin as u64);
        // SAFETY: both sides have the same number of bytes.
        let sent = unsafe { (libraries.cuda.upload)(source, from.as_ptr().cast::<c_void>(), from.len()) };
        libraries.cuda(sent, "sending numbers to the GPU")?;
        enqueue(&self.nccl, source, target)?;
        while !self.nccl.is_done()? {
            if let Some(fault) = self.watch.fault() {
                self.nccl.abort();
                return Err(fault);
            }
            thread::sleep(ASKING / 4);
        }
        // SAFETY: as above.
        let got = unsafe { (libraries.cuda.download)(to.as_mut_ptr().cast::<c_void>(), target, to.len()) };
        libraries.cuda(got, "getting numbers from the GPU")
    }
}

impl Engine for Staged {
    fn name(&self) -> String {
        format!("NCCL {}", self.nccl.version())
    }

    fn all_reduce(&mut self, dtype: DType, from: &[u8], to: &mut [u8]) -> Result<()> {
        let bytes = from.len();
        self.run_collective(from, to, |nccl, source, target| {
            nccl.enqueue(Call::AllReduce, dtype.into(), (source, bytes), target)
        })
    }

    fn reduce_scatter(&mut self, dtype: DType, from: &[u8], to: &mut [u8]) -> Result<()> {
        let bytes = from.len();
        self.run_collective(from, to, |nccl, source, target| {
            nccl.enqueue(Call::ReduceScatter, dtype.into(), (source, bytes), target)
        })
    }

    fn all_gather(&mut self, from: &[u8], to: &mut [u8]) -> Result<()> {
        let bytes = from.len();
        self.run_collective(from, to, |nccl, source, target| {
            nccl.enqueue(Call::AllGather, DType::U32.into(), (source, bytes), target)
        })
    }

    fn broadcast(&mut self, bytes: &mut [u8]) -> Result<()> {
        let from = bytes.to_vec();
        self.run_collective(&from, bytes, |nccl, source, target| {
            let (broadcast, stream) = (nccl.libraries.nccl.broadcast, nccl.stream as Handle);
            // SAFETY: both pieces have the same number of bytes.
            let enqueued = nccl.communicator.call(|communicator| unsafe {
                broadcast(source, target, from.len(), BYTES, 0, communicator, stream)
            })?;
            nccl.libraries.nccl(enqueued, "an exchange")
        })
    }

    fn end(&mut self, in_order: bool) {
        if !in_order {
            self.nccl.abort();
        }
        if self.nccl.enter().is_ok() {
            self.free();
        }
    }
}
