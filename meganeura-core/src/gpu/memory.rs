//! Device memory: buffers that return to a pool when the last tensor in them is dropped.
//!
//! Reuse needs no wait, since work that is submitted later runs later.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::reading::Copied;
use super::{Faults, fault, lock};
use crate::Result;

/// A piece of device memory, for one tensor.
pub(crate) struct Buffer {
    /// Taken only by `drop`.
    raw: Option<Raw>,
    home: Weak<MemoryPool>,
    /// The copy of the same numbers on the host, if the run that wrote them made one.
    copied: Mutex<Option<Copied>>,
}

/// wgpu's buffer, with an identity by which recordings and hazards are matched.
struct Raw {
    id: u64,
    /// The value of `MemoryPool::distrusted` when the buffer was created.
    trust: u64,
    buffer: wgpu::Buffer,
}

impl Buffer {
    pub(super) fn raw(&self) -> &wgpu::Buffer {
        &self.inner().buffer
    }

    pub(super) fn id(&self) -> u64 {
        self.inner().id
    }

    pub(super) fn copied(&self) -> Option<Copied> {
        lock(&self.copied).clone()
    }

    pub(super) fn note_copy(&self, copied: Copied) {
        *lock(&self.copied) = Some(copied);
    }

    /// Called before the buffer is written again.
    pub(super) fn forget_copy(&self) {
        *lock(&self.copied) = None;
    }

    fn inner(&self) -> &Raw {
        self.raw.as_ref().expect("taken only by drop")
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let (Some(raw), Some(home)) = (self.raw.take(), self.home.upgrade()) {
            if raw.trust == home.distrusted.load(Ordering::Relaxed) {
                lock(&home.unused).entry(raw.buffer.size()).or_default().push(raw);
            } else {
                home.bytes.fetch_sub(raw.buffer.size(), Ordering::Relaxed);
            }
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.raw().size())
    }
}

/// The memory of an adapter's tensors.
#[derive(Default)]
pub(crate) struct MemoryPool {
    /// Buffers that no tensor uses, by size.
    unused: Mutex<BTreeMap<u64, Vec<Raw>>>,
    created: AtomicU64,
    bytes: AtomicU64,
    peak: AtomicU64,
    /// The number of times that a browser reported a failed allocation late.
    distrusted: AtomicU64,
    /// For tests: the limit in bytes; 0 is no limit.
    #[cfg(feature = "testing")]
    pub(super) limit: AtomicU64,
}

/// The size of the buffer for a tensor. Sizes are rounded up to an eighth of a power of two, at least 256, so that
/// tensors of similar sizes share buffers.
pub(super) fn size_class(bytes: usize) -> u64 {
    let bytes = (bytes as u64).max(256);
    let step = (bytes.next_power_of_two() / 16).max(256);
    bytes.next_multiple_of(step)
}

impl MemoryPool {
    /// An unused buffer of this size.
    pub(super) fn reuse(self: &Arc<Self>, size: u64) -> Option<Arc<Buffer>> {
        let raw = lock(&self.unused).get_mut(&size)?.pop()?;
        Some(self.buffer(raw))
    }

    fn buffer(self: &Arc<Self>, raw: Raw) -> Arc<Buffer> {
        Arc::new(Buffer { raw: Some(raw), home: Arc::downgrade(self), copied: Mutex::default() })
    }

    /// A new buffer of this size. A buffer that the device refuses immediately never enters the pool.
    pub(super) fn create(
        self: &Arc<Self>,
        device: &wgpu::Device,
        faults: &Mutex<Faults>,
        size: u64,
    ) -> Result<Arc<Buffer>> {
        #[cfg(feature = "testing")]
        if (1..self.bytes.load(Ordering::Relaxed) + size).contains(&self.limit.load(Ordering::Relaxed)) {
            return Err(crate::Error::new(crate::ErrorKind::OutOfMemory, "a test allows no more memory"));
        }
        let scope = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let buffer = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("tensor"),
            size,
            usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        if let Some(error) = Faults::caught(faults, scope) {
            return Err(fault(error));
        }
        Ok(self.adopt(buffer))
    }

    /// Wraps a buffer that was allocated elsewhere.
    pub(super) fn adopt(self: &Arc<Self>, buffer: wgpu::Buffer) -> Arc<Buffer> {
        let size = buffer.size();
        let bytes = self.bytes.fetch_add(size, Ordering::Relaxed) + size;
        self.peak.fetch_max(bytes, Ordering::Relaxed);
        let id = self.created.fetch_add(1, Ordering::Relaxed);
        self.buffer(Raw { id, trust: self.distrusted.load(Ordering::Relaxed), buffer })
    }

    /// Keeps all current buffers from reuse: one of them has no memory, and it is unknown which.
    pub(super) fn distrust(&self) {
        self.distrusted.fetch_add(1, Ordering::Relaxed);
        self.release_unused();
    }

    /// Returns unused buffers to the driver.
    pub(super) fn release_unused(&self) {
        let unused = std::mem::take(&mut *lock(&self.unused));
        let freed: u64 = unused.iter().map(|(size, buffers)| size * buffers.len() as u64).sum();
        self.bytes.fetch_sub(freed, Ordering::Relaxed);
    }

    pub(super) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::size_class;

    #[test]
    fn size_classes_waste_little() {
        for bytes in [1, 256, 257, 1000, 65_537, 1_000_000, 123_456_789] {
            let size = size_class(bytes);
            assert!(size >= bytes as u64 && size.is_multiple_of(256));
            assert!(size as f64 <= bytes as f64 * 1.125 + 256.0, "{bytes} bytes take {size}");
        }
    }
}
