//! Results that parallel tasks write in interleaved pieces, which cannot be split into disjoint slices.

use std::marker::PhantomData;

/// A slice of which each task writes different elements, such as some channels of all images.
#[derive(Debug)]
pub struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: whoever calls `write` or `part` promises that no two threads touch the same elements, and there is no other
// access.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T: Copy> Shared<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first element.
    pub(super) fn as_ptr(&self) -> *mut T {
        self.start
    }

    /// Writes `values` from element `at` on.
    ///
    /// # Safety
    ///
    /// No other thread writes any of these elements.
    ///
    /// # Panics
    ///
    /// If they do not all lie in the slice.
    #[inline(always)]
    pub(crate) unsafe fn write(&self, at: usize, values: &[T]) {
        assert!(at <= self.len && values.len() <= self.len - at, "writes stay in the slice");
        // SAFETY: the elements lie in the slice, which is borrowed for as long as `self` lives; nobody else touches
        // them.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), self.start.add(at), values.len()) }
    }

    /// Elements from number `at` on.
    ///
    /// # Safety
    ///
    /// Nobody else reads or writes any of these elements while this is borrowed.
    ///
    /// # Panics
    ///
    /// If they do not all lie in the slice.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "the caller promises that the parts are apart")]
    pub(crate) unsafe fn part(&self, at: usize, len: usize) -> &mut [T] {
        assert!(at <= self.len && len <= self.len - at, "parts lie in the slice");
        // SAFETY: the elements lie in the slice, which is borrowed for as long as `self` lives; nobody else touches
        // them.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }
}
