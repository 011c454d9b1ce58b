//! Hints to the processor about what is read soon.

/// Bytes of a line of the caches.
const LINE: usize = 64;

/// Fetches a part of `x` into the caches. It may go on behind the end.
#[inline(always)]
pub(crate) fn prefetch<T>(x: &[T], first: usize, len: usize) {
    for at in (first..first + len).step_by(LINE / size_of::<T>()) {
        prefetch_line(x.as_ptr().wrapping_add(at));
    }
}

/// Fetches the line of a place into the caches. The place may be outside of any memory.
#[inline(always)]
pub(crate) fn prefetch_line<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every such processor has the instruction, and it ignores places that cannot be read.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
