//! CUDA's driver and NCCL, loaded at run time. Builds need neither of them.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;

use libloading::Library;

use crate::error::bail;
use crate::{Error, ErrorKind, Result};

/// An opaque handle.
pub(super) type Handle = *mut c_void;

/// A device address.
pub(super) type Address = u64;

/// The environment variable with the path of NCCL's library, or `off`.
pub(in crate::world) const NAMED: &str = "MEGANEURA_NCCL";

/// `CUDA_EXTERNAL_MEMORY_HANDLE_DESC`
#[repr(C)]
#[derive(Default)]
pub(super) struct MemoryHandle {
    pub(super) kind: c_uint,
    pub(super) handle: [u64; 2],
    pub(super) size: u64,
    pub(super) flags: c_uint,
    pub(super) reserved: [c_uint; 16],
}

/// `CUDA_EXTERNAL_MEMORY_BUFFER_DESC`
#[repr(C)]
#[derive(Default)]
pub(super) struct MemoryBuffer {
    pub(super) offset: u64,
    pub(super) size: u64,
    pub(super) flags: c_uint,
    pub(super) reserved: [c_uint; 16],
}

/// `CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC`
#[repr(C)]
#[derive(Default)]
pub(super) struct SemaphoreHandle {
    pub(super) kind: c_uint,
    pub(super) handle: [u64; 2],
    pub(super) flags: c_uint,
    pub(super) reserved: [c_uint; 16],
}

/// `CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS` and `CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS`: both begin with the timeline's
/// value.
#[repr(C)]
#[derive(Default)]
pub(super) struct SemaphoreParameters {
    pub(super) value: u64,
    pub(super) rest: [c_uint; 16],
    pub(super) flags: c_uint,
    pub(super) reserved: [c_uint; 16],
}

/// `ncclUniqueId`: the identity of a communicator.
#[repr(C)]
#[derive(Clone, Copy)]
pub(in crate::world) struct UniqueId(pub(in crate::world) [u8; 128]);

/// The identity in hexadecimal.
impl fmt::Display for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl UniqueId {
    /// Parses [`to_string`](Self::to_string).
    pub(in crate::world) fn of_text(text: &str) -> Result<Self> {
        let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Option<Vec<u8>> = text.as_bytes().as_chunks().0.iter().map(byte).collect();
        match bytes.and_then(|bytes| <[u8; 128]>::try_from(bytes).ok()) {
            Some(bytes) => Ok(Self(bytes)),
            None => bail!(PeerLost, "rank 0 sent no NCCL identity: it connects ranks in another way"),
        }
    }
}

/// A table of a library's functions. Each returns 0 for success.
macro_rules! functions {
    ($(#[$doc:meta])* $name:ident { $($function:ident: $symbol:literal($($argument:ty),*),)+ }) => {
        $(#[$doc])*
        pub(super) struct $name {
            $(pub(super) $function: unsafe extern "C" fn($($argument),*) -> c_int,)+
            _library: Library,
        }

        impl $name {
            fn of(library: Library) -> Result<Self, libloading::Error> {
                // SAFETY: the signatures are those of the library's headers, and the library stays open as long as the
                // functions exist.
                unsafe { Ok(Self { $($function: *library.get($symbol)?,)+ _library: library }) }
            }
        }
    };
}

functions! {
    /// CUDA's driver API.
    Cuda {
        init: b"cuInit"(c_uint),
        device_by_bus: b"cuDeviceGetByPCIBusId"(*mut c_int, *const c_char),
        device: b"cuDeviceGet"(*mut c_int, c_int),
        device_count: b"cuDeviceGetCount"(*mut c_int),
        bus_of_device: b"cuDeviceGetPCIBusId"(*mut c_char, c_int, c_int),
        retain_context: b"cuDevicePrimaryCtxRetain"(*mut Handle, c_int),
        release_context: b"cuDevicePrimaryCtxRelease_v2"(c_int),
        use_context: b"cuCtxSetCurrent"(Handle),
        new_stream: b"cuStreamCreate"(*mut Handle, c_uint),
        query_stream: b"cuStreamQuery"(Handle),
        drop_stream: b"cuStreamDestroy_v2"(Handle),
        new_event: b"cuEventCreate"(*mut Handle, c_uint),
        record_event: b"cuEventRecord"(Handle, Handle),
        elapsed: b"cuEventElapsedTime"(*mut f32, Handle, Handle),
        drop_event: b"cuEventDestroy_v2"(Handle),
        import_memory: b"cuImportExternalMemory"(*mut Handle, *const MemoryHandle),
        map_memory: b"cuExternalMemoryGetMappedBuffer"(*mut Address, Handle, *const MemoryBuffer),
        drop_memory: b"cuDestroyExternalMemory"(Handle),
        import_semaphore: b"cuImportExternalSemaphore"(*mut Handle, *const SemaphoreHandle),
        drop_semaphore: b"cuDestroyExternalSemaphore"(Handle),
        wait: b"cuWaitExternalSemaphoresAsync"(*const Handle, *const SemaphoreParameters, c_uint, Handle),
        signal: b"cuSignalExternalSemaphoresAsync"(*const Handle, *const SemaphoreParameters, c_uint, Handle),
        allocate: b"cuMemAlloc_v2"(*mut Address, usize),
        free: b"cuMemFree_v2"(Address),
        upload: b"cuMemcpyHtoD_v2"(Address, *const c_void, usize),
        download: b"cuMemcpyDtoH_v2"(*mut c_void, Address, usize),
        name_error: b"cuGetErrorName"(c_int, *mut *const c_char),
    }
}

functions! {
    /// NCCL.
    Functions {
        version: b"ncclGetVersion"(*mut c_int),
        unique_id: b"ncclGetUniqueId"(*mut UniqueId),
        init: b"ncclCommInitRank"(*mut Handle, c_int, UniqueId, c_int),
        abort: b"ncclCommAbort"(Handle),
        destroy: b"ncclCommDestroy"(Handle),
        all_reduce: b"ncclAllReduce"(Address, Address, usize, c_int, c_int, Handle, Handle),
        reduce_scatter: b"ncclReduceScatter"(Address, Address, usize, c_int, c_int, Handle, Handle),
        all_gather: b"ncclAllGather"(Address, Address, usize, c_int, Handle, Handle),
        begin_group: b"ncclGroupStart"(),
        end_group: b"ncclGroupEnd"(),
        broadcast: b"ncclBroadcast"(Address, Address, usize, c_int, c_int, Handle, Handle),
    }
}

/// Both libraries, loaded.
pub(in crate::world) struct Libraries {
    pub(super) cuda: Cuda,
    pub(super) nccl: Functions,
    /// The version, for example `2.28.9`.
    pub(super) version: String,
}

impl fmt::Debug for Libraries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NCCL {}", self.version)
    }
}

