//! Threads that make batches in advance.
//!
//! The loop hands out one job per batch, in order, and at most as many as it may be ahead; the next free thread takes
//! the next job. A job carries the channel for its answer, and the loop waits on these channels in order. So batches
//! cannot come out of order, and the jobs that were handed out and not yet answered bound the memory.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use super::Batch;
use super::recipe::Make;
use crate::{Error, ErrorKind, Result};

/// The threads, and the batches in progress.
pub(super) struct Loader<I, T> {
    recipe: Arc<dyn Make<I, T>>,
    /// `None` ends the threads.
    jobs: Option<Sender<Job<I, T>>>,
    /// The answers to the jobs in progress, in order.
    answers: VecDeque<Receiver<Answer<I, T>>>,
    /// The first batch without a job.
    unasked: usize,
    ahead: usize,
    /// The first batch that is still wanted.
    wanted_from: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

struct Job<I, T> {
    number: usize,
    answer: SyncSender<Answer<I, T>>,
}

/// `None` if the batch is no longer wanted.
type Answer<I, T> = Result<Option<Batch<I, T>>>;

impl<I: Send + 'static, T: Send + 'static> Loader<I, T> {
    /// Starts up to `workers` threads for the batches from `first` on.
    pub(super) fn new(recipe: &Arc<dyn Make<I, T>>, workers: usize, ahead: usize, first: usize) -> Result<Self> {
        let (jobs, taken) = channel();
        let taken = Arc::new(Mutex::new(taken));
        let mut loader = Self {
            recipe: Arc::clone(recipe),
            jobs: Some(jobs),
            answers: VecDeque::new(),
            unasked: first,
            ahead,
            wanted_from: Arc::new(AtomicUsize::new(first)),
            threads: Vec::new(),
        };
        for index in 0..workers.min(ahead).min(recipe.count() - first) {
            let (recipe, taken) = (Arc::clone(recipe), Arc::clone(&taken));
            let wanted_from = Arc::clone(&loader.wanted_from);
            let thread = thread::Builder::new().name(format!("meganeura data {index}"));
            let thread = thread.spawn(move || work(&*recipe, &taken, &wanted_from));
            // Dropping the loader here ends those that have started.
            loader.threads.push(thread.map_err(|error| {
                Error::new(ErrorKind::Io, format!("no thread could be started to make batches: {error}"))
                    .caused_by(error)
            })?);
        }
        Ok(loader)
    }

    /// Batch `number`, which must not precede the last one requested. Waits until it is finished.
    pub(super) fn batch(&mut self, number: usize) -> Option<Result<Batch<I, T>>> {
        self.wanted_from.store(number, Ordering::Relaxed);
        let front = self.unasked - self.answers.len();
        self.answers.drain(..(number - front).min(self.answers.len()));
        self.unasked = self.unasked.max(number);
        self.ask(number.saturating_add(self.ahead));
        let answer = self.answers.pop_front()?.recv();
        // Only now is one batch less in progress.
        self.ask(number.saturating_add(1).saturating_add(self.ahead));
        match answer {
            Ok(made) => made.transpose(),
            Err(_) => Some(Err(panicked(number, "the thread ended"))),
        }
    }

    /// Hands out jobs for the batches below `end`.
    fn ask(&mut self, end: usize) {
        let Some(jobs) = &self.jobs else { return };
        while self.unasked < end.min(self.recipe.count()) {
            let (answer, answered) = sync_channel(1);
            // If no thread remains, the answer's channel is closed, and the loop notices.
            drop(jobs.send(Job { number: self.unasked, answer }));
            self.answers.push_back(answered);
            self.unasked += 1;
        }
    }
}

impl<I, T> Drop for Loader<I, T> {
    /// Waits for the threads, each of which first finishes its current example.
    fn drop(&mut self) {
        self.wanted_from.store(usize::MAX, Ordering::Relaxed);
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // Its panics were sent as answers.
            drop(thread.join());
        }
    }
}

fn work<I, T>(recipe: &dyn Make<I, T>, jobs: &Mutex<Receiver<Job<I, T>>>, wanted_from: &AtomicUsize) {
    while let Some(Job { number, answer }) = next(jobs) {
        let make = || recipe.batch(number, &|| number >= wanted_from.load(Ordering::Relaxed));
        // The recipe never changes, so a panic leaves nothing half done.
        let made =
            catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(|payload| Err(panicked(number, said(&*payload))));
        // Nobody receives it if the batch was skipped.
        drop(answer.send(made));
    }
}

