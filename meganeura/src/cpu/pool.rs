//! The threads that compute: a pool of the framework's own, in which nothing runs but plans.
//!
//! A thread of a pool that waits for the parts of its work begins other work of the same pool meanwhile. In a pool that
//! users share, that may be a task that wants a parameter which the waiting run holds. So plans run in a pool that
//! users put no work into, and whoever asks for a run sleeps until it is done, whichever pool the asking thread belongs
//! to.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

use crate::{Error, ErrorKind, Result};

/// How many processes of this host compute at a time.
static SHARERS: AtomicUsize = AtomicUsize::new(1);

/// Lets the pool, if it has not started yet, have its share of the cores among so many processes.
pub(crate) fn share_cores(processes: usize) {
    SHARERS.store(processes.max(1), Ordering::Relaxed);
}

/// The threads of this process's share of the cores; 0 leaves it to rayon.
fn share() -> usize {
    match SHARERS.load(Ordering::Relaxed) {
        1 => 0,
        _ if std::env::var_os("RAYON_NUM_THREADS").is_some() => 0,
        processes => (thread::available_parallelism().map_or(1, usize::from) / processes).max(1),
    }
}

/// The pool, started by the first run. `RAYON_NUM_THREADS` sets the number of threads, as of any pool of rayon's.
///
/// # Errors
///
/// If the threads do not start.
pub(super) fn get() -> Result<&'static ThreadPool> {
    static POOL: OnceLock<Result<ThreadPool, ThreadPoolBuildError>> = OnceLock::new();
    let start = || {
        let pool = ThreadPoolBuilder::new().num_threads(share());
        if cfg!(target_family = "wasm") {
            return pool.num_threads(1).use_current_thread().build();
        }
        pool.thread_name(|index| format!("meganeura cpu {index}")).build()
    };
    POOL.get_or_init(start).as_ref().map_err(|error| {
        Error::new(ErrorKind::Device, format!("the threads that compute on the CPU did not start: {error}"))
    })
}

/// The number of threads that compute.
pub(crate) fn threads() -> usize {
    get().map_or(1, ThreadPool::current_num_threads)
}

/// Runs `work` among the threads of `pool` and waits for it, doing nothing else meanwhile; on one of these threads it
/// runs at once. Gives the state back together with the result, or with what `work` panicked with.
pub(super) fn run<S: Send + 'static, R: Send + 'static>(
    pool: &ThreadPool,
    mut state: S,
    work: impl FnOnce(&mut S) -> R + Send + 'static,
) -> (S, thread::Result<R>) {
    let attempt = move || {
        let done = catch_unwind(AssertUnwindSafe(|| work(&mut state)));
        (state, done)
    };
    // Where there are no threads, the pool is this one.
    if cfg!(target_family = "wasm") || pool.current_thread_index().is_some() {
        return attempt();
    }
    let (answer, answered) = sync_channel(1);
    // Not `install`: on a thread of another pool, that begins tasks of that pool while it waits.
    pool.spawn(move || drop(answer.send(attempt())));
    answered.recv().expect("panics are caught, so there is an answer")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    fn name() -> String {
        thread::current().name().unwrap_or_default().to_owned()
    }

    fn run<S: Send + 'static, R: Send + 'static>(
        state: S,
        work: impl FnOnce(&mut S) -> R + Send + 'static,
    ) -> (S, thread::Result<R>) {
        super::run(get().unwrap(), state, work)
    }

    #[test]
    fn work_runs_on_the_pools_threads_and_nested_work_on_the_same() {
        let ((), names) = run((), |()| (name(), run((), |()| name()).1.unwrap()));
        let (outer, inner) = names.unwrap();
        assert!(outer.starts_with("meganeura cpu ") && inner == outer, "{outer}, {inner}");
    }

    #[test]
    fn the_state_comes_back_from_a_panic() {
        let (state, done) = run(vec![1], |state| -> () {
            state.push(2);
            panic!("a kernel's");
        });
        assert_eq!((state, done.unwrap_err().downcast_ref::<&str>()), (vec![1, 2], Some(&"a kernel's")));
    }

    /// The only thread of a user's pool asks for a run while another task of that pool is waiting to begin.
    #[test]
    fn a_thread_that_waits_begins_nothing_else() {
        let users = ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let begun = Arc::new(AtomicBool::new(false));
        let seen = users.scope(|scope| {
            scope.spawn(|_| begun.store(true, Ordering::SeqCst));
            let seen = Arc::clone(&begun);
            let wait = move |(): &mut ()| {
                thread::sleep(Duration::from_millis(50));
                seen.load(Ordering::SeqCst)
            };
            run((), wait).1.unwrap()
        });
        assert!(!seen, "the waiting thread began the other task");
        assert!(begun.load(Ordering::SeqCst));
    }
}
