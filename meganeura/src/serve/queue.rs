//! A queue that makes batches of single requests.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{Answers, Batched};
use crate::data::{Fields, OnTape};
use crate::error::here;
use crate::{Error, ErrorKind, Result, Var};

/// The number of batches that may wait in the queue; further calls wait until there is room.
const BATCHES: usize = 4;

/// A queue in front of a [`Batched`] function: threads [`call`](Self::call) it with one example each, and it runs those
/// that wait together.
///
/// A batch runs when it is full, or when its first request has waited for the time given at the start. While a batch
/// runs, the next requests gather. The queue ends when it is dropped, after the requests that wait.
pub struct Queue<F, A: Answers = Var> {
    requests: Option<SyncSender<Request<F, A::Arrays>>>,
    worker: Option<JoinHandle<()>>,
    function: Arc<Batched<F, A>>,
}

struct Request<F, R> {
    example: F,
    answer: SyncSender<Result<R>>,
}

impl<F, A> Queue<F, A>
where
    F: Fields + Clone,
    A: Answers + 'static,
    <F::Stacked as Fields>::Tensors: OnTape,
{
    /// Starts a queue, and the thread that runs its batches. `patience` is the longest time that a request waits for
    /// others.
    #[must_use]
    pub fn start(function: Batched<F, A>, patience: Duration) -> Self {
        let function = Arc::new(function);
        let (requests, waiting) = sync_channel(BATCHES * function.largest());
        let of_worker = Arc::clone(&function);
        let work = move || {
            while let Some(batch) = gather(&waiting, of_worker.largest(), patience) {
                answer(&of_worker, batch);
            }
        };
        let worker = thread::Builder::new().name("meganeura-queue".to_owned()).spawn(work);
        // Without a thread, the channel is closed, and every call is an error that says so.
        Self { requests: Some(requests), worker: worker.ok(), function }
    }

    /// The result for an example, once its batch has run.
    ///
    /// # Errors
    ///
    /// Fails if the example has other shapes than the one that the function was compiled for, if the device fails, and
    /// if the queue has ended.
    #[track_caller]
    pub fn call(&self, example: F) -> Result<A::Arrays> {
        here(|| {
            // Other requests of the batch have nothing to do with it.
            self.function.expect(&example)?;
            let (answer, answered) = sync_channel(1);
            let ended = || Error::new(ErrorKind::Panic, "the queue has ended");
            let requests = self.requests.as_ref().ok_or_else(ended)?;
            requests.send(Request { example, answer }).map_err(|_| ended())?;
            answered.recv().map_err(|_| ended())?
        })
    }
}

/// The next batch; `None` when the queue has ended.
fn gather<R>(waiting: &Receiver<R>, most: usize, patience: Duration) -> Option<Vec<R>> {
    let mut batch = vec![waiting.recv().ok()?];
    let deadline = Instant::now() + patience;
    while batch.len() < most {
        match waiting.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(request) => batch.push(request),
            // The last requests are answered, too.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    Some(batch)
}

/// Runs a batch and answers its requests; each gets the error if there is one.
fn answer<F, A>(function: &Batched<F, A>, batch: Vec<Request<F, A::Arrays>>)
where
    F: Fields + Clone,
    A: Answers,
    <F::Stacked as Fields>::Tensors: OnTape,
{
    let (examples, answers): (Vec<_>, Vec<_>) =
        batch.into_iter().map(|Request { example, answer }| (example, answer)).unzip();
    let results = catch_unwind(AssertUnwindSafe(|| function.call(examples)))
        .unwrap_or_else(|panic| Err(Error::new(ErrorKind::Panic, format!("the function panicked: {}", said(&*panic)))));
    match results {
        // Nobody waits for an answer if the thread that asked has ended.
        Ok(results) => answers.iter().zip(results).for_each(|(answer, result)| drop(answer.send(Ok(result)))),
        Err(error) => answers.iter().for_each(|answer| drop(answer.send(Err(error.clone())))),
    }
}

/// The message of a panic.
fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("with no message")
}

impl<F, A: Answers> Drop for Queue<F, A> {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(worker) = self.worker.take() {
            drop(worker.join());
        }
    }
}

