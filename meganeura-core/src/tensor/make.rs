//! Tensors of ones, number sequences and the identity matrix.

use super::Tensor;
use crate::error::{bail, here};
use crate::host::try_collect;
use crate::{Device, Result, Shape};

impl Tensor {
    /// A tensor of ones.
    ///
    /// # Errors
    ///
    /// Fails like [`Tensor::full`].
    #[track_caller]
    pub fn ones(device: &Device, shape: impl Into<Shape>) -> Result<Self> {
        Self::full(device, shape, 1.0)
    }

    /// The numbers `start, start + step, …` before `end`: `[⌈(end − start)/step⌉]`.
    ///
    /// Each number is computed independently, so rounding errors do not accumulate.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// assert_eq!(Tensor::arange(&Device::cpu(), 1.0, 2.0, 0.25)?.to_vec()?, [1.0, 1.25, 1.5, 1.75]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if an argument is not finite, if there is no number between `start` and `end` in the direction of `step`,
    /// or if the device has no room.
    #[track_caller]
    pub fn arange(device: &Device, start: f64, end: f64, step: f64) -> Result<Self> {
        here(|| {
            let count = ((end - start) / step).ceil();
            if ![start, end, step].iter().all(|x| x.is_finite()) || count.is_nan() || count < 1.0 {
                bail!(Argument, "there are no numbers from {start} to {end} in steps of {step}");
            }
            Self::numbered(device, count, |i| i.mul_add(step, start))
        })
    }

    /// `count` equally spaced numbers from `start` to `end`, both included: `[count]`. A single number is `start`.
    ///
    /// # Errors
    ///
    /// Fails if an argument is not finite, if `count` is 0, or if the device has no room.
    #[track_caller]
    pub fn linspace(device: &Device, start: f64, end: f64, count: usize) -> Result<Self> {
        here(|| {
            if !start.is_finite() || !end.is_finite() || count == 0 {
                bail!(Argument, "{count} numbers from {start} to {end}");
            }
            let last = (count as f64 - 1.0).max(1.0);
            // From the nearer end, so that both ends are exact.
            let at = |i: f64| {
                if i * 2.0 <= last {
                    start + (end - start) * (i / last)
                } else {
                    end - (end - start) * ((last - i) / last)
                }
            };
            Self::numbered(device, count as f64, at)
        })
    }

    /// The numbers `at(0)` to `at(count − 1)`.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count that fits is a small whole number"
    )]
    fn numbered(device: &Device, count: f64, at: impl Fn(f64) -> f64) -> Result<Self> {
        if count > f64::from(u32::MAX) {
            bail!(OutOfMemory, "{count} numbers are too many for a tensor");
        }
        let count = count as usize;
        let data = try_collect((0..count).map(|i| at(i as f64)))?;
        Self::from_f64(device, [count], &data)
    }

    /// The identity matrix: `[n, n]`.
    ///
    /// # Errors
    ///
    /// Fails if `n` is 0, or if the device has no room.
    #[track_caller]
    pub fn eye(device: &Device, n: usize) -> Result<Self> {
        here(|| {
            let zeros = Self::zeros(device, [n, n])?;
            zeros.map(|zeros| zeros.tape().iota([n, 1], 0).eq(zeros.tape().iota([1, n], 1)))
        })
    }
}
