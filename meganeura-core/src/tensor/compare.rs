//! Approximate comparison of tensors, for tests.

use std::fmt;

use super::Tensor;
use crate::Result;
use crate::error::{bail, here};
use crate::host::{HostBuffer, try_collect};

impl Tensor {
    /// `true` if each number is within `absolute + relative·|expected|` of the expected one.
    ///
    /// NaN is close to nothing, infinity only to itself. Reads both tensors, which may be on different devices.
    ///
    /// # Errors
    ///
    /// Fails if shapes or kinds of elements differ, or if a device was lost.
    #[track_caller]
    pub fn allclose(&self, expected: &Self, relative: f64, absolute: f64) -> Result<bool> {
        here(|| Ok(self.farthest(expected, relative, absolute)?.is_none()))
    }

    /// Fails unless the numbers are close, as [`allclose`](Self::allclose) defines it.
    ///
    /// This is for tests: the error shows how many numbers are too far off, and which is farthest.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let x = Tensor::from_slice(&device, [2, 2], &[1.0, 2.0, 3.0, 4.0])?;
    /// let y = Tensor::from_slice(&device, [2, 2], &[1.0, 2.0, 3.0, 4.5])?;
    /// x.expect_close(&x, 1e-5, 0.0)?;
    /// let error = x.expect_close(&y, 1e-5, 0.0).unwrap_err();
    /// assert!(error.to_string().contains("1 of 4 numbers differ, most of all that at [1, 1]: 4, expected 4.5"));
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if a number is too far off, or like [`allclose`](Self::allclose).
    #[doc(alias = "assert_close")]
    #[track_caller]
    pub fn expect_close(&self, expected: &Self, relative: f64, absolute: f64) -> Result<()> {
        here(|| {
            let Some(Farthest { count, at, found, expected }) = self.farthest(expected, relative, absolute)? else {
                return Ok(());
            };
            let mut place = Vec::new();
            let mut left = at;
            for &extent in self.shape().dims().iter().rev() {
                place.insert(0, left % extent);
                left /= extent;
            }
            let elements = self.shape().elements();
            bail!(
                Argument,
                "{count} of {elements} numbers differ, most of all that at {place:?}: {found}, expected {expected}"
            );
        })
    }

    fn farthest(&self, expected: &Self, relative: f64, absolute: f64) -> Result<Option<Farthest>> {
        let is_float = |tensor: &Self| tensor.ty().dtype.is_float();
        if self.shape() != expected.shape() || is_float(self) != is_float(expected) {
            bail!(Shape, "{} is compared with {}", self.ty(), expected.ty());
        }
        let (found, expected) = (self.numbers()?, expected.numbers()?);
        let mut farthest: Option<Farthest> = None;
        for (at, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
            let difference = found.distance(expected);
            let excess = difference - (absolute + relative * expected.float().abs());
            // Infinity minus itself is NaN.
            let is_same = found.float().to_bits() == expected.float().to_bits() && !found.float().is_nan();
            if is_same && difference.is_nan() || excess <= 0.0 {
                continue;
            }
            let is_farther = |farthest: &Farthest| {
                let known = farthest.found.distance(farthest.expected);
                !known.is_nan() && (difference > known || excess.is_nan())
            };
            let count = farthest.as_ref().map_or(0, |farthest| farthest.count) + 1;
            farthest = match farthest {
                Some(known) if !is_farther(&known) => Some(Farthest { count, ..known }),
                _ => Some(Farthest { count, at, found, expected }),
            };
        }
        Ok(farthest)
    }

    /// The elements, of any type.
    pub(super) fn numbers(&self) -> Result<Vec<Number>> {
        match self.to_host_here()? {
            HostBuffer::U32(data) => try_collect(data.into_iter().map(|x| Number::Integer(x.into()))),
            HostBuffer::I32(data) => try_collect(data.into_iter().map(|x| Number::Integer(x.into()))),
            HostBuffer::I64(data) => try_collect(data.into_iter().map(Number::Integer)),
            floats => try_collect(Self::as_f64(floats)?.into_iter().map(Number::Float)),
        }
    }
}

/// An element of a tensor, exactly.
#[derive(Clone, Copy)]
pub(super) enum Number {
    Float(f64),
    Integer(i64),
}

impl Number {
    /// The nearest float.
    #[expect(clippy::cast_precision_loss, reason = "as documented")]
    pub(super) fn float(self) -> f64 {
        match self {
            Self::Float(x) => x,
            Self::Integer(x) => x as f64,
        }
    }

    /// `|self − other|`; the nearest float for integers.
    #[expect(clippy::cast_precision_loss, reason = "as documented")]
    fn distance(self, other: Self) -> f64 {
        match (self, other) {
            (Self::Integer(x), Self::Integer(y)) => x.abs_diff(y) as f64,
            _ => (self.float() - other.float()).abs(),
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float(x) => x.fmt(f),
            Self::Integer(x) => x.fmt(f),
        }
    }
}

/// The number that is farthest off.
struct Farthest {
    /// The count of numbers that are too far off.
    count: usize,
    at: usize,
    found: Number,
    expected: Number,
}
