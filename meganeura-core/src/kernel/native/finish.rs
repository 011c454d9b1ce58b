//! Elementwise work on the results of a kernel, before they leave the cache.

use std::iter::once;

use super::{Real, Shared, parallel};

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

/// Elementwise work on the elements of a kernel's result. A kernel calls it once for each element.
pub trait Finish<T>: Sync {
    /// Replaces the values of these runs.
    fn finish(&self, values: &mut [T], runs: &mut dyn Iterator<Item = Run>);
}

/// No work: the results of the operation alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plain;

impl<T> Finish<T> for Plain {
    fn finish(&self, _: &mut [T], _: &mut dyn Iterator<Item = Run>) {}
}

/// Elements of a task.
const TASK: usize = 1 << 14;

/// Finishes a whole result.
pub(crate) fn finish_all<T: Real>(y: &mut [T], finish: &dyn Finish<T>) {
    parallel(y, TASK, &|first, part| {
        let len = part.len();
        finish.finish(part, &mut once(Run { first, at: 0, len }));
    });
}

/// Finishes the values of some runs and writes them to the result.
///
/// # Safety
///
/// No other thread writes any of these elements.
pub(crate) unsafe fn store(
    y: &Shared<'_, f32>,
    values: &mut [f32],
    runs: impl Iterator<Item = Run> + Clone,
    finish: &dyn Finish<f32>,
) {
    finish.finish(values, &mut runs.clone());
    for Run { first, at, len } in runs {
        // SAFETY: the caller's promise.
        unsafe { y.write(first, &values[at..][..len]) };
    }
}
