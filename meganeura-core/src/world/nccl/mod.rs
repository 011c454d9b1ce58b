//! NCCL on memory exported by Vulkan, ordered with Vulkan's queue by a timeline semaphore.

mod library;
mod staged;

use std::ffi::{CString, c_char, c_int};
use std::ops::Range as Bounds;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::ptr::{from_mut, from_ref, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{array, thread};

pub(super) use library::{Libraries, NAMED, UniqueId};
pub(super) use staged::Staged;

use super::{Collective, Range};
use crate::error::bail;
use crate::{DType, Error, ErrorKind, Result};
use library::{Address, Handle, MemoryBuffer, MemoryHandle, SemaphoreHandle, SemaphoreParameters};

/// The interval between polls.
const ASKING: Duration = Duration::from_micros(100);

/// `CU_STREAM_NON_BLOCKING`
const APART: u32 = 1;
/// `CUDA_ERROR_NOT_READY`
const NOT_READY: c_int = 600;
/// `CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD`
const MEMORY: u32 = 1;
/// `CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD`
const TIMELINE: u32 = 9;

/// `ncclSum`
const SUM: c_int = 0;
/// `ncclUint8`
const BYTES: c_int = 1;

/// A choice of GPU.
pub(super) enum Which<'a> {
    /// By PCI bus id, for example `0000:06:00.0`.
    Bus(&'a str),
    /// By CUDA's device number.
    Number(usize),
}

/// An NCCL collective.
#[derive(Clone, Copy)]
enum Call {
    AllReduce,
    ReduceScatter,
    AllGather,
}

/// A communicator of all ranks, and a CUDA stream on this rank's GPU.
pub(crate) struct Nccl {
    libraries: Libraries,
    device: c_int,
    /// CUDA's context, as a number: any thread may use it.
    context: usize,
    stream: usize,
    bus: String,
    rank: usize,
    size: usize,
    communicator: Communicator,
}

/// A communicator's handle, or 0 before it is connected and after an abort.
#[derive(Default)]
struct Communicator {
    handle: AtomicUsize,
    /// Held during calls.
    calling: Mutex<()>,
}

impl Communicator {
    fn set(&self, handle: usize) {
        self.handle.store(handle, Ordering::SeqCst);
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.calling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls a function with the handle.
    fn call(&self, call: impl FnOnce(Handle) -> c_int) -> Result<c_int> {
        let _calling = self.lock();
        match self.handle.load(Ordering::SeqCst) {
            0 => bail!(PeerLost, "the ranks are not connected any more"),
            handle => Ok(call(handle as Handle)),
        }
    }

    /// Takes the handle out, even from a call that waits for a rank that never comes: NCCL lets another thread abort
    /// it.
    fn take(&self) -> Option<Handle> {
        let _calling = self.calling.try_lock();
        match self.handle.swap(0, Ordering::SeqCst) {
            0 => None,
            handle => Some(handle as Handle),
        }
    }
}

/// Vulkan's memory, imported into CUDA.
pub(crate) struct ImportedMemory {
    nccl: Arc<Nccl>,
    handle: usize,
    address: Address,
}

/// Vulkan's timeline semaphore, imported into CUDA.
pub(crate) struct Semaphore {
    nccl: Arc<Nccl>,
    handle: usize,
}

/// The events around an exchange.
pub(crate) struct Elapsed {
    nccl: Arc<Nccl>,
    events: [usize; 2],
}

/// A type of numbers.
#[derive(Clone, Copy)]
struct Numbers {
    /// `ncclDataType_t`
    kind: c_int,
    /// The bytes of a number.
    bytes: usize,
}

/// `ncclBfloat16`
const BF16: Numbers = Numbers { kind: 9, bytes: 2 };

impl From<DType> for Numbers {
    fn from(dtype: DType) -> Self {
        let kind = match dtype {
            DType::I32 => 2,
            DType::U32 => 3,
            DType::I64 => 4,
            DType::F32 => 7,
            DType::F64 => 8,
        };
        Self { kind, bytes: dtype.bytes() }
    }
}

impl Nccl {
    /// A new identity for a communicator. One rank creates it, and all use it.
    pub(super) fn unique_id(&self) -> Result<UniqueId> {
        self.libraries.unique_id()
    }

    /// Opens this rank's GPU, without the other ranks.
    pub(super) fn open(libraries: Libraries, which: &Which<'_>, (rank, size): (usize, usize)) -> Result<Arc<Self>> {
        let cuda = &libraries.cuda;
        let (mut device, mut context, mut stream, mut bus): (_, Handle, Handle, _) =
            (0, null_mut(), null_mut(), [0; 64]);
        // SAFETY: each call writes into memory of its type.
        unsafe {
            match which {
                Which::Bus(bus) => {
                    let spelled = CString::new(*bus).unwrap_or_default();
                    let found = (cuda.device_by_bus)(&raw mut device, spelled.as_ptr());
                    libraries.cuda(found, &format!("finding the GPU {bus}"))?;
                }
                Which::Number(number) => {
                    let mut count = 0;
                    libraries.cuda((cuda.device_count)(&raw mut count), "counting GPUs")?;
                    if *number >= count as usize {
                        bail!(Device, "rank {rank} is number {number} of its host, where CUDA shows {count} GPUs");
                    }
                    libraries.cuda((cuda.device)(&raw mut device, *number as c_int), "finding a GPU")?;
                }
            }
            let text: *mut c_char = bus.as_mut_ptr();
            libraries.cuda((cuda.bus_of_device)(text, bus.len() as c_int, device), "asking where the GPU is")?;
            libraries.cuda((cuda.retain_context)(&raw mut context, device), "opening the GPU")?;
            libraries.cuda((cuda.use_context)(context), "using the GPU")?;
            libraries.cuda((cuda.new_stream)(&raw mut stream, APART), "a stream")?;
        }
        let bus: String =
            bus.iter().take_while(|&&c| c != 0).map(|&c| (c as u8 as char).to_ascii_lowercase()).collect();
        let (context, stream) = (context as usize, stream as usize);
        let communicator = Communicator::default();
        Ok(Arc::new(Self { libraries, device, context, stream, bus, rank, size, communicator }))
    }

    /// Connects the ranks. Each calls it with the same identity. It waits for the others until `fault` returns an
    /// error.
    pub(super) fn connect(self: &Arc<Self>, id: UniqueId, fault: impl Fn() -> Option<Error>) -> Result<()> {
        let connecting = Arc::clone(self);
        // The call returns once all ranks have made it. If one does not, this thread is left behind.
        let connect = move || connecting.connect_now(id);
        let thread = thread::Builder::new().name("NCCL".into()).spawn(connect);
        let thread = thread.map_err(|error| Error::new(ErrorKind::Device, "no thread for NCCL").caused_by(error))?;
        while !thread.is_finished() {
            if let Some(fault) = fault() {
                return Err(fault);
            }
            thread::sleep(ASKING);
        }
        thread.join().map_err(|_| Error::new(ErrorKind::Device, "NCCL's thread panicked"))?
    }

    fn connect_now(&self, id: UniqueId) -> Result<()> {
        self.enter()?;
        let mut communicator: Handle = null_mut();
        // SAFETY: it writes a handle.
        let made =
            unsafe { (self.libraries.nccl.init)(&raw mut communicator, self.size as c_int, id, self.rank as c_int) };
        self.libraries.nccl(made, "connecting the ranks")?;
        self.communicator.set(communicator as usize);
        Ok(())
    }

    pub(crate) fn version(&self) -> &str {
        &self.libraries.version
    }

    /// The PCI bus id of this rank's GPU.
    pub(crate) fn bus(&self) -> &str {
        &self.bus
    }

    /// Makes the GPU's context current on this thread.
    fn enter(&self) -> Result<()> {
        // SAFETY: the context is retained as long as `self` exists.
        self.libraries.cuda(unsafe { (self.libraries.cuda.use_context)(self.context as Handle) }, "using the GPU")
    }

    /// Imports Vulkan's memory, and takes over the file descriptor.
    pub(crate) fn import(self: &Arc<Self>, file: OwnedFd, bytes: u64) -> Result<ImportedMemory> {
        self.enter()?;
        let handle = [file.into_raw_fd() as u64, 0];
        let description = MemoryHandle { kind: MEMORY, handle, size: bytes, ..MemoryHandle::default() };
        let (mut handle, mut address): (Handle, Address) = (null_mut(), 0);
        let buffer = MemoryBuffer { size: bytes, ..MemoryBuffer::default() };
        let cuda = &self.libraries.cuda;
        // SAFETY: each call writes a handle or an address; the descriptor is open, and owned here.
        unsafe {
            let imported = (cuda.import_memory)(&raw mut handle, from_ref(&description));
            self.libraries.cuda(imported, "importing memory")?;
            let mapped = (cuda.map_memory)(&raw mut address, handle, from_ref(&buffer));
            self.libraries.cuda(mapped, "mapping memory")?;
        }
        Ok(ImportedMemory { nccl: Arc::clone(self), handle: handle as usize, address })
    }

    /// Imports Vulkan's timeline semaphore, and takes over the file descriptor.
    pub(crate) fn import_timeline(self: &Arc<Self>, file: OwnedFd) -> Result<Semaphore> {
        self.enter()?;
        let handle = [file.into_raw_fd() as u64, 0];
        let description = SemaphoreHandle { kind: TIMELINE, handle, ..SemaphoreHandle::default() };
        let mut handle: Handle = null_mut();
        // SAFETY: as above.
        let imported = unsafe { (self.libraries.cuda.import_semaphore)(&raw mut handle, from_ref(&description)) };
        self.libraries.cuda(imported, "importing a semaphore")?;
        Ok(Semaphore { nccl: Arc::clone(self), handle: handle as usize })
    }

    /// Enqueues an exchange of a range, which waits until `semaphore` reaches `ready`, and then sets it to `done`.
    /// Returns events around the exchange if `is_timed`.
    #[doc(hidden)]
    pub(crate) fn run_collective(
        self: &Arc<Self>,
        collective: &Collective,
        (memory, range): (&ImportedMemory, &Range),
        semaphore: &Semaphore,
        [ready, done]: [u64; 2],
        is_timed: bool,
    ) -> Result<Option<Elapsed>> {
        self.enter()?;
        let (cuda, stream) = (&self.libraries.cuda, self.stream as Handle);
        let elapsed = if is_timed { Some(Elapsed::new(self)?) } else { None };
        let record = |number: usize| {
            let Some(elapsed) = &elapsed else { return Ok(()) };
            // SAFETY: the event and the stream exist.
            let recorded = unsafe { (cuda.record_event)(elapsed.events[number] as Handle, stream) };
            self.libraries.cuda(recorded, "a time")
        };
        let value = |value| SemaphoreParameters { value, ..SemaphoreParameters::default() };
        let handle = semaphore.handle as Handle;
        // SAFETY: handles exist as long as their holders, which outlive the enqueued work.
        let waited = unsafe { (cuda.wait)(&raw const handle, from_ref(&value(ready)), 1, stream) };
        self.libraries.cuda(waited, "waiting for Vulkan")?;
        record(0)?;
        let enqueue = |call, numbers, from: Bounds<usize>, to: usize| {
            let (at, bytes) = (memory.address + from.start as u64, from.len());
            self.enqueue(call, numbers, (at, bytes), memory.address + to as u64)
        };
        let (all, own) = (0..range.bytes, range.part_of(self.rank));
        match collective {
            Collective::AllReduce => {
                let parts = [(BF16, 0..range.bf16_bytes), (DType::F32.into(), range.bf16_bytes..range.bytes)];
                let mut parts = parts.into_iter().filter(|(_, part)| !part.is_empty());
                self.grouped(|| {
                    parts.try_for_each(|(numbers, part)| enqueue(Call::AllReduce, numbers, part.clone(), part.start))
                })?;
            }
            Collective::ReduceScatter(_) => enqueue(Call::ReduceScatter, DType::F32.into(), all, own.start)?,
            Collective::AllGather(_) => enqueue(Call::AllGather, DType::F32.into(), own, 0)?,
        }
        record(1)?;
        // SAFETY: as above.
        let signalled = unsafe { (cuda.signal)(&raw const handle, from_ref(&value(done)), 1, stream) };
        self.libraries.cuda(signalled, "telling Vulkan")?;
        Ok(elapsed)
    }

    /// Launches what `enqueue` enqueues together.
    fn grouped(&self, enqueue: impl FnOnce() -> Result<()>) -> Result<()> {
        // SAFETY: the group is of this thread's calls, and ends below.
        let begun = unsafe { (self.libraries.nccl.begin_group)() };
        self.libraries.nccl(begun, "an exchange")?;
        let enqueued = enqueue();
        let ended = {
            let _calling = self.communicator.lock();
            // SAFETY: as above.
            unsafe { (self.libraries.nccl.end_group)() }
        };
        enqueued?;
        self.libraries.nccl(ended, "an exchange")
    }

    /// Enqueues a collective on `bytes` bytes.
    fn enqueue(&self, call: Call, numbers: Numbers, (from, bytes): (Address, usize), to: Address) -> Result<()> {
        let (nccl, stream) = (&self.libraries.nccl, self.stream as Handle);
        let (kind, count) = (numbers.kind, bytes / numbers.bytes);
        // SAFETY: the addresses are those of `bytes` bytes, which stay valid until the stream is done with them.
        let enqueued = self.communicator.call(|communicator| unsafe {
            match call {
                Call::AllReduce => (nccl.all_reduce)(from, to, count, kind, SUM, communicator, stream),
                Call::ReduceScatter => {
                    (nccl.reduce_scatter)(from, to, count / self.size, kind, SUM, communicator, stream)
                }
                Call::AllGather => (nccl.all_gather)(from, to, count, kind, communicator, stream),
            }
        })?;
        self.libraries.nccl(enqueued, "an exchange")
    }

    /// `true` once the stream is idle.
    fn is_done(&self) -> Result<bool> {
        self.enter()?;
        // SAFETY: the stream exists.
        match unsafe { (self.libraries.cuda.query_stream)(self.stream as Handle) } {
            NOT_READY => Ok(false),
            returned => self.libraries.cuda(returned, "an exchange").map(|()| true),
        }
    }

    /// Aborts pending exchanges, so that the stream and Vulkan continue. The communicator is gone afterwards.
    pub(crate) fn abort(&self) {
        if let Some(communicator) = self.communicator.take()
            && self.enter().is_ok()
        {
            // SAFETY: the communicator existed, and nobody uses it after this. A failure cannot be handled.
            unsafe { (self.libraries.nccl.abort)(communicator) };
        }
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        if self.enter().is_err() {
            return;
        }
        // SAFETY: all enqueued work is done or aborted, and nobody else has these handles.
        unsafe {
            if let Some(communicator) = self.communicator.take() {
                (self.libraries.nccl.destroy)(communicator);
            }
            (self.libraries.cuda.drop_stream)(self.stream as Handle);
            (self.libraries.cuda.release_context)(self.device);
        }
    }
}

impl Drop for ImportedMemory {
    fn drop(&mut self) {
        if self.nccl.enter().is_ok() {
            // SAFETY: every exchange of it was waited for. A mapping is freed like an allocation.
            unsafe {
                (self.nccl.libraries.cuda.free)(self.address);
                (self.nccl.libraries.cuda.drop_memory)(self.handle as Handle);
            }
        }
    }
}

impl Drop for Semaphore {
    fn drop(&mut self) {
        if self.nccl.enter().is_ok() {
            // SAFETY: as above.
            unsafe { (self.nccl.libraries.cuda.drop_semaphore)(self.handle as Handle) };
        }
    }
}

impl Elapsed {
    fn new(nccl: &Arc<Nccl>) -> Result<Self> {
        let mut handles: [Handle; 2] = array::from_fn(|_| null_mut());
        for handle in &mut handles {
            // SAFETY: it writes a handle.
            let made = unsafe { (nccl.libraries.cuda.new_event)(from_mut(handle), 0) };
            nccl.libraries.cuda(made, "an event")?;
        }
        Ok(Self { nccl: Arc::clone(nccl), events: handles.map(|handle| handle as usize) })
    }

    /// The duration of the exchange, once it is over.
    pub(crate) fn read(&self) -> Result<Duration> {
        self.nccl.enter()?;
        let mut milliseconds = 0.0;
        let [begin, end] = self.events.map(|event| event as Handle);
        // SAFETY: both events were recorded.
        let read = unsafe { (self.nccl.libraries.cuda.elapsed)(&raw mut milliseconds, begin, end) };
        self.nccl.libraries.cuda(read, "reading a time")?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }
}

impl Drop for Elapsed {
    fn drop(&mut self) {
        if self.nccl.enter().is_ok() {
            for event in self.events {
                // SAFETY: the driver keeps the event until it is done with it.
                unsafe { (self.nccl.libraries.cuda.drop_event)(event as Handle) };
            }
        }
    }
}
