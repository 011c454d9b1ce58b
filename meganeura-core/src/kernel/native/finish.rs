//! Elementwise work on the results of a kernel, before they leave the cache.

use super::{Affine, Real, Shared, parallel};

/// Adjacent elements of a result, in a kernel's own memory.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The number of the first in the result.
    pub first: usize,
    /// The place of the first in the kernel's memory.
    pub at: usize,
    /// The number of elements.
    pub len: usize,
}

/// Elementwise work on the elements of a kernel's result. A kernel has it done once for each element.
pub trait Finish<T: Copy>: Sync {
    /// Replaces neighbouring values, from element `first` of the result on.
    fn finish(&self, first: usize, y: &mut [T]);

    /// The work, if all of it has this form.
    fn affine(&self) -> Option<&Affine<'_, T>> {
        None
    }

    /// The first part of the work, if it has this form.
    fn first(&self) -> Option<&Affine<'_, T>> {
        self.affine()
    }

    /// Does what follows the first part to neighbouring values, from element `first` of the result on.
    fn after_first(&self, first: usize, y: &mut [T]) {
        let _ = (first, y);
    }

    /// Finishes the values of some runs into the result.
    ///
    /// # Safety
    ///
    /// No other thread reads or writes any of these elements.
    unsafe fn store(&self, values: &[T], runs: &mut dyn Iterator<Item = Run>, y: &Shared<'_, T>) {
        for Run { first, at, len } in runs {
            // SAFETY: the caller's promise.
            let y = unsafe { y.part(first, len) };
            y.copy_from_slice(&values[at..][..len]);
            self.finish(first, y);
        }
    }
}

/// No work: the results of the operation alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plain;

impl<T: Copy> Finish<T> for Plain {
    fn finish(&self, _: usize, _: &mut [T]) {}
}

/// Elements of a task.
const TASK: usize = 1 << 14;

/// Finishes a whole result.
pub(crate) fn finish_all<T: Real>(y: &mut [T], finish: &dyn Finish<T>) {
    parallel(y, TASK, &|first, part| finish.finish(first, part));
}
