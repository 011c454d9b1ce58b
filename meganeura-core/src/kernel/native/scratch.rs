//! Temporary memory of kernels, kept from one kernel to the next: faulting in and clearing fresh pages takes as long as
//! many kernels do.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Real;
use crate::host::{HostBuffer, Kept};
use crate::{Error, Result};

/// Free buffers: for each element type, never more than were borrowed at one time. All runs of a device share them.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    free: Mutex<Vec<HostBuffer>>,
}

/// Temporary memory for the kernels of a run.
///
/// A kernel that gets none returns at once and leaves its results unwritten. The executor checks for this after each
/// kernel and fails the run.
#[derive(Debug, Default)]
pub struct Scratch {
    buffers: Arc<Buffers>,
    /// `true` to fill loans with NaN, for tests.
    poison: bool,
    /// The first error since the last check.
    refused: Mutex<Option<Error>>,
    /// What is kept from run to run.
    kept: Option<Arc<Kept>>,
    /// `true` if results must have the same bits without prepared operands.
    exact: bool,
    /// The step that runs, and the version of each of its operands that stays the same from run to run.
    step: (usize, Vec<Option<u64>>),
    /// Whether anything reads the results of the operation that runs; missing ones are read.
    read: Vec<bool>,
}

/// Elements on loan, with unspecified contents.
#[derive(Debug)]
pub(crate) struct Borrowed<'a, T> {
    from: &'a Buffers,
    buffer: HostBuffer,
    len: usize,
    numbers: PhantomData<T>,
}

impl Buffers {
    /// Bytes of the free buffers.
    pub(crate) fn bytes(&self) -> usize {
        self.free().iter().map(|buffer| buffer.len() * buffer.dtype().bytes()).sum()
    }

    /// The smallest free buffer that is large enough. If there is none, the largest is dropped for a new one.
    fn find(&self, dtype: crate::DType, len: usize) -> Option<HostBuffer> {
        let mut free = self.free();
        let mut buffers: Vec<_> = (0..free.len()).filter(|&at| free[at].dtype() == dtype).collect();
        buffers.sort_by_key(|&at| free[at].len());
        let fits = buffers.iter().find(|&&at| free[at].len() >= len).copied();
        let taken = fits.or(buffers.last().copied()).map(|at| free.swap_remove(at));
        taken.filter(|_| fits.is_some())
    }

    fn free(&self) -> MutexGuard<'_, Vec<HostBuffer>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Scratch {
    pub(crate) fn new(buffers: &Arc<Buffers>, poison: bool) -> Self {
        Self { buffers: Arc::clone(buffers), poison, ..Self::default() }
    }

    /// Keeps prepared operands from run to run. `exact` requires the bits of a run without them.
    pub(crate) fn keep(&mut self, kept: &Arc<Kept>, exact: bool) {
        (self.kept, self.exact) = (Some(Arc::clone(kept)), exact);
    }

    /// Begins a step. `versions` are those of the operands that stay the same from run to run; `read` tells whether
    /// anything reads the operation's results.
    pub(crate) fn begin(&mut self, step: usize, versions: impl Iterator<Item = Option<u64>>, read: &[bool]) {
        self.read.clear();
        self.read.extend(read);
        if self.kept.is_some() {
            self.step.0 = step;
            self.step.1.clear();
            self.step.1.extend(versions);
        }
    }

    /// `false` if nothing reads result `k` of the operation, so that it need not be written.
    pub(crate) fn is_read(&self, k: usize) -> bool {
        self.read.get(k).is_none_or(|&read| read)
    }

    /// `len` numbers that depend on one operand alone, such as packed weights: `make` writes them, unless they are kept
    /// from an earlier run. `None` if the operand may differ in the next run, or if there is no memory for them; then
    /// they are not worth making.
    pub(crate) fn prepared<T: Real>(
        &self,
        operand: usize,
        len: usize,
        make: impl FnOnce(&mut [T]),
    ) -> Option<Arc<HostBuffer>> {
        let kept = self.kept.as_ref()?;
        let version = (*self.step.1.get(operand)?)?;
        let place = (self.step.0, operand);
        if let Some(numbers) = kept.find(place, version) {
            return Some(numbers);
        }
        // No lock is held meanwhile: a thread that waits for parts of this may begin another run of the function.
        let mut numbers = HostBuffer::try_zeros(T::DTYPE, len).ok()?;
        if self.poison {
            numbers.poison(0..len);
        }
        make(T::slice_mut(&mut numbers));
        Some(kept.keep(place, version, numbers))
    }

