//! The memory behind a tensor, which executors read and write.

use std::sync::Arc;

use crate::host::HostBuffer;

/// The memory behind a tensor.
#[derive(Clone, Debug)]
pub(crate) enum Storage {
    Host(Arc<HostBuffer>),
    #[cfg(feature = "gpu")]
    Gpu(Arc<crate::gpu::Buffer>),
}

impl Storage {
    /// An empty storage, in place of the real one while that is lent for an update.
    pub(crate) fn empty() -> Self {
        Self::Host(Arc::new(HostBuffer::F32(Vec::new())))
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