impl<F, A: Answers> fmt::Debug for Queue<F, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Array;
    use crate::nn::{BatchNorm1d, Linear};
    use crate::{Device, Init, Layer, Seed, Tape, Tensor};

    fn example(number: usize) -> Array<f32> {
        Array::from(vec![number as f32, 1.0 - number as f32])
    }

    /// A model, and its results for single examples.
    fn model() -> (impl Layer + Clone, Vec<Vec<f32>>) {
        let device = Device::cpu();
        let net = (Linear::new(2, 3), BatchNorm1d::new(3)).init(&device, Seed::new(1)).unwrap();
        let single = |number: usize| {
            let x = Tensor::from_slice(&device, [1, 2], example(number).values()).unwrap();
            net.forward(&Tape::inference(&device).input(&x)).to_vec().unwrap()
        };
        let expected = (0..40).map(single).collect();
        (net, expected)
    }

    fn near(found: &Array<f32>, expected: &[f32]) -> bool {
        found.values().iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5 * (1.0 + b.abs()))
    }

    #[test]
    fn batches_of_any_size_get_their_results() {
        let (net, expected) = model();
        let device = Device::cpu();
        let function = Batched::compile(&device, [8, 1, 3], example(0), |x| net.forward(x)).unwrap();
        let plans = device.stats().plans;
        for count in [0, 1, 2, 3, 5, 8, 9, 20] {
            let results = function.call((0..count).map(example).collect()).unwrap();
            assert_eq!(results.len(), count);
            assert!(results.iter().zip(&expected).all(|(found, expected)| near(found, expected)), "{count}");
        }
        assert_eq!(device.stats().plans, plans, "nothing was planned for a call");
        assert_eq!(format!("{function:?}"), format!("Batched([1, 3, 8] on {device})"));
        let error = function.call(vec![Array::from(vec![1.0])]).unwrap_err();
        assert!(
            error.to_string().contains("an example is f32[1], and the function was compiled for f32[2]"),
            "{error}"
        );
        for (sizes, shape) in [(vec![], true), (vec![0, 2], true), (vec![2], false)] {
            let net = net.clone();
            let compiled =
                Batched::compile(&device, sizes, example(0), |x| if shape { net.forward(x) } else { x.sum() });
            assert!(matches!(compiled.unwrap_err().kind(), ErrorKind::Argument | ErrorKind::Shape));
        }
    }

    #[test]
    fn a_function_may_give_several_results() {
        let (net, expected) = model();
        let both = |x: &Var| {
            let y = net.forward(x);
            (y.unsqueeze(1), y.sum_over(&[1]))
        };
        let queue = Queue::start(Batched::compile(&Device::cpu(), [1, 3], example(0), both).unwrap(), Duration::ZERO);
        for (number, expected) in expected.iter().enumerate().take(7) {
            let (row, sum) = queue.call(example(number)).unwrap();
            assert_eq!((row.shape().dims(), sum.shape().rank()), (&[1, 3][..], 0));
            assert!(near(&row, expected) && near(&sum, &[expected.iter().sum()]));
        }
        let list = |x: &Var| vec![net.forward(x), x * 2.0];
        let results = Batched::compile(&Device::cpu(), [2], example(0), list).unwrap();
        let results = results.call((0..5).map(example).collect()).unwrap();
        assert!((0..5).all(|at| near(&results[at][0], &expected[at]) && results[at][1].values()[0] == 2.0 * at as f32));
        // One of them without a row for each example.
        let wrong = |x: &Var| [net.forward(x), x.sum()];
        let error = Batched::compile(&Device::cpu(), [2], example(0), wrong).unwrap_err();
        assert!(error.kind() == ErrorKind::Shape && error.to_string().contains("not f32[]"), "{error}");
    }

    #[test]
    fn threads_get_their_own_results() {
        let (net, expected) = model();
        let function = Batched::compile(&Device::cpu(), [1, 4, 16], example(0), |x| net.forward(x)).unwrap();
        let queue = Queue::start(function, Duration::from_millis(5));
        thread::scope(|scope| {
            for (number, expected) in expected.iter().enumerate() {
                let queue = &queue;
                scope.spawn(move || {
                    for _ in 0..5 {
                        assert!(near(&queue.call(example(number)).unwrap(), expected));
                    }
                });
            }
        });
        // A wrong request is its own error, and the queue goes on.
        assert_eq!(queue.call(Array::from(vec![1.0])).unwrap_err().kind(), ErrorKind::Shape);
        assert!(near(&queue.call(example(3)).unwrap(), &expected[3]));
    }

    #[test]
    fn requests_are_gathered_until_the_batch_is_full_or_patience_ends() {
        let (sender, waiting) = sync_channel(10);
        let request = || Request { example: (), answer: sync_channel::<Result<()>>(1).0 };
        (0..5).for_each(|_| sender.send(request()).unwrap());
        let patience = Duration::from_millis(20);
        let started = Instant::now();
        assert_eq!(gather(&waiting, 4, Duration::from_secs(60)).unwrap().len(), 4);
        assert!(started.elapsed() < Duration::from_secs(30), "a full batch does not wait");
        let started = Instant::now();
        assert_eq!(gather(&waiting, 4, patience).unwrap().len(), 1);
        assert!(started.elapsed() >= patience);
        sender.send(request()).unwrap();
        drop(sender);
        assert_eq!(gather(&waiting, 4, Duration::from_secs(60)).unwrap().len(), 1, "what waits is answered");
        assert!(gather(&waiting, 4, patience).is_none());
    }
}
