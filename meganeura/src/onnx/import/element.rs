//! The element types of a file.

use super::narrow::Rounding;
use crate::io::narrow::Narrow;
use crate::onnx::proto::{self, element, element_name};
use crate::{DType, Error, ErrorKind, Result};

/// The type of a value's elements in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::onnx) enum Element {
    F16,
    Bf16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    Bool,
    String,
    I4,
    U4,
    I2,
    U2,
    /// A float of at most 8 bits.
    Narrow(Narrow),
}

/// A kind of elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::onnx) enum Kind {
    Float,
    Int,
    Bool,
    Text,
}

impl Element {
    /// The type with this number in files.
    pub(super) fn of(number: i32) -> Option<Self> {
        Some(match number {
            element::FLOAT16 => Self::F16,
            element::BFLOAT16 => Self::Bf16,
            element::FLOAT => Self::F32,
            element::DOUBLE => Self::F64,
            element::INT8 => Self::I8,
            element::INT16 => Self::I16,
            element::INT32 => Self::I32,
            element::INT64 => Self::I64,
            element::UINT8 => Self::U8,
            element::UINT16 => Self::U16,
            element::UINT32 => Self::U32,
            element::UINT64 => Self::U64,
            element::BOOL => Self::Bool,
            element::STRING => Self::String,
            element::INT4 => Self::I4,
            element::UINT4 => Self::U4,
            element::INT2 => Self::I2,
            element::UINT2 => Self::U2,
            element::FLOAT8E4M3FN => Self::Narrow(Narrow::E4M3Fn),
            element::FLOAT8E4M3FNUZ => Self::Narrow(Narrow::E4M3Fnuz),
            element::FLOAT8E5M2 => Self::Narrow(Narrow::E5M2),
            element::FLOAT8E5M2FNUZ => Self::Narrow(Narrow::E5M2Fnuz),
            element::FLOAT8E8M0 => Self::Narrow(Narrow::E8M0),
            element::FLOAT4E2M1 => Self::Narrow(Narrow::E2M1),
            _ => return None,
        })
    }

    /// The type of a tensor.
    pub(super) fn of_tensor(tensor: &proto::Tensor) -> Result<Self> {
        Self::of(tensor.data_type).ok_or_else(|| unsupported(tensor.data_type))
    }

    fn number(self) -> i32 {
        match self {
            Self::F16 => element::FLOAT16,
            Self::Bf16 => element::BFLOAT16,
            Self::F32 => element::FLOAT,
            Self::F64 => element::DOUBLE,
            Self::I8 => element::INT8,
            Self::I16 => element::INT16,
            Self::I32 => element::INT32,
            Self::I64 => element::INT64,
            Self::U8 => element::UINT8,
            Self::U16 => element::UINT16,
            Self::U32 => element::UINT32,
            Self::U64 => element::UINT64,
            Self::Bool => element::BOOL,
            Self::String => element::STRING,
            Self::I4 => element::INT4,
            Self::U4 => element::UINT4,
            Self::I2 => element::INT2,
            Self::U2 => element::UINT2,
            Self::Narrow(Narrow::E4M3Fn) => element::FLOAT8E4M3FN,
            Self::Narrow(Narrow::E4M3Fnuz) => element::FLOAT8E4M3FNUZ,
            Self::Narrow(Narrow::E5M2) => element::FLOAT8E5M2,
            Self::Narrow(Narrow::E5M2Fnuz) => element::FLOAT8E5M2FNUZ,
            Self::Narrow(Narrow::E8M0) => element::FLOAT8E8M0,
            Self::Narrow(Narrow::E2M1) => element::FLOAT4E2M1,
        }
    }

    /// The name in messages.
    pub(super) fn name(self) -> &'static str {
        element_name(self.number())
    }

    pub(super) fn kind(self) -> Kind {
        match self {
            Self::F16 | Self::Bf16 | Self::F32 | Self::F64 | Self::Narrow(_) => Kind::Float,
            Self::Bool => Kind::Bool,
            Self::String => Kind::Text,
            _ => Kind::Int,
        }
    }

    /// The number of bits of an integer, and `true` if it has a sign.
    pub(super) fn integer(self) -> Option<(u32, bool)> {
        Some(match self {
            Self::I2 => (2, true),
            Self::U2 => (2, false),
            Self::I4 => (4, true),
            Self::U4 => (4, false),
            Self::I8 => (8, true),
            Self::I16 => (16, true),
            Self::I32 => (32, true),
            Self::I64 => (64, true),
            Self::U8 => (8, false),
            Self::U16 => (16, false),
            Self::U32 => (32, false),
            Self::U64 => (64, false),
            _ => return None,
        })
    }

    /// The type of its integers on the tape, `None` if it has none: `i32` for those of up to 32 bits with a sign, or up
    /// to 16 without, else `i64`. Those of `uint64` have the same 64 bits. Texts are numbered, in `i64`.
    pub(super) fn integer_dtype(self) -> Option<DType> {
        match self.integer() {
            Some((..=16, _) | (32, true)) => Some(DType::I32),
            Some(_) => Some(DType::I64),
            None => (self == Self::String).then_some(DType::I64),
        }
    }

    /// `true` for a type that is only stored: its elements are moved and converted, but not computed with.
    pub(super) fn is_stored_only(self) -> bool {
        matches!(self, Self::I4 | Self::U4 | Self::I2 | Self::U2 | Self::Narrow(_))
    }

    /// The type of its elements on the tape of a device whose floats are of type `float`.
    pub(super) fn dtype(self, float: DType) -> DType {
        self.integer_dtype().unwrap_or(float)
    }

    /// The smallest and the largest value.
    pub(super) fn bounds(self) -> [f64; 2] {
        match self.integer() {
            Some((bits, true)) => {
                let half = 2f64.powi(bits.cast_signed() - 1);
                [-half, half - 1.0]
            }
            Some((bits, false)) => [0.0, 2f64.powi(bits.cast_signed()) - 1.0],
            None if self == Self::Bool => [0.0, 1.0],
            None => [f64::NEG_INFINITY, f64::INFINITY],
        }
    }

    /// An integer, wrapped around as two's complement. One of `uint64` is its 64 bits.
    #[expect(clippy::cast_possible_truncation, reason = "the bits of an integer of at most 64")]
    pub(super) fn wrapped(self, number: i128) -> i64 {
        let Some((bits, is_signed)) = self.integer() else { return i64::from(number != 0) };
        let low = number.rem_euclid(1 << bits);
        let wrapped = if is_signed && low >= 1 << (bits - 1) { low - (1 << bits) } else { low };
        wrapped as i64
    }

    /// A float, rounded to this type; 16-bit types are widened to `f32`.
    #[expect(clippy::cast_possible_truncation, reason = "the type is that of the file")]
    pub(super) fn rounded(self, number: f64) -> f64 {
        match self {
            Self::F64 => number,
            Self::Narrow(format) => Rounding { format, saturates: true }.of(number),
            _ => f64::from(number as f32),
        }
    }
}

/// The error for an element type that cannot be read.
pub(super) fn unsupported(number: i32) -> Error {
    let message = format!("elements of type {number}, {}, are not supported", element_name(number));
    Error::new(ErrorKind::Checkpoint, message)
}
