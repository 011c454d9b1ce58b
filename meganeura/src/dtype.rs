//! Element types, and the type of a tensor: element type and shape.

use std::fmt;

use crate::Shape;

/// The type of a tensor's elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DType {
    /// 32-bit float: what layers compute with.
    F32,
    /// 64-bit float: what gradients are checked with, on the CPU.
    F64,
    /// 32-bit unsigned integer: class labels, indices and random seeds. Has no gradient.
    U32,
}

impl DType {
    /// Bytes of one element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::U32 => 4,
            Self::F64 => 8,
        }
    }

    /// Whether values of this type can have a gradient.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::U32 => "u32",
        })
    }
}

/// `true` for a positive number that is one on every device: GPUs may take for 0 what is below the normal numbers of
/// `f32`.
#[expect(clippy::cast_possible_truncation, reason = "asks about the rounded number")]
pub(crate) fn is_positive(x: f64) -> bool {
    x > 0.0 && (x as f32).is_normal()
}

/// The error message for a number that does not keep a denominator above 0.
pub(crate) fn check_eps(eps: f64) -> Result<(), String> {
    if is_positive(eps) {
        return Ok(());
    }
    Err(format!(
        "eps is {eps:?}; it must be finite in f32, and at least 1.2e-38: what is smaller can be 0, and 0/0 is NaN"
    ))
}

/// Element type and shape: all that recording an operation needs to know of its operands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TensorType {
    /// The type of each element.
    pub dtype: DType,
    /// The extents.
    pub shape: Shape,
}

impl TensorType {
    /// The type with these parts.
    #[must_use]
    pub const fn new(dtype: DType, shape: Shape) -> Self {
        Self { dtype, shape }
    }

    /// The same element type under another shape.
    #[must_use]
    pub fn with_shape(self, shape: impl Into<Shape>) -> Self {
        Self { shape: shape.into(), ..self }
    }

    /// Bytes of all elements.
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

/// How precisely a device computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Precision {
    /// 32-bit floats everywhere.
    #[default]
    Full,
    /// 64-bit floats everywhere; the CPU only. What gradients are checked with.
    Double,
    /// Matrix products and convolutions multiply 16-bit floats on matrix units and sum in 32 bits, and images and large
    /// matrices between the operations of a step are kept in 16 bits (bf16); GPUs that have such units only.
    /// Parameters, their updates, statistics and losses are 32-bit floats, as is every tensor that you hold. There is
    /// no loss scale to set.
    Fast,
}

impl Precision {
    /// The element type of the floats on a device of this precision.
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
    fn what_rounds_to_0_is_no_eps() {
        for eps in [0.0, -1e-5, 1e-50, 1e-40, 1e39, f64::INFINITY, f64::NAN] {
            let message = check_eps(eps).unwrap_err();
            assert!(message.starts_with(&format!("eps is {eps:?};")), "{message}");
        }
        for eps in [f64::from(f32::MIN_POSITIVE), 1e-30, 1e-5, 3.0] {
            assert_eq!(check_eps(eps), Ok(()));
        }
    }
}