    /// `true` if sums with prepared operands must be those without them, bit by bit.
    pub(crate) fn is_exact(&self) -> bool {
        self.exact
    }

    /// Lends `len` numbers, which the borrower writes before it reads them; `None` if there is no memory for them.
    pub(crate) fn borrow<T: Real>(&self, len: usize) -> Option<Borrowed<'_, T>> {
        let mut buffer = match self.buffers.find(T::DTYPE, len) {
            Some(buffer) => buffer,
            None => match HostBuffer::try_zeros(T::DTYPE, len) {
                Ok(buffer) => buffer,
                Err(error) => {
                    self.refuse(error.context("its scratch memory"));
                    return None;
                }
            },
        };
        if self.poison {
            buffer.poison(0..buffer.len());
        }
        Some(Borrowed { from: &self.buffers, buffer, len, numbers: PhantomData })
    }

    /// [`borrow`](Self::borrow)s `len` zeros.
    pub(crate) fn zeros<T: Real>(&self, len: usize) -> Option<Borrowed<'_, T>> {
        let mut zeros = self.borrow(len)?;
        zeros.fill(T::ZERO);
        Some(zeros)
    }

    /// Notes why a kernel ended early.
    pub(crate) fn refuse(&self, error: Error) {
        self.refused().get_or_insert(error);
    }

    /// The first error since the last call: a loan without memory, or another error of a kernel.
    pub(crate) fn expect_done(&self) -> Result<()> {
        self.refused().take().map_or(Ok(()), Err)
    }

    fn refused(&self) -> MutexGuard<'_, Option<Error>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
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
    use crate::ErrorKind;

    #[test]
    fn buffers_are_reused_but_never_lent_twice_at_once() {
        let buffers = Arc::new(Buffers::default());
        let scratch = Scratch::new(&buffers, false);
        let borrow = |len| scratch.borrow::<f32>(len).expect("there is room");
        {
            let (mut a, mut b) = (borrow(10), borrow(100));
            a.fill(1.0);
            b.fill(2.0);
            assert!(a.iter().all(|&x| x == 1.0), "a and b do not overlap");
        }
        assert_eq!(buffers.bytes(), 440);
        assert_eq!(borrow(7).len(), 7);
        assert_eq!(buffers.bytes(), 440, "the smaller buffer is reused");
        drop(borrow(200));
        assert_eq!(buffers.bytes(), 840, "a larger one replaces the largest");
        drop(scratch.borrow::<f64>(1));
        assert_eq!(buffers.bytes(), 848);
        let poisoned = Scratch::new(&buffers, true);
        assert!(poisoned.borrow::<f32>(200).expect("there is room").iter().all(|x| x.is_nan()));
    }

    #[test]
    fn a_failed_allocation_is_an_error_of_its_own_run_only() {
        let buffers = Arc::new(Buffers::default());
        let [one, other] = [(); 2].map(|()| Scratch::new(&buffers, false));
        assert!(one.borrow::<f32>(usize::MAX).is_none() && one.borrow::<f64>(10).is_some());
        other.expect_done().expect("it has not failed");
        assert_eq!(one.expect_done().expect_err("too many bytes").kind(), ErrorKind::OutOfMemory);
        one.expect_done().expect("an error is reported once");
    }

    #[test]
    fn numbers_are_made_once_for_each_version() {
        let kept = Arc::new(Kept::default());
        let mut scratch = Scratch::default();
        assert!(scratch.prepared::<f32>(0, 1, |_| unreachable!("nothing is kept")).is_none());
        scratch.keep(&kept, false);
        let mut made = 0;
        for (step, version, number) in [(3, 7, 1.0), (3, 7, 1.0), (4, 7, 2.0), (3, 8, 3.0), (3, 8, 3.0), (3, 7, 4.0)] {
            scratch.begin(step, [None, Some(version)].into_iter(), &[]);
            let numbers = scratch.prepared::<f32>(1, 5, |numbers| {
                made += 1;
                numbers.fill(number);
            });
            assert!(matches!(&*numbers.expect("it stays the same"), HostBuffer::F32(found) if *found == [number; 5]));
            assert!(scratch.prepared::<f32>(0, 5, |_| unreachable!("it may differ")).is_none());
        }
        assert_eq!((made, kept.bytes()), (4, 40));
        scratch.begin(3, [None, Some(8)].into_iter(), &[]);
        let latest = scratch.prepared::<f32>(1, 5, |_| unreachable!("the earlier version did not replace it"));
        assert!(matches!(&*latest.expect("kept"), HostBuffer::F32(found) if *found == [3.0; 5]));
    }
}
