//! The GPU executor, through wgpu: Vulkan, Metal and DirectX 12. The only place that knows wgpu, and, below it, Vulkan.
//!
//! Knows plans and their launches, not what an operation means.

mod adapter;
mod encoding;
mod matrix;
mod memory;
mod pipelines;
mod program;
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
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Poll;

pub(crate) use memory::Buffer;
pub(crate) use pipelines::Compiled;
pub(crate) use program::Executable;
pub(crate) use recording::Times;

use crate::error::bail;
use crate::host::{HostBuffer, try_filled};
use crate::kernel::launch::Caps;
use crate::{DType, Error, ErrorKind, Result, TensorType};
use memory::Memory;
use pipelines::Pipelines;
use program::Recordings;
use recording::Recording;
use vulkan::Vulkan;

/// Reads of no more bytes than this go through buffers that are kept, and so many of them.
const STAGING_KEPT: (u64, usize) = (1 << 12, 16);

/// Runs that may wait on the device at a time: enough to keep it busy, few enough to bound the memory of what waits.
const RUNS_IN_FLIGHT: usize = 8;

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
    /// Why matrix units are not used, once they were asked for.
    matrix: OnceLock<Option<String>>,
    memory: Arc<Memory>,
    /// What launches are recorded with, where wgpu runs on it.
    vulkan: Option<Vulkan>,
    pipelines: Pipelines,
    /// The recordings of every executable there is.
    executables: Mutex<Vec<Weak<Mutex<Recordings>>>>,
    /// Slots that all plans share, and the buffer of the host's words: one run at a time encodes with them.
    arena: Mutex<program::Arena>,
    faults: Arc<Mutex<Faults>>,
    /// Submissions that may not be done, and what they execute.
    in_flight: Mutex<VecDeque<(wgpu::SubmissionIndex, Option<Arc<Recording>>)>>,
    /// Buffers to read small tensors through: a loss in each step.
    staging: Mutex<Vec<wgpu::Buffer>>,
}

