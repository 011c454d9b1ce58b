//! Host memory of one element type: the source and destination of tensors, and the memory of the native executor. Also
//! the small numbers that the host sends along with each run.

mod kept;
mod limit;
mod spares;

use std::ops::Range;

pub(crate) use self::kept::Kept;
pub(crate) use self::spares::Spares;
use crate::error::bail;
use crate::{DType, Result};

/// A small number that the host sends along with each run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HostWord {
    Float(f64),
    Word(u32),
}

impl HostWord {
    /// The word's 32 bits, for kernels that read bits.
    #[expect(clippy::cast_possible_truncation, reason = "words are 32 bits; native programs read the full number")]
    pub(crate) fn bits(self) -> u32 {
        match self {
            Self::Float(x) => (x as f32).to_bits(),
            Self::Word(x) => x,
        }
    }

    /// A random seed as two words, the lower one first.
    #[expect(clippy::cast_possible_truncation, reason = "the seed's lower and upper 32 bits")]
    pub(crate) fn of_seed(seed: u64) -> [Self; 2] {
        [Self::Word(seed as u32), Self::Word((seed >> 32) as u32)]
    }
}

/// Reserves memory for `more` elements. Allocations whose size comes from a file or from a caller's shape belong here:
/// a plain `Vec` would end the process if there is no room.
///
/// # Errors
///
/// [`OutOfMemory`](crate::ErrorKind::OutOfMemory), on Linux also if the system would grant the memory and later end the
/// process.
#[doc(hidden)]
pub fn reserve<T>(data: &mut Vec<T>, more: usize) -> Result<()> {
    #[cfg(feature = "testing")]
    let is_short = shortage::strikes();
    #[cfg(not(feature = "testing"))]
    let is_short = false;
    let bytes = |elements: usize| elements.saturating_mul(size_of::<T>());
    let needed = data.len().saturating_add(more);
    if needed > data.capacity() {
        limit::expect_room(bytes(needed))?;
    }
    if is_short || data.try_reserve(more).is_err() {
        bail!(OutOfMemory, "no room for {} bytes of host memory", bytes(more));
    }
    Ok(())
}

