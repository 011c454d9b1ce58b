//! Reading device memory: buffers that the host can map, and waiting for copies into them.
//!
//! Small results of a run, such as a loss, are copied by the run's own commands ([`SmallResults`]). Reading one needs
//! no submission, and waits only for that run while later ones continue.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};

use super::memory::Buffer;
use super::recording::Recording;
use super::{Gpu, Inner, Until, lock};
use crate::host::{HostBuffer, try_filled};
#[cfg(not(target_family = "wasm"))]
use crate::wait::blocks;
use crate::{DType, Error, ErrorKind, Result, TensorType};

/// Registers a task to be woken with the others, only once even if it polls several times.
pub(super) fn wake_later(wakers: &mut Vec<Waker>, context: &Context<'_>) {
    if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
        wakers.push(context.waker().clone());
    }
}

/// `true` if this thread may block on the device; the main thread of a web page may not.
const MAY_WAIT: bool = cfg!(not(target_family = "wasm"));

/// The most runs in flight: enough to keep the device busy, few enough to bound the memory of waiting ones.
const RUNS_IN_FLIGHT: usize = 8;

/// The most bytes of all results that a run copies to the host.
pub(super) const SMALL: usize = 1 << 10;

/// The size of the staging buffers that are kept, and their number.
const STAGING_KEPT: (u64, usize) = (SMALL as u64, 16);

/// The most results that a run copies to the host.
const MOST_ALONG: usize = 16;

/// Commands that were submitted to the queue.
#[derive(Clone)]
pub(super) struct Submission {
    pub(super) number: u64,
    pub(super) index: wgpu::SubmissionIndex,
}

/// Submissions that may not be done yet, oldest first, with the recordings that they execute.
#[derive(Default)]
pub(super) struct InFlight {
    submissions: VecDeque<(Submission, Option<Arc<Recording>>)>,
    pub(super) submitted: u64,
    /// Tasks in a browser that wait for submissions.
    #[cfg(target_family = "wasm")]
    wakers: Vec<Waker>,
}

impl InFlight {
    /// Removes a submission and all earlier ones, which are done.
    fn take_until(&mut self, last: u64) -> Vec<(Submission, Option<Arc<Recording>>)> {
        let done = self.submissions.iter().take_while(|(submission, _)| submission.number <= last).count();
        self.submissions.drain(..done).collect()
    }
}

impl Inner {
    /// Submits commands. Natively it then waits for the oldest run if too many are in flight; in a browser,
    /// [`Gpu::room`] waits beforehand. A fault found here is returned by the next call that checks, as the commands are
    /// submitted.
    pub(super) fn submit(
        &self,
        commands: impl IntoIterator<Item = wgpu::CommandBuffer>,
        executed: Option<Arc<Recording>>,
    ) -> Submission {
        let (submission, oldest) = {
            let mut in_flight = lock(&self.in_flight);
            in_flight.submitted += 1;
            let index = self.spend(|host| &mut host.submit, || self.queue.submit(commands));
            let submission = Submission { number: in_flight.submitted, index };
            in_flight.submissions.push_back((submission.clone(), executed));
            let too_many = MAY_WAIT && in_flight.submissions.len() > RUNS_IN_FLIGHT;
            (submission, too_many.then(|| in_flight.submissions[0].0.clone()))
        };
        self.note_end(submission.number);
        if let Some(Err(error)) = oldest.map(|oldest| self.wait_for(&oldest)) {
            lock(&self.faults).error.get_or_insert(error);
        }
        submission
    }

    /// Retires a submission when it is done, and wakes the tasks that wait for that.
    #[cfg(target_family = "wasm")]
    fn note_end(&self, number: u64) {
        let in_flight = Arc::clone(&self.in_flight);
        self.queue.on_submitted_work_done(move || {
            let (done, wakers) = {
                let mut in_flight = lock(&in_flight);
                (in_flight.take_until(number), std::mem::take(&mut in_flight.wakers))
            };
            drop(done);
            wakers.into_iter().for_each(Waker::wake);
        });
    }

    /// Notes the end of a submission.
    #[cfg(not(target_family = "wasm"))]
    fn note_end(&self, number: u64) {
        let ended = Arc::clone(&self.ended);
        self.queue.on_submitted_work_done(move || {
            ended.fetch_max(number, Ordering::Relaxed);
        });
    }

