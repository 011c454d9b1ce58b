//! Host memory of one element type: what tensors come from and go to, and what the native executor computes in.

use crate::error::bail;
use crate::{DType, Result};

/// Numbers in host memory.
#[derive(Clone, Debug, PartialEq)]
pub enum HostBuffer {
    F32(Vec<f32>),
    F64(Vec<f64>),
    U32(Vec<u32>),
}

impl HostBuffer {
    /// Zeros, or an error where there is no room for them.
    pub(crate) fn try_zeros(dtype: DType, len: usize) -> Result<Self> {
        Self::try_full(dtype, len, 0.0)
    }

    /// This number everywhere, or an error where there is no room.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "integers are filled with 0 only")]
    pub(crate) fn try_full(dtype: DType, len: usize, value: f32) -> Result<Self> {
        fn reserve<T: Clone>(len: usize, value: T) -> Option<Vec<T>> {
            let mut data = Vec::new();
            data.try_reserve_exact(len).ok()?;
            data.resize(len, value);
            Some(data)
        }
        let buffer = match dtype {
            DType::F32 => reserve(len, value).map(Self::F32),
            DType::F64 => reserve(len, f64::from(value)).map(Self::F64),
            DType::U32 => reserve(len, value as u32).map(Self::U32),
        };
        match buffer {
            Some(buffer) => Ok(buffer),
            None => {
                bail!(OutOfMemory, "no room for {len} numbers of {dtype}, {} bytes", len.saturating_mul(dtype.bytes()))
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::F32(data) => data.len(),
            Self::F64(data) => data.len(),
            Self::U32(data) => data.len(),
        }
    }

    pub(crate) fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F64(_) => DType::F64,
            Self::U32(_) => DType::U32,
        }
    }

    /// Floats in another float type; everything else as it is.
    #[expect(clippy::cast_possible_truncation, reason = "rounding to the asked precision")]
    pub(crate) fn cast(self, dtype: DType) -> Self {
        match (self, dtype) {
            (Self::F64(data), DType::F32) => Self::F32(data.into_iter().map(|x| x as f32).collect()),
            (Self::F32(data), DType::F64) => Self::F64(data.into_iter().map(f64::from).collect()),
            (same, _) => same,
        }
    }

    /// The bytes, in the machine's order.
    #[cfg(feature = "gpu")]
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::F32(data) => bytemuck::cast_slice(data),
            Self::F64(data) => bytemuck::cast_slice(data),
            Self::U32(data) => bytemuck::cast_slice(data),
        }
    }

    /// Overwrites everything with what no kernel should ever read.
    pub(crate) fn poison(&mut self) {
        match self {
            Self::F32(data) => data.fill(f32::NAN),
            Self::F64(data) => data.fill(f64::NAN),
            Self::U32(data) => data.fill(u32::MAX),
        }
    }
}