/// Returns the free pages of the allocator to the system. Glibc keeps them for later; after a plan of 100,000
/// operations, these are hundreds of megabytes.
pub(crate) fn return_free_pages() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call moves no allocation, and any thread may make it.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Collects the elements of an iterator into memory of its exact length. Fails like [`reserve`].
#[doc(hidden)]
pub fn try_collect<T>(elements: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>> {
    let mut data = Vec::new();
    reserve(&mut data, elements.len())?;
    data.extend(elements);
    Ok(data)
}

/// A vector of `len` copies of a value. Fails like [`reserve`].
#[doc(hidden)]
pub fn try_filled<T: Clone>(len: usize, value: T) -> Result<Vec<T>> {
    let mut data = Vec::new();
    reserve(&mut data, len)?;
    data.resize(len, value);
    Ok(data)
}

/// Lets tests make a reservation fail.
#[cfg(feature = "testing")]
pub mod shortage {
    use std::cell::Cell;

    thread_local! {
        /// The number of reservations on this thread before the one that fails.
        static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    }

    /// Runs `work`; its reservation `number`, counted from 0, fails once. Also returns `true` if there was such a
    /// reservation.
    pub fn at<T>(number: usize, work: impl FnOnce() -> T) -> (T, bool) {
        LEFT.set(Some(number));
        let result = work();
        (result, LEFT.take().is_none())
    }

    pub(super) fn strikes() -> bool {
        let left = LEFT.get();
        LEFT.set(left.and_then(|left| left.checked_sub(1)));
        left == Some(0)
    }
}

/// Numbers in host memory.
#[derive(Clone, Debug, PartialEq)]
pub enum HostBuffer {
    F32(Vec<f32>),
    F64(Vec<f64>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    I64(Vec<i64>),
}

/// Evaluates an expression of the numbers, whatever their type.
macro_rules! of_any {
    ($buffer:expr, $data:ident => $e:expr) => {
        match $buffer {
            HostBuffer::F32($data) => $e,
            HostBuffer::F64($data) => $e,
            HostBuffer::U32($data) => $e,
            HostBuffer::I32($data) => $e,
            HostBuffer::I64($data) => $e,
        }
    };
}

/// An integer as an index: the largest one if it is no `u32`.
pub(crate) fn index_of(number: impl TryInto<u32>) -> u32 {
    number.try_into().unwrap_or(u32::MAX)
}

/// The largest and the second-largest distinct number.
fn two_largest(numbers: impl Iterator<Item = u32>) -> [Option<u32>; 2] {
    numbers.fold([None; 2], |[first, second], number| match Some(number) {
        number if number > first => [number, first],
        number if number < first => [first, second.max(number)],
        _ => [first, second],
    })
}

impl HostBuffer {
    /// Zeros. Fails if there is no room.
    #[doc(hidden)]
    pub fn try_zeros(dtype: DType, len: usize) -> Result<Self> {
        let buffer = match dtype {
            DType::F32 => try_filled(len, 0.0).map(Self::F32),
            DType::F64 => try_filled(len, 0.0).map(Self::F64),
            DType::U32 => try_filled(len, 0).map(Self::U32),
            DType::I32 => try_filled(len, 0).map(Self::I32),
            DType::I64 => try_filled(len, 0).map(Self::I64),
        };
        buffer.map_err(|error| error.context(format_args!("{len} numbers of {dtype}")))
    }

    /// `len` times this number, as floats of a type. Fails if there is no room.
    pub(crate) fn try_full(dtype: DType, len: usize, value: f32) -> Result<Self> {
        let mut buffer = Self::try_zeros(dtype, len)?;
        match &mut buffer {
            Self::F32(data) => data.fill(value),
            Self::F64(data) => data.fill(f64::from(value)),
            Self::U32(_) | Self::I32(_) | Self::I64(_) => unreachable!("{dtype} holds no floats"),
        }
        Ok(buffer)
    }

    /// A copy. Fails if there is no room.
    pub(crate) fn try_clone(&self) -> Result<Self> {
        Ok(match self {
            Self::F32(data) => Self::F32(try_collect(data.iter().copied())?),
            Self::F64(data) => Self::F64(try_collect(data.iter().copied())?),
            Self::U32(data) => Self::U32(try_collect(data.iter().copied())?),
            Self::I32(data) => Self::I32(try_collect(data.iter().copied())?),
            Self::I64(data) => Self::I64(try_collect(data.iter().copied())?),
        })
    }

    pub(crate) fn len(&self) -> usize {
        of_any!(self, data => data.len())
    }

    /// The largest and the second-largest distinct element, as indices; none of floats.
    pub(crate) fn largest_indices(&self) -> [Option<u32>; 2] {
        match self {
            Self::F32(_) | Self::F64(_) => [None; 2],
            Self::U32(data) => two_largest(data.iter().copied()),
            Self::I32(data) => two_largest(data.iter().copied().map(index_of)),
            Self::I64(data) => two_largest(data.iter().copied().map(index_of)),
        }
    }

    pub(crate) fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F64(_) => DType::F64,
            Self::U32(_) => DType::U32,
            Self::I32(_) => DType::I32,
            Self::I64(_) => DType::I64,
        }
    }

    /// Converts floats to another float type; other elements stay. Fails if there is no room.
    #[expect(clippy::cast_possible_truncation, reason = "rounding to the asked precision")]
    #[doc(hidden)]
    pub fn try_cast(self, dtype: DType) -> Result<Self> {
        Ok(match (self, dtype) {
            (Self::F64(data), DType::F32) => Self::F32(try_collect(data.into_iter().map(|x| x as f32))?),
            (Self::F32(data), DType::F64) => Self::F64(try_collect(data.into_iter().map(f64::from))?),
            (same, _) => same,
        })
    }

    /// The bytes, in native byte order.
    pub fn bytes(&self) -> &[u8] {
        of_any!(self, data => bytemuck::cast_slice(data))
    }

    /// The bytes, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        of_any!(self, data => bytemuck::cast_slice_mut(data))
    }

    /// Overwrites elements with NaN, invalid indices or unlikely integers, which no kernel should ever read.
    pub(crate) fn poison(&mut self, part: Range<usize>) {
        match self {
            Self::F32(data) => data[part].fill(f32::NAN),
            Self::F64(data) => data[part].fill(f64::NAN),
            Self::U32(data) => data[part].fill(u32::MAX),
            Self::I32(data) => data[part].fill(0x5a5a_5a5a),
            Self::I64(data) => data[part].fill(0x5a5a_5a5a_5a5a_5a5a),
        }
    }
}
