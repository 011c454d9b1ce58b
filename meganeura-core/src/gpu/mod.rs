//! The GPU executor, through wgpu: Vulkan, Metal and DirectX 12. The only code that uses wgpu and, below it, Vulkan.
//!
//! It knows plans and their launches, but not what an operation means.

mod adapter;
#[cfg(not(target_family = "wasm"))]
mod blocking;
mod collective;
mod encoding;
mod executable;
#[cfg(target_os = "linux")]
mod link;
#[cfg(not(target_os = "linux"))]
#[path = "no_link.rs"]
mod link;
mod matrix;
mod memory;
mod pipelines;
#[cfg(feature = "testing")]
mod planned;
mod reading;
mod recording;
mod timer;
#[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
mod vulkan;
#[cfg(not(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd")))]
#[path = "no_vulkan.rs"]
mod vulkan;

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use web_time::Instant;

pub(crate) use executable::Executable;
pub(crate) use link::without_link;
pub(crate) use memory::Buffer;
pub(crate) use pipelines::PipelineCounts;
#[cfg(feature = "testing")]
pub use planned::PlannedKernel;
#[cfg(feature = "testing")]
pub(crate) use planned::{Absent, plan_for};
pub(crate) use recording::Times;

use crate::error::bail;
use crate::executor::HostTimes;
use crate::host::HostBuffer;
use crate::kernel::launch::Caps;
use crate::wait::now;
use crate::{Error, ErrorKind, Result, TensorType};
use executable::Recordings;
use matrix::Probe;
use memory::MemoryPool;
use pipelines::Pipelines;
use reading::{InFlight, Submission, wake_later};
use vulkan::Vulkan;

/// An open adapter. Cheap to clone; clones are the same adapter.
#[derive(Clone)]
pub(crate) struct Gpu(Arc<Inner>);

struct Inner {
    name: String,
    device: wgpu::Device,
    queue: wgpu::Queue,
    limits: wgpu::Limits,
    caps: Caps,
    /// The features that the adapter lacks for kernels on matrix units.
    missing: Vec<&'static str>,
    /// The result of the probe of matrix units, after the first request for them.
    matrix: OnceLock<Probe>,
    memory: Arc<MemoryPool>,
    /// The adapter's place on the PCI bus.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "NCCL knows GPUs by it"))]
    bus: String,
    /// The link to the GPUs of other ranks.
    #[cfg(target_os = "linux")]
    link: OnceLock<link::Link>,
    /// Vulkan below wgpu, where available, to record launches.
    vulkan: Option<Vulkan>,
    pipelines: Pipelines,
    /// The recordings of all living executables.
    executables: Mutex<Vec<Weak<Mutex<Recordings>>>>,
    /// The slots that all plans share, and the buffer of host words. Only one run at a time encodes with them.
    arena: Mutex<executable::Arena>,
    faults: Arc<Mutex<Faults>>,
    in_flight: Arc<Mutex<InFlight>>,
    /// Spare buffers for small readings.
    staging: Arc<Mutex<Vec<wgpu::Buffer>>>,
    /// The number of copies submitted to read a tensor.
    reads: AtomicU64,
    /// The number of the last submission that is known to be done.
    #[cfg_attr(target_family = "wasm", expect(dead_code, reason = "tasks are woken at the end"))]
    ended: Arc<AtomicU64>,
    /// The nanoseconds of the last wait for a reading.
    #[cfg_attr(target_family = "wasm", expect(dead_code, reason = "pages do not block"))]
    waited: AtomicU64,
    /// Polls that threads are in now. Any of them may be about to report that the device is lost.
    polling: AtomicUsize,
    /// The host's time spent in this executor.
    host: Mutex<HostTimes>,
}

/// The most milliseconds to wait for a loss that another thread's poll revealed: it reports at once, when it runs.
#[cfg(not(target_family = "wasm"))]
const MOST_REPORTING: usize = 100;

/// Faults that the driver reported outside any call.
#[derive(Default)]
struct Faults {
    lost: Option<String>,
    error: Option<Error>,
    /// Error scopes that a browser has not answered yet.
    asked: VecDeque<Answer>,
    waiting: Arc<Waiting>,
}

/// Tasks that wait for a browser's answers. All are woken, since any of them may be dropped.
#[derive(Default)]
struct Waiting(Mutex<Vec<Waker>>);

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        let wakers = std::mem::take(&mut *lock(&self.0));
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// The error caught by an error scope.
type Answer = Pin<Box<dyn Future<Output = Option<wgpu::Error>> + Send>>;

