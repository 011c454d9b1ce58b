//! The threads that compute: a pool of the framework's own, in which only plans run.
//!
//! While a pool thread waits for the parts of its work, it begins other work of the same pool. In a pool shared with
//! users, that might be a task that wants a parameter locked by the waiting run. So users cannot submit work to this
//! pool, and a thread that asks for a run sleeps until it is done, whichever pool the thread belongs to.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

use crate::{Error, ErrorKind, Result};

/// The number of processes on this host that compute at the same time.
static SHARERS: AtomicUsize = AtomicUsize::new(1);

/// Limits the pool, unless it has started, to its share of the cores among this many processes.
pub(crate) fn share_cores(processes: usize) {
    SHARERS.store(processes.max(1), Ordering::Relaxed);
}

/// The number of threads for this process's share of the cores; 0 leaves it to rayon.
fn share() -> usize {
    match SHARERS.load(Ordering::Relaxed) {
        1 => 0,
        _ if std::env::var_os("RAYON_NUM_THREADS").is_some() => 0,
        processes => (thread::available_parallelism().map_or(1, usize::from) / processes).max(1),
    }
}

/// The pool, started by the first run. `RAYON_NUM_THREADS` sets the number of threads, as for any rayon pool.
///
/// # Errors
///
/// Fails if the threads do not start.
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

/// Runs `work` in the threads of `pool` and sleeps until it is done; on one of these threads it runs at once. Returns
/// the state together with the result, or with the payload if `work` panicked.
pub(super) fn run<S: Send + 'static, R: Send + 'static>(
    pool: &ThreadPool,
    mut state: S,
    work: impl FnOnce(&mut S) -> R + Send + 'static,
) -> (S, thread::Result<R>) {
    let attempt = move || {
        let done = catch_unwind(AssertUnwindSafe(|| work(&mut state)));
        (state, done)
    };
    // Without threads, it runs right here.
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

    /// The only thread of a user's pool waits for a run while another task of that pool is ready.
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