/// What the driver reported outside of any call.
#[derive(Default)]
struct Faults {
    lost: Option<String>,
    error: Option<Error>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each is plain data that no panic leaves half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Faults {
    fn note(&mut self, error: wgpu::Error) {
        self.error.get_or_insert(fault(error));
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
    /// Returns the fault that the driver reported since the last call, if any. A lost device stays lost.
    fn check(&self) -> Result<()> {
        let error = lock(&self.faults).error.take();
        if error.is_some() {
            // A command is refused because the device is lost, too, and only polling tells that.
            drop(self.poll_device(wgpu::PollType::wait_indefinitely()));
        }
        if let Some(why) = &lock(&self.faults).lost {
            let why = if why.is_empty() { String::new() } else { format!(": {why}") };
            bail!(
                DeviceLost,
                "{} was lost{why}. Its tensors are gone; open the device anew and load the last checkpoint there",
                self.name
            );
        }
        error.map_or(Ok(()), Err)
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

    /// Polls, and notes a loss of the device on the way: wgpu panics where the driver loses it while it is waited for.
    fn poll_device(&self, until: wgpu::PollType) -> Result<(), wgpu::PollError> {
        match catch_unwind(AssertUnwindSafe(|| self.device.poll(until))) {
            Ok(polled) => polled.map(drop),
            Err(_) => {
                let why = || "the driver failed while it was waited for".to_owned();
                lock(&self.faults).lost.get_or_insert_with(why);
                Ok(())
            }
        }
    }

    /// Submits commands, and waits for earlier ones where too many would be in flight. What goes wrong from here on is
    /// returned by the next call that checks: the commands are on their way.
    fn submit(&self, commands: wgpu::CommandBuffer, executed: Option<Arc<Recording>>) {
        let oldest = {
            let mut in_flight = lock(&self.in_flight);
            in_flight.push_back((self.queue.submit([commands]), executed));
            if in_flight.len() > RUNS_IN_FLIGHT { in_flight.pop_front() } else { None }
        };
        if let Some((oldest, _executed)) = oldest {
            let wait = wgpu::PollType::Wait { submission_index: Some(oldest), timeout: None };
            if let Err(error) = self.poll(wait) {
                lock(&self.faults).error.get_or_insert(error);
            }
        }
    }
}

impl Inner {
    /// A buffer that the host can read, of so many bytes at least.
    fn staging(&self, bytes: u64) -> wgpu::Buffer {
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

    /// Keeps a buffer for the next small read.
    fn keep_staging(&self, buffer: &wgpu::Buffer) {
        let mut kept = lock(&self.staging);
        if buffer.size() == STAGING_KEPT.0 && kept.len() < STAGING_KEPT.1 {
            kept.push(buffer.clone());
        }
    }

    /// wgpu clears a buffer before it first uses one that it knows nothing to be in. What a launch below wgpu has written by then
    /// would be gone.
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
        Caps { matrix, half: matrix, ..self.0.caps }
    }

    /// Whether the buffers of the one are buffers of the other.
    pub(crate) fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn compiled(&self) -> Compiled {
        self.0.compiled()
    }

    /// For tests: from here on the adapter has this many bytes; 0 is no limit.
    #[cfg(feature = "testing")]
    pub(crate) fn limit_memory(&self, bytes: u64) {
        self.0.memory.limit.store(bytes, std::sync::atomic::Ordering::Relaxed);
    }

    /// For tests: the driver loses the adapter, and tells at once or when it is polled next.
    #[cfg(feature = "testing")]
    pub(crate) fn lose(&self, at_once: bool) {
        self.0.device.destroy();
        if at_once {
            drop(self.wait());
        }
    }

    pub(crate) fn peak_bytes(&self) -> u64 {
        self.0.memory.peak()
    }

    /// Whether runs can be timed, or why not.
    pub(crate) fn expect_timing(&self) -> Result<()> {
        self.0.expect_timing()
    }

    pub(crate) fn wait(&self) -> Result<()> {
        let submitted = std::mem::take(&mut *lock(&self.0.in_flight));
        let waited = self.0.poll(wgpu::PollType::wait_indefinitely());
        // What they executed is not in use any more.
        drop(submitted);
        waited
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
        let Inner { device, memory, .. } = &*self.0;
        self.expect_fits(bytes)?;
        let size = memory::size_class(bytes).min(self.most_bytes());
        if let Some(buffer) = memory.reuse(size) {
            return Ok(buffer);
        }
        let buffer = memory.create(device, size).or_else(|_| {
            // What lies unused may make room; recordings would keep it alive.
            self.forget_recordings();
            memory.release_unused();
            self.wait()?;
            memory.create(device, size).map_err(|error| error.context(format!("needs {bytes} bytes")))
        })?;
        self.0.clear(&buffer);
        Ok(buffer)
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
        self.0.submit(encoder.finish(), None);
        Ok(to)
    }

    /// The numbers of a buffer. Waits for the device.
    pub(crate) fn download(&self, from: &Buffer, ty: TensorType) -> Result<HostBuffer> {
        self.finish(&self.start_reading(from, ty)?, ty)
    }

    /// Waits for a read.
    fn finish(&self, reading: &Reading, ty: TensorType) -> Result<HostBuffer> {
        loop {
            self.wait()?;
            if let Some(mapped) = lock(&reading.mapped).take() {
                return reading.finish(&self.0, mapped, ty);
            }
            // Another thread's wait ended first and is about to make this reading's callback.
            std::thread::yield_now();
        }
    }

    /// As [`Gpu::download`], without blocking the thread.
    pub(crate) async fn download_async(&self, from: &Buffer, ty: TensorType) -> Result<HostBuffer> {
        let reading = self.start_reading(from, ty)?;
        let mapped = poll_fn(|context| {
            if let Err(error) = self.0.poll(wgpu::PollType::Poll) {
                return Poll::Ready(Err(error));
            }
            match lock(&reading.mapped).take() {
                Some(mapped) => Poll::Ready(Ok(mapped)),
                None => {
                    // Natively nobody else polls the device, so ask to be polled again.
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
            }
        });
        let mapped = mapped.await?;
        reading.finish(&self.0, mapped, ty)
    }

    fn start_reading(&self, from: &Buffer, ty: TensorType) -> Result<Reading> {
        self.0.check()?;
        let bytes = ty.bytes() as u64;
        let staging = self.0.staging(bytes);
        let mut encoder = self.0.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(from.raw(), 0, &staging, 0, bytes);
        self.0.submit(encoder.finish(), None);
        Ok(Reading::start(staging, bytes))
    }
}

/// A read on its way.
struct Reading {
    staging: wgpu::Buffer,
    bytes: u64,
    mapped: Arc<Mutex<Option<Result<(), wgpu::BufferAsyncError>>>>,
}

impl Reading {
    /// Of the first bytes of a buffer that submitted commands write.
    fn start(staging: wgpu::Buffer, bytes: u64) -> Self {
        let mapped = Arc::new(Mutex::new(None));
        let report = Arc::clone(&mapped);
        staging.map_async(wgpu::MapMode::Read, ..bytes, move |result| *lock(&report) = Some(result));
        Self { staging, bytes, mapped }
    }

    fn finish(&self, gpu: &Inner, mapped: Result<(), wgpu::BufferAsyncError>, ty: TensorType) -> Result<HostBuffer> {
        let failed = |error: String| Error::new(ErrorKind::Device, format!("reading {ty} back failed: {error}"));
        // Buffers of a device that was lost are gone.
        mapped.map_err(|error| gpu.refusal(failed(error.to_string())))?;
        let bytes = self.staging.get_mapped_range(..self.bytes).map_err(|error| failed(error.to_string()))?;
        let host = match ty.dtype {
            DType::F32 => HostBuffer::F32(words(&bytes)?),
            DType::U32 => HostBuffer::U32(words(&bytes)?),
            DType::F64 => unreachable!("GPUs hold f32 and u32"),
        };
        drop(bytes);
        self.staging.unmap();
        gpu.keep_staging(&self.staging);
        Ok(host)
    }
}

/// The bytes of a buffer as numbers.
fn words<T: bytemuck::Pod>(bytes: &[u8]) -> Result<Vec<T>> {
    let mut words = try_filled(bytes.len() / size_of::<T>(), T::zeroed())?;
    bytemuck::cast_slice_mut(&mut words).copy_from_slice(bytes);
    Ok(words)
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name)
    }
}
