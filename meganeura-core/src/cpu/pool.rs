//! The threads that compute: pools of the framework's own, in which only plans run.
//!
//! While a pool thread waits for the parts of its work, it begins other work of the same pool. In a pool shared with
//! users, that might be a task that wants a parameter locked by the waiting run. So users cannot submit work to these
//! pools, and a thread that asks for a run sleeps until it is done, whichever pool the thread belongs to.
//!
//! If the other work is a whole run, the first one ends only after it. So a run that begins while others compute goes
//! to one of several smaller pools, which together have as many threads as the whole one: runs share the cores, and end
//! about in the order in which they began. Results do not depend on the number of threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder, Yield};
use web_time::Instant;

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

/// A smaller pool.
struct Part {
    pool: ThreadPool,
    /// The runs that it computes or has to.
    runs: AtomicUsize,
}

/// The most times that the threads are halved.
const HALVINGS: usize = 8;

/// The smaller pools, by the number of halvings, once they were needed. Together they have the threads of [`get`].
static PARTS: [OnceLock<Vec<Part>>; HALVINGS] = [const { OnceLock::new() }; HALVINGS];

/// The number of runs that compute or wait.
static RUNS: Mutex<usize> = Mutex::new(0);

/// How often so many threads are halved for so many runs at the same time: each gets one of the parts, until every part
/// is a thread.
fn halvings(threads: usize, runs: usize) -> usize {
    let log2 = |number: usize| number.next_power_of_two().ilog2() as usize;
    log2(runs).min(log2(threads)).min(HALVINGS)
}

/// The numbers of threads of the parts after so many halvings.
fn sizes(threads: usize, halvings: usize) -> impl Iterator<Item = usize> {
    let parts = (1 << halvings).min(threads);
    (0..parts).map(move |part| threads * (part + 1) / parts - threads * part / parts)
}

/// The parts after so many halvings, at least one; fewer if threads do not start.
fn parts(threads: usize, halvings: usize) -> &'static [Part] {
    let start = || {
        let pool = |(part, size): (usize, usize)| {
            let name = move |index| format!("meganeura cpu {index} of part {part}");
            let pool = ThreadPoolBuilder::new().num_threads(size).thread_name(name).build().ok()?;
            Some(Part { pool, runs: AtomicUsize::new(0) })
        };
        sizes(threads, halvings).enumerate().map_while(pool).collect()
    };
    PARTS[halvings - 1].get_or_init(start)
}

/// A run that has its threads until it is dropped.
struct Admitted {
    part: Option<&'static Part>,
}

impl Admitted {
    /// The whole pool for a run that is alone, else the smaller pool with the fewest runs.
    fn new(threads: usize) -> Self {
        let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
        *runs += 1;
        let part = match halvings(threads, *runs) {
            0 => None,
            halvings => parts(threads, halvings).iter().min_by_key(|part| part.runs.load(Ordering::Relaxed)),
        };
        if let Some(part) = part {
            part.runs.fetch_add(1, Ordering::Relaxed);
        }
        Self { part }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        *RUNS.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        if let Some(part) = self.part {
            part.runs.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// `true` on a thread of any of the pools.
fn is_own(pool: &ThreadPool) -> bool {
    let is_of = |part: &Part| part.pool.current_thread_index().is_some();
    pool.current_thread_index().is_some() || PARTS.iter().filter_map(OnceLock::get).flatten().any(is_of)
}

/// How long a thread stays awake without work while a run goes on: far longer than the steps of a small model take, and
/// than threads take to wake up.
const AWAKE: Duration = Duration::from_micros(500);

/// How long another program may have the core of such a thread. From there on the core is wanted elsewhere.
const YIELDED: Duration = Duration::from_micros(50);

/// While it lives, the other threads of a run's pool stay awake between its steps. To wake a thread takes some ten
/// microseconds, as long as many a step.
struct Awake(Arc<AtomicBool>);

impl Awake {
    /// On a thread of the pool.
    fn new() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let own = rayon::current_thread_index();
        for _ in 1..rayon::current_num_threads() {
            let is_over = Arc::clone(&is_over);
            // The thread of the run itself comes here while it waits for others; it has more to do.
            rayon::spawn(move || {
                if rayon::current_thread_index() != own {
                    stay_awake(&is_over);
                }
            });
        }
        Self(is_over)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does the pool's work until a run is over, until there has been none for a while, or until other programs need the
/// core.
fn stay_awake(is_over: &AtomicBool) {
    let mut since = Instant::now();
    while !is_over.load(Ordering::Relaxed) {
        let before = Instant::now();
        if rayon::yield_now() == Some(Yield::Executed) {
            since = Instant::now();
            continue;
        }
        thread::yield_now();
        if before.elapsed() > YIELDED || since.elapsed() > AWAKE {
            return;
        }
    }
}

/// Runs `work` in the threads of `pool`, or of a smaller one while others run, and sleeps until it is done; on one of
/// these threads it runs at once. Returns the state together with the result, or with the payload if `work` panicked.
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
    if cfg!(target_family = "wasm") || is_own(pool) {
        return attempt();
    }
    let admitted = Admitted::new(pool.current_num_threads());
    let pool = admitted.part.map_or(pool, |part| &part.pool);
    let (answer, answered) = sync_channel(1);
    // Not `install`: on a thread of another pool, that begins tasks of that pool while it waits.
    pool.spawn(move || {
        let awake = Awake::new();
        let done = attempt();
        drop(awake);
        drop(answer.send(done));
    });
    answered.recv().expect("panics are caught, so there is an answer")
}

#[cfg(test)]
mod tests {
    use rayon::prelude::*;

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

    #[test]
    fn runs_at_the_same_time_share_the_threads() {
        let of = |threads, runs| sizes(threads, halvings(threads, runs)).collect::<Vec<_>>();
        assert_eq!(of(8, 1), [8]);
        assert_eq!(of(8, 2), [4, 4]);
        assert_eq!([of(8, 3), of(8, 4)], [[2; 4], [2; 4]]);
        assert_eq!(of(8, 100), [1; 8]);
        assert_eq!(of(6, 3), [1, 2, 1, 2]);
        assert_eq!(of(6, 9), [1; 6]);
        assert_eq!(of(1, 5), [1]);
        assert_eq!(of(1000, 1000).len(), 256);
    }

    /// Many runs begin and end at the same time, on whichever pools; each begins its parts in one of them.
    #[test]
    fn a_run_stays_in_its_pool() {
        let pool_of = |name: String| name.split_once(" of ").map(|(_, part)| part.to_owned());
        let work = move |(): &mut ()| {
            let names: Vec<_> = (0..64).into_par_iter().map(|_| pool_of(name())).collect();
            let nested = run((), |()| name()).1.unwrap();
            let own = pool_of(name());
            names.into_iter().chain([pool_of(nested)]).all(|pool| pool == own)
        };
        thread::scope(|scope| {
            let runs: Vec<_> = (0..16).map(|_| scope.spawn(move || run((), work).1.unwrap())).collect();
            assert!(runs.into_iter().all(|run| run.join().unwrap()));
        });
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