impl Libraries {
    /// Loads both. The error names the missing one.
    pub(in crate::world) fn open() -> Result<Self> {
        let refused = |what: &str, error: libloading::Error| {
            Error::new(ErrorKind::Device, format!("{what} cannot be used: {error}"))
        };
        // SAFETY: the driver's library, and one that the user named or installed as NCCL, run only their own
        // initialisation.
        let open = |name: &std::ffi::OsStr| unsafe { Library::new(name) };
        let named = std::env::var_os(NAMED);
        let spelled = named.as_ref().map_or_else(|| "NCCL".to_owned(), |path| format!("{NAMED}={}", path.display()));
        let cuda = open("libcuda.so.1".as_ref()).and_then(Cuda::of);
        let cuda = cuda.map_err(|error| refused("CUDA's driver", error))?;
        let nccl = match &named {
            Some(path) => open(path),
            None => open("libnccl.so.2".as_ref()).or_else(|_| open("libnccl.so".as_ref())),
        };
        let nccl = nccl.and_then(Functions::of).map_err(|error| refused(&spelled, error))?;
        let mut number = 0;
        // SAFETY: each writes into memory of its type.
        let (started, asked) = unsafe { ((cuda.init)(0), (nccl.version)(&raw mut number)) };
        if asked != 0 {
            bail!(Device, "{spelled} does not tell its version");
        }
        let version = format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100);
        let libraries = Self { cuda, nccl, version };
        libraries.cuda(started, "starting it")?;
        Ok(libraries)
    }

    /// A new identity for a communicator.
    pub(in crate::world) fn unique_id(&self) -> Result<UniqueId> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: it writes an identity.
        self.nccl(unsafe { (self.nccl.unique_id)(&raw mut id) }, "an identity for the ranks")?;
        Ok(id)
    }

    /// Fails for a nonzero result of the driver.
    pub(super) fn cuda(&self, returned: c_int, what: &str) -> Result<()> {
        if returned == 0 {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: it writes the address of a static text.
        let name = unsafe {
            match (self.cuda.name_error)(returned, &raw mut name) {
                0 if !name.is_null() => CStr::from_ptr(name).to_string_lossy().into_owned(),
                _ => returned.to_string(),
            }
        };
        bail!(Device, "CUDA: {what} failed: {name}")
    }

    /// Fails for a nonzero result of NCCL.
    pub(super) fn nccl(&self, returned: c_int, what: &str) -> Result<()> {
        let why = match returned {
            0 => return Ok(()),
            1 => "CUDA failed",
            2 => "a call of the system failed",
            3 => "an internal error",
            4 => "an argument is invalid",
            5 => "it was used in a wrong way",
            6 => "another rank or the network failed",
            _ => "an unknown error",
        };
        bail!(Device, "NCCL {}: {what} failed: {why}; NCCL_DEBUG=WARN tells more", self.version)
    }
}