    /// Waits for a submission, and so for all earlier ones.
    pub(super) fn wait_for(&self, submission: &Submission) -> Result<()> {
        let waited = self.spend(|host| &mut host.wait, || self.poll(Until::Done(submission)));
        self.retire(submission);
        waited
    }

    /// Drops the recordings of a submission and all earlier ones, which are done.
    fn retire(&self, last: &Submission) {
        let done = lock(&self.in_flight).take_until(last.number);
        drop(done);
    }

    /// `true` if fewer than `runs` runs are in flight. It does not wait with a timeout of zero: wgpu fails an assertion
    /// if another thread's poll ends between the wait and its check.
    #[cfg(not(target_family = "wasm"))]
    fn has_fewer_than(&self, runs: usize, _: &Context<'_>) -> bool {
        let last = {
            let submissions = &lock(&self.in_flight).submissions;
            submissions.len().checked_sub(runs).map(|at| submissions[at].0.clone())
        };
        let Some(last) = last else { return true };
        drop(self.poll_once(wgpu::PollType::Poll));
        let is_done = self.ended.load(Ordering::Relaxed) >= last.number;
        if is_done {
            self.retire(&last);
        }
        is_done
    }

    /// `true` if fewer than `runs` runs are in flight. If not, the task is woken when a run ends.
    #[cfg(target_family = "wasm")]
    fn has_fewer_than(&self, runs: usize, context: &Context<'_>) -> bool {
        let mut in_flight = lock(&self.in_flight);
        let is_done = in_flight.submissions.len() < runs;
        if !is_done {
            wake_later(&mut in_flight.wakers, context);
        }
        is_done
    }

    /// One poll of a future that waits for the device. Natively nothing else polls the device, so the task wakes
    /// itself.
    fn poll_pending<T>(&self, context: &Context<'_>) -> Poll<Result<T>> {
        #[cfg(target_family = "wasm")]
        let (polled, _) = (self.check(), context);
        #[cfg(not(target_family = "wasm"))]
        let polled = {
            context.waker().wake_by_ref();
            self.expect_linked().and_then(|()| self.poll(Until::Now))
        };
        polled.map_or_else(|error| Poll::Ready(Err(error)), |()| Poll::Pending)
    }

    /// A mappable buffer of at least this size.
    pub(super) fn staging(&self, bytes: u64) -> wgpu::Buffer {
        let kept = if bytes <= STAGING_KEPT.0 { lock(&self.staging).pop() } else { None };
        kept.unwrap_or_else(|| {
            self.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("read"),
                size: bytes.max(STAGING_KEPT.0),
                usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        })
    }
}

/// Numbers that have been copied to the host, or are on their way.
pub(super) struct Reading {
    staging: wgpu::Buffer,
    bytes: u64,
    pub(super) submission: Submission,
    /// Started when the numbers are first wanted.
    mapping: OnceLock<Arc<Mutex<Mapping>>>,
    kept: Arc<Mutex<Vec<wgpu::Buffer>>>,
}

/// The progress of mapping a buffer.
#[derive(Default)]
struct Mapping {
    ended: Option<Mapped>,
    /// Tasks that wait for the end.
    wakers: Vec<Waker>,
}

pub(super) type Mapped = Result<(), wgpu::BufferAsyncError>;

