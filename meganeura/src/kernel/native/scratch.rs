//! Memory that kernels need while they run, kept from one to the next: to fault in fresh pages and clear them takes as long as
//! many a kernel does.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Real;
use crate::host::HostBuffer;

/// What kernels borrow memory from.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Never more than were borrowed at one time.
    free: Mutex<Vec<HostBuffer>>,
    /// Whether to fill what is lent with NaN, for tests.
    poison: AtomicBool,
}

/// Numbers on loan; which ones is not said.
#[derive(Debug)]
pub(crate) struct Borrowed<'a, T> {
    from: &'a Scratch,
    buffer: HostBuffer,
    len: usize,
    numbers: PhantomData<T>,
}

impl Scratch {
    /// Lends `len` numbers, which the borrower writes before it reads them.
    ///
    /// # Panics
    ///
    /// If there is no memory for them.
    pub(crate) fn borrow<T: Real>(&self, len: usize) -> Borrowed<'_, T> {
        let mut buffer = self.find(T::DTYPE, len).unwrap_or_else(|| {
            HostBuffer::try_zeros(T::DTYPE, len).unwrap_or_else(|error| panic!("a kernel's scratch memory: {error}"))
        });
        if self.poison.load(Ordering::Relaxed) {
            buffer.poison();
        }
        Borrowed { from: self, buffer, len, numbers: PhantomData }
    }

    /// The smallest of the free buffers that is large enough. If none is, the largest makes room for one that will be.
    fn find(&self, dtype: crate::DType, len: usize) -> Option<HostBuffer> {
        let mut free = self.free();
        let mut buffers: Vec<_> = (0..free.len()).filter(|&at| free[at].dtype() == dtype).collect();
        buffers.sort_by_key(|&at| free[at].len());
        let fits = buffers.iter().find(|&&at| free[at].len() >= len).copied();
        let taken = fits.or(buffers.last().copied()).map(|at| free.swap_remove(at));
        taken.filter(|_| fits.is_some())
    }

    pub(crate) fn set_poison(&self, poison: bool) {
        self.poison.store(poison, Ordering::Relaxed);
    }

    /// Bytes that are kept.
    pub(crate) fn bytes(&self) -> usize {
        self.free().iter().map(|buffer| buffer.len() * buffer.dtype().bytes()).sum()
    }

    fn free(&self) -> MutexGuard<'_, Vec<HostBuffer>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Drop for Borrowed<'_, T> {
    fn drop(&mut self) {
        let buffer = std::mem::replace(&mut self.buffer, HostBuffer::F32(Vec::new()));
        self.from.free().push(buffer);
    }
}

impl<T: Real> Deref for Borrowed<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &T::slice(&self.buffer)[..self.len]
    }
}

impl<T: Real> DerefMut for Borrowed<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut T::slice_mut(&mut self.buffer)[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_lent_again_and_never_twice_at_once() {
        let scratch = Scratch::default();
        {
            let (mut a, mut b) = (scratch.borrow::<f32>(10), scratch.borrow::<f32>(100));
            a.fill(1.0);
            b.fill(2.0);
            assert!(a.iter().all(|&x| x == 1.0), "apart from b");
        }
        assert_eq!(scratch.bytes(), 440);
        assert_eq!(scratch.borrow::<f32>(7).len(), 7);
        assert_eq!(scratch.bytes(), 440, "the smaller buffer served");
        drop(scratch.borrow::<f32>(200));
        assert_eq!(scratch.bytes(), 840, "the larger one made room");
        drop(scratch.borrow::<f64>(1));
        assert_eq!(scratch.bytes(), 848);
        scratch.set_poison(true);
        assert!(scratch.borrow::<f32>(200).iter().all(|x| x.is_nan()));
    }
}
