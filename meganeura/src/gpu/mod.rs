//! The GPU executor, through wgpu: Vulkan, Metal and DirectX 12. The only place that knows wgpu, and, below it, Vulkan.
//!
//! Knows plans and their launches, not what an operation means.

mod adapter;
mod encoding;
mod exchange;
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
use std::sync::atomic::{AtomicU64, Ordering};
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
use memory::Memory;
use pipelines::Pipelines;
use reading::{InFlight, wake_later};
use vulkan::Vulkan;

/// An adapter, opened. Cheap to clone; clones are the same.
#[derive(Clone)]
pub(crate) struct Gpu(Arc<Inner>);

struct Inner {
    name: String,
    device: wgpu::Device,
    queue: wgpu::Queue,
    limits: wgpu::Limits,
    caps: Caps,
    /// What the adapter lacks of what kernels on matrix units need.
    missing: Vec<&'static str>,
    /// Whether matrix units are used, and for what, once they were asked for.
    matrix: OnceLock<Probe>,
    memory: Arc<Memory>,
    /// Where the adapter is on the PCI bus.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "NCCL knows GPUs by it"))]
    bus: String,
    /// The way to the GPUs of other ranks. Before Vulkan, which it needs to be dropped.
    #[cfg(target_os = "linux")]
    link: OnceLock<link::Link>,
    /// What launches are recorded with, where wgpu runs on it.
    vulkan: Option<Vulkan>,
    pipelines: Pipelines,
    /// The recordings of every executable there is.
    executables: Mutex<Vec<Weak<Mutex<Recordings>>>>,
    /// Slots that all plans share, and the buffer of the host's words: one run at a time encodes with them.
    arena: Mutex<executable::Arena>,
    faults: Arc<Mutex<Faults>>,
    in_flight: Arc<Mutex<InFlight>>,
    /// Buffers that small readings went through.
    staging: Arc<Mutex<Vec<wgpu::Buffer>>>,
    /// Copies submitted in order to read.
    reads: AtomicU64,
    /// What of the host's time was spent here.
    host: Mutex<HostTimes>,
}

/// What the driver reported outside of any call.
#[derive(Default)]
struct Faults {
    lost: Option<String>,
    error: Option<Error>,
    /// What a browser has not answered yet.
    asked: VecDeque<Answer>,
    waiting: Arc<Waiting>,
}

/// Those who wait for a browser's answers. All are woken, since any of them may be dropped.
#[derive(Default)]
struct Waiting(Mutex<Vec<Waker>>);

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        let wakers = std::mem::take(&mut *lock(&self.0));
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// What an error scope caught.
type Answer = Pin<Box<dyn Future<Output = Option<wgpu::Error>> + Send>>;

/// How often those who wait for the device look after the other ranks.
const ASKING: Duration = Duration::from_millis(100);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each is plain data that no panic leaves half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Faults {
    fn note(&mut self, error: wgpu::Error) {
        self.error.get_or_insert(fault(error));
    }

    /// What a scope caught. In a browser nobody knows yet, and [`Inner::settle`] notes it.
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
    /// Counts the time of some work as a part of the host's.
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
            // A command is refused because the device is lost, too, and only polling tells that.
            drop(self.poll_device(wgpu::PollType::wait_indefinitely()));
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

    /// Waits for what a browser has yet to say about earlier commands.
    async fn settle(&self) -> Result<()> {
        // An answer stays in the list until it is there: this future may be dropped, and others may wait for the same
        // one.
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

    /// Why the device does not take commands, once it is asked.
    fn refusal(&self, otherwise: Error) -> Error {
        // Polling tells that the device is lost, once it is done with what it had.
        drop(self.poll_device(wgpu::PollType::wait_indefinitely()));
        self.check().err().unwrap_or(otherwise)
    }

    fn poll(&self, until: wgpu::PollType) -> Result<()> {
        let polled = self.poll_device(until);
        self.check()?;
        polled.map_err(|error| Error::new(ErrorKind::Device, "waiting for the device failed").caused_by(error))
    }

    /// Polls, and notes a loss of the device on the way, or that another rank is lost for which commands wait: those go
    /// on then.
    fn poll_device(&self, until: wgpu::PollType) -> Result<(), wgpu::PollError> {
        let wgpu::PollType::Wait { submission_index, timeout: None } = until else { return self.poll_once(until) };
        loop {
            let timeout = self.is_linked().then_some(ASKING);
            let until = wgpu::PollType::Wait { submission_index: submission_index.clone(), timeout };
            match self.poll_once(until) {
                Err(wgpu::PollError::Timeout) => {
                    if let Err(error) = self.expect_linked() {
                        lock(&self.faults).error.get_or_insert(error);
                    }
                }
                polled => {
                    // A mismatch of sizes may not have kept the exchange from ending.
                    if let Err(error) = self.expect_linked() {
                        lock(&self.faults).error.get_or_insert(error);
                    }
                    return polled;
                }
            }
        }
    }

    /// As [`Inner::poll_device`]: wgpu panics where the driver loses the device while it is waited for.
    fn poll_once(&self, until: wgpu::PollType) -> Result<(), wgpu::PollError> {
        match catch_unwind(AssertUnwindSafe(|| self.device.poll(until))) {
            Ok(polled) => polled.map(drop),
            Err(_) => {
                let why = || "the driver failed while it was waited for".to_owned();
                lock(&self.faults).lost.get_or_insert_with(why);
                Ok(())
            }
        }
    }

    /// wgpu clears a buffer before its own first use of it. What a launch below wgpu had written by then would be lost,
    /// so it is cleared at once.
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
        // What recordings are made of must not go while they run. There is nobody left to tell of a fault.
        drop(self.poll_device(wgpu::PollType::wait_indefinitely()));
    }
}

