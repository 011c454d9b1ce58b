//! The memory behind a tensor, which executors read and write.

use std::ops::Deref;
use std::sync::{Arc, Weak};

use crate::host::{HostBuffer, Spares};

/// The memory behind a tensor.
#[derive(Clone, Debug)]
pub(crate) enum Storage {
    Host(Arc<HostMemory>),
    #[cfg(feature = "gpu")]
    Gpu(Arc<crate::gpu::Buffer>),
}

/// Host memory, which goes to the spares of an executor in the end if it has any.
#[derive(Debug)]
pub(crate) struct HostMemory {
    buffer: HostBuffer,
    spares: Weak<Spares>,
}

impl HostMemory {
    /// The buffer of this memory, which then goes nowhere.
    pub(crate) fn into_buffer(mut self) -> HostBuffer {
        self.spares = Weak::new();
        std::mem::replace(&mut self.buffer, HostBuffer::F32(Vec::new()))
    }
}

impl Deref for HostMemory {
    type Target = HostBuffer;

    fn deref(&self) -> &HostBuffer {
        &self.buffer
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if let Some(spares) = self.spares.upgrade() {
            spares.give(std::mem::replace(&mut self.buffer, HostBuffer::F32(Vec::new())));
        }
    }
}

impl Storage {
    /// Memory on the host.
    pub(crate) fn host(buffer: HostBuffer) -> Self {
        Self::Host(Arc::new(HostMemory { buffer, spares: Weak::new() }))
    }

    /// Memory on the host that an executor reuses when nobody holds it any more.
    pub(crate) fn lent(buffer: HostBuffer, spares: &Arc<Spares>) -> Self {
        Self::Host(Arc::new(HostMemory { buffer, spares: Arc::downgrade(spares) }))
    }

    /// An empty storage, in place of the real one while that is lent for an update.
    pub(crate) fn empty() -> Self {
        Self::host(HostBuffer::F32(Vec::new()))
    }

    /// `true` if this is the only handle to the memory, so that it may be updated in place.
    pub(crate) fn is_unique(&self) -> bool {
        match self {
            Self::Host(buffer) => Arc::strong_count(buffer) == 1,
            #[cfg(feature = "gpu")]
            Self::Gpu(buffer) => Arc::strong_count(buffer) == 1,
        }
    }
}