/// The next job; `None` once the loader is dropped. One thread waits for the job, the others for that thread's lock.
fn next<I, T>(jobs: &Mutex<Receiver<Job<I, T>>>) -> Option<Job<I, T>> {
    jobs.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

fn panicked(number: usize, said: &str) -> Error {
    Error::new(ErrorKind::Panic, format!("a thread that made batch {number} panicked: {said}"))
}

/// The message of a panic, which is text unless the program panicked with another value.
fn said(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("with no message")
}

#[cfg(test)]
mod tests {
    use std::sync::Condvar;
    use std::sync::Weak;
    use std::time::Duration;

    use super::*;
    use crate::Device;
    use crate::data::{Array, Batches, Dataset, Examples, HorizontalFlip, RandomCrop};

    const EXAMPLES: usize = 600;

    /// The log of the reads of a [`Watched`].
    #[derive(Default)]
    struct Log {
        /// The number of reads of each example.
        reads: Mutex<Vec<usize>>,
        changed: Condvar,
        /// The number of reads allowed so far.
        allowed: AtomicUsize,
        /// The number of reads beyond the allowed ones.
        beyond: AtomicUsize,
        threads: Mutex<Vec<thread::ThreadId>>,
    }

    impl Log {
        fn count(&self) -> usize {
            self.reads.lock().unwrap().len()
        }

        /// Waits until `count` examples have been read. The timeout only catches a loader that hangs.
        fn wait_for(&self, count: usize) {
            let waiting =
                self.changed.wait_timeout_while(self.reads.lock().unwrap(), Duration::from_secs(60), |reads| {
                    reads.len() < count
                });
            assert!(!waiting.unwrap().1.timed_out(), "{} of {count} examples were read", self.count());
        }
    }

    /// Examples `[1, 1, 2]` that record their reads. Example `i` is `(i, −i)` with label `i`; some fail.
    #[derive(Clone)]
    struct Watched {
        log: Arc<Log>,
        fails_at: Option<usize>,
        panics_at: Option<usize>,
    }

    impl Examples for Watched {
        type Inputs = Array<f32>;
        type Targets = u32;

        fn len(&self) -> usize {
            EXAMPLES
        }

        fn read(&self, index: usize) -> Result<(Array<f32>, u32)> {
            let mut reads = self.log.reads.lock().unwrap();
            reads.push(index);
            if reads.len() > self.log.allowed.load(Ordering::SeqCst) {
                self.log.beyond.fetch_add(1, Ordering::SeqCst);
            }
            drop(reads);
            self.log.threads.lock().unwrap().push(thread::current().id());
            self.log.changed.notify_all();
            assert_ne!(self.panics_at, Some(index), "example {index} is cursed");
            if self.fails_at == Some(index) {
                return Err(Error::new(ErrorKind::Data, format!("example {index} is damaged")));
            }
            // Lets threads overtake each other.
            thread::yield_now();
            Ok((Array::new(vec![index as f32, -(index as f32)], [1, 1, 2])?, index as u32))
        }
    }

    fn watched() -> (Dataset, Arc<Log>, Watched) {
        let log = Arc::new(Log { allowed: AtomicUsize::new(usize::MAX), ..Log::default() });
        let examples = Watched { log: Arc::clone(&log), fails_at: None, panics_at: None };
        (Dataset::of(examples.clone()).unwrap(), log, examples)
    }

    fn bits(batch: &Batch) -> (Vec<u32>, Vec<u32>) {
        let inputs = batch.inputs.to_vec().unwrap();
        (inputs.into_iter().map(f32::to_bits).collect(), batch.targets.to_u32_vec().unwrap())
    }

    fn all(batches: Batches) -> Vec<(Vec<u32>, Vec<u32>)> {
        batches.on(&Device::cpu()).map(|batch| bits(&batch.unwrap())).collect()
    }

    #[test]
    fn any_number_of_threads_gives_the_same_bits() {
        let (dataset, ..) = watched();
        let batches = dataset.batches(7).shuffle(3).epoch(1);
        let batches = batches.transform(RandomCrop::new(1, 2).padding(1)).transform(HorizontalFlip::new(0.5));
        let expected = all(batches.clone());
        assert_eq!(expected.len(), 86);
        for (workers, ahead) in [(1, 1), (1, 5), (2, 1), (3, 4), (16, 16), (40, 200)] {
            assert_eq!(
                all(batches.clone().workers(workers).ahead(ahead)),
                expected,
                "{workers} threads, {ahead} ahead"
            );
            let rest = all(batches.clone().workers(workers).skip(11));
            assert_eq!(rest, expected[11..], "{workers} threads");
            let some = batches.clone().workers(workers).ahead(ahead).on(&Device::cpu()).step_by(5);
            let some: Vec<_> = some.map(|batch| bits(&batch.unwrap())).collect();
            assert!(some.iter().eq(expected.iter().step_by(5)), "{workers} threads, {ahead} ahead");
        }
    }

    #[test]
    fn loaders_do_not_disturb_each_other() {
        let (dataset, ..) = watched();
        let batches = dataset.batches(3).shuffle(5).epoch(0).transform(HorizontalFlip::new(0.5));
        let expected = all(batches.clone());
        thread::scope(|scope| {
            for workers in 1..=8 {
                let (batches, expected) = (batches.clone().workers(workers), &expected);
                scope.spawn(move || (0..3).for_each(|_| assert_eq!(all(batches.clone()), *expected)));
            }
        });
    }

    #[test]
    fn never_further_ahead_than_allowed() {
        const SIZE: usize = 5;
        for (workers, ahead) in [(1, 1), (4, 2), (2, 6), (16, 16)] {
            let (dataset, log, _) = watched();
            let mut batches =
                dataset.batches(SIZE).shuffle(1).epoch(0).workers(workers).ahead(ahead).on(&Device::cpu());
            for taken in 0..EXAMPLES / SIZE {
                // The batch that the loop takes now, and `ahead` more.
                log.allowed.store((taken + 1 + ahead) * SIZE, Ordering::SeqCst);
                batches.next().unwrap().unwrap();
                // The workers do read that far ahead.
                log.wait_for(EXAMPLES.min((taken + 1 + ahead) * SIZE));
            }
            assert!(batches.next().is_none());
            assert_eq!(log.beyond.load(Ordering::SeqCst), 0, "{workers} threads, {ahead} ahead");
            assert_eq!(log.count(), EXAMPLES);
        }
    }

    #[test]
    fn skipped_batches_are_not_read() {
        for workers in [0, 4] {
            let (dataset, log, _) = watched();
            let batches = dataset.batches(10).workers(workers);
            let left: Vec<_> = batches.clone().skip(57).on(&Device::cpu()).map(Result::unwrap).collect();
            assert_eq!((left.len(), log.count()), (3, 30));
            // Skipping on the iterator, in a loop: `count()` would make one of the skipped batches and drop it.
            for batch in batches.clone().on(&Device::cpu()).skip(57) {
                batch.unwrap();
            }
            assert_eq!(log.count(), 60);
            assert!(log.reads.lock().unwrap().iter().all(|&index| index >= 570));
            drop(batches.skip(50).on(&Device::cpu()));
            assert_eq!(log.count(), 60, "nothing is read before it is asked for");
        }
    }

    #[test]
    fn errors_and_panics_reach_the_loop() {
        let (_, _, examples) = watched();
        let examples = Watched { fails_at: Some(17), panics_at: Some(42), ..examples };
        let log = Arc::clone(&examples.log);
        let dataset = Dataset::of(examples).unwrap();
        let batches = dataset.batches(10).workers(3);
        let results: Vec<_> = batches.on(&Device::cpu()).collect();
        assert_eq!(results.len(), 60);
        for (number, result) in results.iter().enumerate() {
            match number {
                1 => {
                    let error = result.as_ref().unwrap_err();
                    assert_eq!((error.kind(), error.message()), (ErrorKind::Data, "example 17 is damaged"));
                }
                4 => {
                    let error = result.as_ref().unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Panic);
                    assert!(
                        error.to_string().contains("batch 4") && error.to_string().contains("42 is cursed"),
                        "{error}"
                    );
                }
                _ => assert_eq!(bits(result.as_ref().unwrap()).1[0], 10 * number as u32),
            }
        }
        // Batches 1 and 4 stop at the failing example.
        assert_eq!(log.count(), EXAMPLES - 2 - 7);
        // Without workers, the error is the same.
        let error = dataset.batches(10).on(&Device::cpu()).nth(1).unwrap().unwrap_err();
        assert_eq!(error.message(), "example 17 is damaged");
    }

    #[test]
    fn a_dropped_loader_joins_its_threads_and_loses_nothing() {
        for taken in [0, 1, 7] {
            let (dataset, log, _) = watched();
            let expected = all(dataset.batches(10));
            let before = log.count();
            let mut batches = dataset.batches(10).workers(8).on(&Device::cpu());
            let mut seen: Vec<_> = (&mut batches).take(taken).map(|batch| bits(&batch.unwrap())).collect();
            let recipe = batches.loader().map(|loader| Arc::downgrade(&loader.recipe));
            let holders = || recipe.as_ref().map_or(0, Weak::strong_count);
            assert_eq!(holders() > 0, taken > 0);
            drop(batches);
            // Every thread had held it.
            assert_eq!(holders(), 0);
            let read = log.count() - before;
            assert!(read <= (taken + 16) * 10, "{read} examples for {taken} batches");
            seen.extend(all(dataset.batches(10).workers(8).skip(taken)));
            assert_eq!(seen, expected);
        }
    }

    #[test]
    fn the_threads_are_other_threads() {
        let (dataset, log, _) = watched();
        assert_eq!(dataset.batches(10).workers(2).on(&Device::cpu()).count(), 60);
        assert!(!log.threads.lock().unwrap().contains(&thread::current().id()));
    }
}