impl Gpu {
    /// What kernels may count on; `matrix` where they are to use matrix units, which were probed before.
    pub(crate) fn caps(&self, matrix: bool) -> Caps {
        let probed = self.0.matrix.get().is_some_and(|probe| probe.bfloat);
        Caps { matrix, half: matrix, bfloat: matrix && probed, ..self.0.caps }
    }

    pub(crate) fn reads(&self) -> u64 {
        self.0.reads.load(Ordering::Relaxed)
    }

    /// The host's time with what of it was spent here.
    pub(crate) fn host_times(&self, device: HostTimes) -> HostTimes {
        let HostTimes { bind, encode, submit, wait, .. } = *lock(&self.0.host);
        HostTimes { bind: device.bind + bind, encode, submit, wait, ..device }
    }

    /// Whether the buffers of the one are buffers of the other.
    pub(crate) fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn pipeline_counts(&self) -> PipelineCounts {
        self.0.pipeline_counts()
    }

    /// For tests: from here on the adapter has this many bytes; 0 is no limit.
    #[cfg(feature = "testing")]
    pub(crate) fn limit_memory(&self, bytes: u64) {
        self.0.memory.limit.store(bytes, Ordering::Relaxed);
    }

    /// For tests: the driver loses the adapter, and tells at once or when it is polled next.
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

    /// Whether runs can be timed, or why not.
    pub(crate) fn expect_timing(&self) -> Result<()> {
        self.0.expect_timing()
    }

    /// The most bytes that one buffer may hold.
    fn most_bytes(&self) -> u64 {
        let limits = &self.0.limits;
        limits.max_buffer_size.min(limits.max_storage_buffer_binding_size)
    }

    /// Refuses what no buffer of the device may hold.
    pub(crate) fn expect_fits(&self, bytes: usize) -> Result<()> {
        let most = self.most_bytes();
        if bytes as u64 > most {
            bail!(OutOfMemory, "needs {bytes} bytes, {} holds at most {most} in one buffer", self.0.name);
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

    /// Gives back what lies unused; recordings would keep it alive.
    fn make_room(&self) -> Result<()> {
        self.forget_recordings();
        self.0.memory.release_unused();
        self.wait_here()
    }

    /// Drops the recordings that executables keep; the next run of each makes one anew.
    fn forget_recordings(&self) {
        for recordings in lock(&self.0.executables).iter().filter_map(Weak::upgrade) {
            lock(&recordings).clear();
        }
    }

    pub(crate) fn upload(&self, host: &HostBuffer, ty: TensorType) -> Result<Arc<Buffer>> {
        self.0.check()?;
        let buffer = self.allocate(ty.bytes()).map_err(|error| error.context(format!("a tensor {ty}")))?;
        self.0.queue.write_buffer(buffer.raw(), 0, host.bytes());
        // The queue may have found no memory for the way there.
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
