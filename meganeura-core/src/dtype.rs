//! Element types, and the type of a tensor: its element type and shape.

use std::fmt;
use std::ops::RangeInclusive;

use crate::Shape;

/// The type of a tensor's elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DType {
    /// 32-bit float, the type that layers compute in.
    F32,
    /// 64-bit float, the type for checking gradients. CPU only.
    F64,
    /// 32-bit unsigned integer, for class labels, indices and random seeds: it is moved and converted, and there is no
    /// arithmetic on it. Has no gradient.
    U32,
    /// 32-bit signed integer, which wraps around. Has no gradient.
    I32,
    /// 64-bit signed integer, which wraps around. Has no gradient.
    I64,
}

impl DType {
    /// The size of one element in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::U32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }

    /// `true` if values of this type can have a gradient.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }

    /// `true` for signed integers, which have arithmetic.
    #[must_use]
    pub const fn is_integer(self) -> bool {
        matches!(self, Self::I32 | Self::I64)
    }

    /// The integers of this type, `None` for floats.
    pub(crate) fn integers(self) -> Option<RangeInclusive<i64>> {
        match self {
            Self::U32 => Some(0..=i64::from(u32::MAX)),
            Self::I32 => Some(i64::from(i32::MIN)..=i64::from(i32::MAX)),
            Self::I64 => Some(i64::MIN..=i64::MAX),
            Self::F32 | Self::F64 => None,
        }
    }

    /// This number, if it is an integer of this type.
    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "checked afterwards")]
    pub(crate) fn integer(self, number: f64) -> Option<i64> {
        // 2⁶³ and above would become the largest integer.
        let integer = number as i64;
        let is_whole = integer as f64 == number && number < 9_223_372_036_854_775_808.0;
        (is_whole && self.integers()?.contains(&integer)).then_some(integer)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::I64 => "i64",
        })
    }
}

/// `true` for a number that is positive on every device. GPUs may flush subnormal `f32` numbers to 0.
#[expect(clippy::cast_possible_truncation, reason = "asks about the rounded number")]
pub(crate) fn is_positive(x: f64) -> bool {
    x > 0.0 && (x as f32).is_normal()
}

/// The error message for an `eps` that cannot keep a denominator above 0.
pub fn check_eps(eps: f64) -> Result<(), String> {
    if is_positive(eps) {
        return Ok(());
    }
    Err(format!(
        "eps is {eps:?}; it must be finite in f32, and at least 1.2e-38: what is smaller can be 0, and 0/0 is NaN"
    ))
}

/// The element type and shape of a tensor: all that recording an operation needs to know of its operands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TensorType {
    /// The type of each element.
    pub dtype: DType,
    /// The extents along each axis.
    pub shape: Shape,
}

impl TensorType {
    /// The type with this element type and shape.
    #[must_use]
    pub const fn new(dtype: DType, shape: Shape) -> Self {
        Self { dtype, shape }
    }

    /// The same element type with another shape.
    #[must_use]
    pub fn with_shape(self, shape: impl Into<Shape>) -> Self {
        Self { shape: shape.into(), ..self }
    }

    /// The size of all elements in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shape.elements().saturating_mul(self.dtype.bytes())
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

/// The precision in which a device computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Precision {
    /// 32-bit floats everywhere.
    #[default]
    Full,
    /// 64-bit floats everywhere, for checking gradients. CPU only.
    Double,
    /// 16-bit products with 32-bit sums, on GPUs with matrix units only.
    ///
    /// Matrix products and convolutions multiply 16-bit floats on matrix units and accumulate in 32 bits. Images and
    /// large matrices between the operations of a step are stored in 16 bits (bf16). Parameters, their updates,
    /// statistics and losses are 32-bit floats, as is every tensor that you hold. There is no loss scale to set.
    Fast,
}

impl Precision {
    /// The element type of floats on a device with this precision.
    #[must_use]
    pub const fn dtype(self) -> DType {
        match self {
            Self::Full | Self::Fast => DType::F32,
            Self::Double => DType::F64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_an_integer_of_a_type_if_it_is_whole_and_in_range() {
        let most = 2f64.powi(63);
        for (dtype, number, integer) in [
            (DType::I64, -most, Some(i64::MIN)),
            (DType::I64, most, None),
            (DType::I64, 0.5, None),
            (DType::I64, f64::NAN, None),
            (DType::I64, f64::INFINITY, None),
            (DType::I64, -0.0, Some(0)),
            (DType::I32, 2_147_483_648.0, None),
            (DType::I32, -2_147_483_648.0, Some(i64::from(i32::MIN))),
            (DType::U32, 4_294_967_295.0, Some(i64::from(u32::MAX))),
            (DType::U32, -1.0, None),
            (DType::F32, 1.0, None),
        ] {
            assert_eq!(dtype.integer(number), integer, "{number} as {dtype}");
        }
    }

    #[test]
    fn eps_must_not_round_to_0_or_overflow() {
        for eps in [0.0, -1e-5, 1e-50, 1e-40, 1e39, f64::INFINITY, f64::NAN] {
            let message = check_eps(eps).unwrap_err();
            assert!(message.starts_with(&format!("eps is {eps:?};")), "{message}");
        }
        for eps in [f64::from(f32::MIN_POSITIVE), 1e-30, 1e-5, 3.0] {
            assert_eq!(check_eps(eps), Ok(()));
        }
    }
}
