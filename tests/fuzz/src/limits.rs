//! Limits on the time, memory and work for one input. Exceeding them is a fault, whatever the result.
//!
//! Memory is the peak of all allocations. Work is their sum: a deterministic measure, unlike time. A reader that copies
//! a part of its input again and again does quadratic work before it takes any noticeable time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The time limit: a thousand times what the longest input needs, so that a busy machine causes no fault.
pub const TIME: Duration = Duration::from_secs(4);

/// The limits on one input, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The peak of the additional memory.
    pub memory: usize,
    /// The sum of all allocations.
    pub work: usize,
}

impl Limits {
    /// For readers whose files may be packed: a few copies of the largest value that a reader may unpack.
    pub const PACKED: Self = Self { memory: 128 << 20, work: usize::MAX };

    /// Limits that grow with the input: a fixed amount, and multiples of its length.
    pub const fn linear(fixed: usize, length: usize, memory: usize, work: usize) -> Self {
        Self {
            memory: fixed.saturating_add(length.saturating_mul(memory)),
            work: fixed.saturating_add(length.saturating_mul(work)),
        }
    }
}

/// The system's allocator, with counters.
pub struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static SUM: AtomicUsize = AtomicUsize::new(0);

/// Counts an allocation, unless it was refused.
fn granted(memory: *mut u8, bytes: usize) -> *mut u8 {
    if !memory.is_null() {
        PEAK.fetch_max(BYTES.fetch_add(bytes, Relaxed).wrapping_add(bytes), Relaxed);
        SUM.fetch_add(bytes, Relaxed);
    }
    memory
}

// SAFETY: every call is forwarded to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract, which is the same.
        granted(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above. Zeroed memory counts even if it is never touched.
        granted(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        let moved = granted(unsafe { System.realloc(memory, layout, size) }, size);
        if !moved.is_null() {
            BYTES.fetch_sub(layout.size(), Relaxed);
        }
        moved
    }
}

/// The resources that reading an input took.
pub struct Used {
    time: Duration,
    memory: usize,
    work: usize,
}

impl Used {
    pub fn check(&self, limits: Limits) -> Result<(), String> {
        let Self { memory, work, time } = *self;
        if time > TIME {
            return Err(format!("took {:.1} seconds", time.as_secs_f64()));
        }
        if memory > limits.memory {
            return Err(format!("took {memory} bytes of memory, and {} are the limit", limits.memory));
        }
        if work > limits.work {
            return Err(format!("allocated {work} bytes in sum, and {} are the limit", limits.work));
        }
        Ok(())
    }
}

/// The start of this process's measurements.
static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The deadline of the current input, in milliseconds since the start.
static DEADLINE: AtomicU64 = AtomicU64::new(u64::MAX);

fn now() -> u64 {
    u64::try_from(BEGAN.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Aborts the process if an input takes several times its limit, because it may never end.
fn watch() {
    static WATCHES: Once = Once::new();
    WATCHES.call_once(|| {
        drop(thread::spawn(|| {
            while now() < DEADLINE.load(Relaxed) {
                thread::sleep(Duration::from_millis(100));
            }
            eprintln!("fuzz: the reader does not come to an end");
            std::process::abort();
        }));
    });
}

/// Runs `f` and measures it. The counters are global, so only one measurement runs at a time.
pub fn within<R>(f: impl FnOnce() -> R) -> (R, Used) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    watch();
    DEADLINE.store(now() + 4 * u64::try_from(TIME.as_millis()).unwrap_or(u64::MAX), Relaxed);
    let before = BYTES.load(Relaxed);
    PEAK.store(before, Relaxed);
    let sum = SUM.load(Relaxed);
    let start = Instant::now();
    let result = f();
    DEADLINE.store(u64::MAX, Relaxed);
    let memory = PEAK.load(Relaxed).saturating_sub(before);
    (result, Used { time: start.elapsed(), memory, work: SUM.load(Relaxed).wrapping_sub(sum) })
}

/// A file with the input that is read next, in case the process does not survive it.
///
/// It stays open and is never truncated to nothing: file systems write such a file to the disk when it is closed, which
/// takes several times as long as most readers.
pub struct Saved {
    file: File,
    length: usize,
}

impl Saved {
    pub fn create(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::create(path)?, length: 0 })
    }

    pub fn save(&mut self, input: &[u8]) -> io::Result<()> {
        self.file.rewind()?;
        self.file.write_all(input)?;
        if input.len() < self.length {
            self.file.set_len(input.len() as u64)?;
        }
        self.length = input.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_the_last_input_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("input");
        let mut saved = Saved::create(&path).unwrap();
        for input in [&b"a long one"[..], b"short", b"", b"longer"] {
            saved.save(input).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), input);
        }
    }
}
