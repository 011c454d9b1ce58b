//! Approximate comparison of tensors, for tests.

use super::Tensor;
use crate::error::{bail, here};
use crate::host::HostBuffer;
use crate::{DType, Result};

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
        if self.shape() != expected.shape() || (self.ty().dtype == DType::U32) != (expected.ty().dtype == DType::U32) {
            bail!(Shape, "{} is compared with {}", self.ty(), expected.ty());
        }
        let (found, expected) = (self.numbers()?, expected.numbers()?);
        let mut farthest: Option<Farthest> = None;
        for (at, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
            let excess = (found - expected).abs() - (absolute + relative * expected.abs());
            // Infinity minus itself is NaN.
            if found.to_bits() == expected.to_bits() && !found.is_nan() || excess <= 0.0 {
                continue;
            }
            let is_farther = |farthest: &Farthest| {
                let difference = (farthest.found - farthest.expected).abs();
                !difference.is_nan() && ((found - expected).abs() > difference || excess.is_nan())
            };
            let count = farthest.as_ref().map_or(0, |farthest| farthest.count) + 1;
            farthest = match farthest {
                Some(known) if !is_farther(&known) => Some(Farthest { count, ..known }),
                _ => Some(Farthest { count, at, found, expected }),
            };
        }
        Ok(farthest)
    }

    /// The elements of any type as `f64`.
    pub(super) fn numbers(&self) -> Result<Vec<f64>> {
        match self.to_host_here()? {
            HostBuffer::U32(data) => Ok(data.into_iter().map(f64::from).collect()),
            floats => Self::as_f64(floats),
        }
    }
}

/// The number that is farthest off.
struct Farthest {
    /// The count of numbers that are too far off.
    count: usize,
    at: usize,
    found: f64,
    expected: f64,
}