impl Reading {
    /// A reading of the first bytes of a buffer that submitted commands write.
    pub(super) fn new(gpu: &Inner, staging: wgpu::Buffer, bytes: u64, submission: Submission) -> Self {
        Self { staging, bytes, submission, mapping: OnceLock::new(), kept: Arc::clone(&gpu.staging) }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn mapping(&self) -> &Mutex<Mapping> {
        self.mapping.get_or_init(|| {
            let mapping = Arc::new(Mutex::new(Mapping::default()));
            let report = Arc::clone(&mapping);
            self.staging.map_async(wgpu::MapMode::Read, ..self.bytes, move |result| {
                let wakers = {
                    let mut mapping = lock(&report);
                    mapping.ended = Some(result);
                    std::mem::take(&mut mapping.wakers)
                };
                wakers.into_iter().for_each(Waker::wake);
            });
            mapping
        })
    }

    /// The result of mapping the buffer, once it is known.
    #[cfg(not(target_family = "wasm"))]
    pub(super) fn mapped(&self) -> Option<Mapped> {
        lock(self.mapping()).ended.clone()
    }

    /// Like [`Reading::mapped`]; wakes the task when the result is known.
    fn poll_mapped(&self, context: &Context<'_>) -> Poll<Mapped> {
        let mut mapping = lock(self.mapping());
        if let Some(mapped) = mapping.ended.clone() {
            return Poll::Ready(mapped);
        }
        wake_later(&mut mapping.wakers, context);
        Poll::Pending
    }

    /// Waits until the buffer is mapped.
    async fn ended(&self, gpu: &Inner) -> Result<Mapped> {
        #[cfg(not(target_family = "wasm"))]
        if blocks() {
            return self.wait(gpu);
        }
        poll_fn(|context| match self.poll_mapped(context) {
            Poll::Ready(mapped) => Poll::Ready(Ok(mapped)),
            Poll::Pending => gpu.poll_pending(context),
        })
        .await
    }

    /// The numbers from byte `offset` on.
    fn numbers(&self, gpu: &Inner, mapped: Mapped, offset: u64, ty: TensorType) -> Result<HostBuffer> {
        gpu.retire(&self.submission);
        // Buffers of a lost device are gone, even between mapping and reading them.
        let failed =
            |error: String| gpu.refusal(Error::new(ErrorKind::Device, format!("reading {ty} back failed: {error}")));
        mapped.map_err(|error| failed(error.to_string()))?;
        let range = offset..offset + ty.bytes() as u64;
        let bytes = self.staging.get_mapped_range(range).map_err(|error| failed(error.to_string()))?;
        Ok(match ty.dtype {
            DType::F32 => HostBuffer::F32(words(&bytes)?),
            DType::U32 => HostBuffer::U32(words(&bytes)?),
            DType::I32 => HostBuffer::I32(words(&bytes)?),
            DType::I64 => HostBuffer::I64(words(&bytes)?),
            DType::F64 => unreachable!("GPUs hold no f64"),
        })
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if self.mapping.get().is_some() {
            self.staging.unmap();
        }
        let mut kept = lock(&self.kept);
        if self.staging.size() == STAGING_KEPT.0 && kept.len() < STAGING_KEPT.1 {
            kept.push(self.staging.clone());
        }
    }
}

/// The bytes of a buffer as numbers.
fn words<T: bytemuck::Pod>(bytes: &[u8]) -> Result<Vec<T>> {
    let mut words = try_filled(bytes.len() / size_of::<T>(), T::zeroed())?;
    bytemuck::cast_slice_mut(&mut words).copy_from_slice(bytes);
    Ok(words)
}

/// The place of a buffer's numbers in a reading.
#[derive(Clone)]
pub(super) struct Copied {
    reading: Arc<Reading>,
    offset: u64,
}

/// A result of a plan that is copied to the host, and its place in the staging buffer.
#[derive(Debug, PartialEq)]
pub(super) struct Small {
    pub(super) output: usize,
    offset: u64,
    bytes: u64,
}

/// Given the bytes of a plan's results, selects those to copy to the host: the smallest.
pub(super) fn small(outputs: impl Iterator<Item = u64>) -> Vec<Small> {
    let mut sizes: Vec<_> = outputs.enumerate().filter(|(_, bytes)| *bytes <= STAGING_KEPT.0).collect();
    sizes.sort_by_key(|(_, bytes)| *bytes);
    let mut end = 0;
    let place = |(output, bytes): (usize, u64)| {
        let offset = end;
        end = (offset + bytes).next_multiple_of(wgpu::MAP_ALIGNMENT);
        (offset + bytes <= STAGING_KEPT.0).then_some(Small { output, offset, bytes })
    };
    sizes.into_iter().take(MOST_ALONG).map_while(place).collect()
}

/// The small results of a run. Launches always write them to the same place, so that one recording serves runs whose
/// results are kept. Commands after the launches copy each result to its tensor, and to the host.
pub(super) struct SmallResults<'a> {
    staging: wgpu::Buffer,
    /// For each result, the buffer where it is written, and its tensor.
    results: Vec<(&'a Small, &'a Buffer, &'a Buffer)>,
}

impl<'a> SmallResults<'a> {
    /// `None` if there are no results.
    pub(super) fn new(gpu: &Inner, results: Vec<(&'a Small, &'a Buffer, &'a Buffer)>) -> Option<Self> {
        (!results.is_empty()).then(|| Self { staging: gpu.staging(STAGING_KEPT.0), results })
    }

    /// Encodes the copies, after the run's launches.
    pub(super) fn encode(&self, encoder: &mut wgpu::CommandEncoder) {
        for (small, written, tensor) in &self.results {
            encoder.copy_buffer_to_buffer(written.raw(), 0, tensor.raw(), 0, small.bytes);
            encoder.copy_buffer_to_buffer(written.raw(), 0, &self.staging, small.offset, small.bytes);
        }
    }

    /// Notes where to read the results, once the commands are submitted.
    pub(super) fn note(self, gpu: &Inner, submission: &Submission) {
        let bytes = self.results.iter().map(|(small, ..)| small.offset + small.bytes).max().unwrap_or(0);
        let reading = Arc::new(Reading::new(gpu, self.staging, bytes, submission.clone()));
        for (small, _, tensor) in self.results {
            tensor.note_copy(Copied { reading: Arc::clone(&reading), offset: small.offset });
        }
    }
}

impl Gpu {
    /// Waits for all submitted work, if the thread may block; in a browser, only checks for faults.
    pub(crate) fn wait_here(&self) -> Result<()> {
        let last = lock(&self.0.in_flight).submitted;
        let waited = self.0.spend(|host| &mut host.wait, || self.0.poll(Until::AllDone));
        // Recordings are no longer in use. In a browser, callbacks report that.
        if MAY_WAIT {
            let done = lock(&self.0.in_flight).take_until(last);
            drop(done);
        }
        waited
    }