/// The end of a poll of the device.
#[derive(Clone, Copy)]
enum Until<'a> {
    Now,
    /// A submission is done, and so all earlier ones.
    Done(&'a Submission),
    AllDone,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each mutex holds plain data that a panic cannot leave half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Faults {
    fn note(&mut self, error: wgpu::Error) {
        self.error.get_or_insert(fault(error));
    }

    /// The error that a scope caught. In a browser it is not known yet, and [`Inner::settle`] notes it later.
    fn caught(faults: &Mutex<Self>, scope: wgpu::ErrorScopeGuard) -> Option<wgpu::Error> {
        let mut answer: Answer = Box::pin(scope.pop());
        now(&mut answer).unwrap_or_else(|| {
            lock(faults).asked.push_back(answer);
            None
        })
    }
}

fn fault(error: wgpu::Error) -> Error {
    match error {
        wgpu::Error::OutOfMemory { .. } => Error::new(ErrorKind::OutOfMemory, "the device has no memory left"),
        wgpu::Error::Validation { description, .. } | wgpu::Error::Internal { description, .. } => {
            Error::new(ErrorKind::Device, format!("the device refused a command: {description}"))
        }
    }
}

impl Inner {
    /// Adds the time of some work to one of the host's times.
    fn spend<T>(&self, part: fn(&mut HostTimes) -> &mut Duration, work: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let done = work();
        *part(&mut lock(&self.host)) += begin.elapsed();
        done
    }

    /// Returns the fault that the driver reported since the last call, if any. A lost device stays lost.
    fn check(&self) -> Result<()> {
        let error = lock(&self.faults).error.take();
        if error.is_some() {
            // A command may have been refused because the device is lost.
            self.reveal_loss();
        }
        if let Some(why) = &lock(&self.faults).lost {
            self.abandon_link();
            let why = if why.is_empty() { String::new() } else { format!(": {why}") };
            bail!(
                DeviceLost,
                "{} was lost{why}. Its tensors are gone; open the device anew and load the last checkpoint there",
                self.name
            );
        }
        error.map_or(Ok(()), Err)
    }

    /// Waits for a browser's answers about earlier commands.
    async fn settle(&self) -> Result<()> {
        // An answer stays in the list until it is ready: this future may be dropped, and others may wait for the same
        // answer.
        let settled = |context: &mut Context<'_>| {
            let mut faults = lock(&self.faults);
            let waiting = Arc::clone(&faults.waiting);
            wake_later(&mut lock(&waiting.0), context);
            let waker = Waker::from(waiting);
            while let Some(answer) = faults.asked.front_mut() {
                let Poll::Ready(caught) = answer.as_mut().poll(&mut Context::from_waker(&waker)) else {
                    return Poll::Pending;
                };
                faults.asked.pop_front();
                if let Some(error) = caught {
                    if matches!(error, wgpu::Error::OutOfMemory { .. }) {
                        self.memory.distrust();
                    }
                    faults.note(error);
                }
            }
            Poll::Ready(())
        };
        poll_fn(settled).await;
        self.check()
    }

    /// The reason why the device refused commands, found by polling it; else `otherwise`.
    fn refusal(&self, otherwise: Error) -> Error {
        self.reveal_loss();
        self.check().err().unwrap_or(otherwise)
    }

    /// Notes whether the device is lost: polling reveals that, once it has finished its work. If another thread's poll
    /// revealed it, that thread reports it.
    fn reveal_loss(&self) {
        drop(self.poll_device(Until::AllDone));
        #[cfg(not(target_family = "wasm"))]
        for _ in 0..MOST_REPORTING {
            if self.polling.load(Ordering::Acquire) == 0 || lock(&self.faults).lost.is_some() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn poll(&self, until: Until<'_>) -> Result<()> {
        let polled = self.poll_device(until);
        self.check()?;
        polled.map_err(|error| Error::new(ErrorKind::Device, "waiting for the device failed").caused_by(error))
    }

    /// Polls the device. Notes the loss of the device, or of a rank that commands wait for, and releases those
    /// commands.
    fn poll_device(&self, until: Until<'_>) -> Result<(), wgpu::PollError> {
        let (last, until) = match until {
            Until::Now => return self.poll_once(wgpu::PollType::Poll).map(drop),
            Until::Done(submission) => (submission.number, Some(submission.index.clone())),
            Until::AllDone => (lock(&self.in_flight).submitted, None),
        };
        self.wait_linked(last);
        let polled = self.poll_once(wgpu::PollType::Wait { submission_index: until, timeout: None });
        // An exchange of mismatched sizes may have ended without an error, so the ranks are checked here too.
        self.note_lost_ranks();
        polled.map(drop)
    }

    /// Notes a rank that was lost or entered a different exchange. Commands that wait for it are released.
    fn note_lost_ranks(&self) {
        if let Err(error) = self.expect_linked() {
            lock(&self.faults).error.get_or_insert(error);
        }
    }

    /// A single poll for [`Inner::poll_device`]. wgpu panics if the driver loses the device during a wait.
    fn poll_once(&self, until: wgpu::PollType) -> Result<wgpu::PollStatus, wgpu::PollError> {
        self.polling.fetch_add(1, Ordering::AcqRel);
        let polled = catch_unwind(AssertUnwindSafe(|| self.device.poll(until))).unwrap_or_else(|_| {
            let why = || "the driver failed during a wait".to_owned();
            lock(&self.faults).lost.get_or_insert_with(why);
            Ok(wgpu::PollStatus::QueueEmpty)
        });
        self.polling.fetch_sub(1, Ordering::AcqRel);
        polled
    }

    /// Clears a new buffer. wgpu clears a buffer before its own first use of it, which would erase what launches below
    /// wgpu have written by then.
    fn clear(&self, buffer: &Buffer) {
        if self.vulkan.is_some() {
            let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            encoder.clear_buffer(buffer.raw(), 0, None);
            self.queue.submit([encoder.finish()]);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Recordings must not lose their buffers and pipelines while they run. Nobody is left to receive a fault.
        drop(self.poll_device(Until::AllDone));
    }
}

impl Gpu {
    /// The capabilities that kernels may rely on. Set `matrix` to use matrix units, which must have passed the probe.
    pub(crate) fn caps(&self, matrix: bool) -> Caps {
        let probe = self.0.matrix.get().filter(|_| matrix);
        let [bf16_units, fragments] = probe.map_or([false; 2], |probe| [probe.bf16, probe.fragments]);
        Caps { matrix, bf16: matrix, bf16_units, fragments, linked: self.0.is_linked(), ..self.0.caps }
    }

    pub(crate) fn reads(&self) -> u64 {
        self.0.reads.load(Ordering::Relaxed)
    }

    /// The device's host times, plus the time spent in this executor.
    pub(crate) fn host_times(&self, device: HostTimes) -> HostTimes {
        let HostTimes { bind, encode, submit, wait, .. } = *lock(&self.0.host);
        HostTimes { bind: device.bind + bind, encode, submit, wait, ..device }
    }

    /// `true` if both can use each other's buffers.
    pub(crate) fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn pipeline_counts(&self) -> PipelineCounts {
        self.0.pipeline_counts()
    }

    /// For tests: limits the adapter to this many bytes from now on; 0 is no limit.
    #[cfg(feature = "testing")]
    pub(crate) fn limit_memory(&self, bytes: u64) {
        self.0.memory.limit.store(bytes, Ordering::Relaxed);
    }

    /// For tests: the driver loses the adapter, and reports that at once or when it is next polled.
    #[cfg(feature = "testing")]
    pub(crate) fn lose(&self, at_once: bool) {
        self.0.device.destroy();
        if at_once {
            drop(self.wait_here());
        }
    }

    pub(crate) fn peak_bytes(&self) -> u64 {
        self.0.memory.peak()
    }

    /// Fails with the reason if runs cannot be timed.
    pub(crate) fn expect_timing(&self) -> Result<()> {
        self.0.expect_timing()
    }

    /// The most bytes that one buffer may hold.
    fn most_bytes(&self) -> u64 {
        self.0.caps.buffer as u64
    }

    /// Refuses a size that no buffer of the device can have.
    pub(crate) fn expect_fits(&self, bytes: usize) -> Result<()> {
        let most = self.most_bytes();
        if bytes as u64 > most {
            bail!(OutOfMemory, "needs {bytes} bytes, but {} allows at most {most} in one buffer", self.0.name);
        }
        Ok(())
    }

    /// Memory for a tensor of this many bytes.
    fn allocate(&self, bytes: usize) -> Result<Arc<Buffer>> {
        let Inner { device, memory, faults, .. } = &*self.0;
        self.expect_fits(bytes)?;
        let size = memory::size_class(bytes).min(self.most_bytes());
        if let Some(buffer) = memory.reuse(size) {
            return Ok(buffer);
        }
        let buffer = memory.create(device, faults, size).or_else(|_| {
            self.make_room()?;
            memory.create(device, faults, size).map_err(|error| error.context(format!("needs {bytes} bytes")))
        })?;
        self.0.clear(&buffer);
        Ok(buffer)
    }

    /// Frees unused memory. Recordings would keep it alive, so they are dropped.
    fn make_room(&self) -> Result<()> {
        self.forget_recordings();
        self.0.memory.release_unused();
        self.wait_here()
    }

    /// Drops the recordings that executables keep; the next run of each records again.
    fn forget_recordings(&self) {
        for recordings in lock(&self.0.executables).iter().filter_map(Weak::upgrade) {
            lock(&recordings).clear();
        }
    }

    pub(crate) fn upload(&self, host: &HostBuffer, ty: TensorType) -> Result<Arc<Buffer>> {
        self.0.check()?;
        let buffer = self.allocate(ty.bytes()).map_err(|error| error.context(format!("a tensor {ty}")))?;
        self.0.queue.write_buffer(buffer.raw(), 0, host.bytes());
        // The queue may have run out of memory for the transfer.
        self.0.check().map_err(|error| error.context(format!("a tensor {ty}")))?;
        Ok(buffer)
    }

    pub(crate) fn copy(&self, from: &Buffer, ty: TensorType) -> Result<Arc<Buffer>> {
        self.0.check()?;
        let to = self.allocate(ty.bytes()).map_err(|error| error.context(format!("a copy of a tensor {ty}")))?;
        let mut encoder = self.0.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(from.raw(), 0, to.raw(), 0, ty.bytes() as u64);
        self.0.submit([encoder.finish()], None);
        Ok(to)
    }
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name)
    }
}