    /// Waits for all submitted work.
    pub(crate) async fn wait(&self) -> Result<()> {
        #[cfg(not(target_family = "wasm"))]
        if blocks() {
            return self.wait_here();
        }
        self.until_fewer_than(1).await?;
        // If an idle device is lost, only polling reveals it.
        self.0.poll(Until::Now)
    }

    /// Waits until another run may be in flight, so that submitting need not wait.
    pub(crate) async fn room(&self) -> Result<()> {
        #[cfg(not(target_family = "wasm"))]
        if blocks() {
            return Ok(());
        }
        self.until_fewer_than(RUNS_IN_FLIGHT).await
    }

    async fn until_fewer_than(&self, runs: usize) -> Result<()> {
        let fewer = |context: &mut Context<'_>| {
            let is_done = self.0.has_fewer_than(runs, context);
            if is_done { Poll::Ready(Ok(())) } else { self.0.poll_pending(context) }
        };
        poll_fn(fewer).await?;
        self.0.settle().await
    }

    /// The numbers of a buffer. Waits until they are written.
    pub(crate) async fn download(&self, from: &Buffer, ty: TensorType) -> Result<HostBuffer> {
        let Copied { reading, offset } = self.copied(from, ty)?;
        let mapped = reading.ended(&self.0).await?;
        // An earlier fault is a better error than the missing result.
        self.0.settle().await?;
        if !MAY_WAIT && mapped.is_err() {
            // Nothing was refused, so the device is gone. The browser's own notice may come later.
            lock(&self.0.faults).lost.get_or_insert_with(String::new);
            self.0.check()?;
        }
        reading.numbers(&self.0, mapped, offset, ty)
    }

    /// The numbers at the start of a reading. Waits for them.
    pub(super) async fn read(&self, reading: &Reading, ty: TensorType) -> Result<HostBuffer> {
        let mapped = reading.ended(&self.0).await?;
        reading.numbers(&self.0, mapped, 0, ty)
    }

    /// The host's copy of a buffer: made by the run that wrote it, or submitted now.
    fn copied(&self, from: &Buffer, ty: TensorType) -> Result<Copied> {
        self.0.check()?;
        if let Some(copied) = from.copied() {
            return Ok(copied);
        }
        self.0.reads.fetch_add(1, Ordering::Relaxed);
        let bytes = ty.bytes() as u64;
        let staging = self.0.staging(bytes);
        let mut encoder = self.0.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(from.raw(), 0, &staging, 0, bytes);
        let submission = self.0.submit([encoder.finish()], None);
        Ok(Copied { reading: Arc::new(Reading::new(&self.0, staging, bytes, submission)), offset: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST_ALONG, Small, small};

    #[test]
    fn small_results_are_placed_apart() {
        let of = |bytes: &[u64]| small(bytes.iter().copied());
        let place = |output, offset, bytes| Small { output, offset, bytes };
        assert_eq!(of(&[4000, 12, 4, 1 << 20]), [place(2, 0, 4), place(1, 8, 12)]);
        assert_eq!(of(&[1024, 4]), [place(1, 0, 4)]);
        assert_eq!(of(&[1024]), [place(0, 0, 1024)]);
        assert_eq!(of(&[1028]), []);
        assert_eq!(of(&[4; 100]).len(), MOST_ALONG);
    }
}
