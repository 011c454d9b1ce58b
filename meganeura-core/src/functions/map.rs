//! Functions of tensors.

use super::axis::Axis;
use crate::error::here;
use crate::{Result, Tape, Tensor, Var};

impl Tensor {
    /// Applies a function of [`Var`]s to this tensor, without a visible tape.
    ///
    /// The function may use every operation and layer. It runs in evaluation mode, like
    /// [`Tape::inference`](crate::Tape::inference).
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let x = Tensor::from_slice(&Device::cpu(), [3], &[1.0, 3.0, 2.0])?;
    /// assert_eq!(x.map(|x| x.argmax(0))?.to_u32_vec()?, [1]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Any error of the function's operations, or of the device.
    #[track_caller]
    pub fn map(&self, f: impl FnOnce(&Var) -> Var) -> Result<Self> {
        let tape = Tape::inference(self.device());
        let result = f(&tape.input(self));
        here(|| result.to_tensor())
    }

    /// The index of the largest number along an axis, as `u32`; see [`Var::argmax`].
    ///
    /// # Errors
    ///
    /// Fails if there is no such axis, and if the device does.
    #[track_caller]
    pub fn argmax(&self, axis: impl Axis) -> Result<Self> {
        self.map(|x| x.argmax(axis))
    }

    /// Applies a function of [`Var`]s to two tensors.
    #[track_caller]
    fn map_with(&self, other: &Self, f: impl FnOnce(&Var, &Var) -> Var) -> Result<Self> {
        let tape = Tape::inference(self.device());
        let result = f(&tape.input(self), &tape.input(other));
        here(|| result.to_tensor())
    }
}

/// Arithmetic of tensors, with NumPy's broadcasting: `(&a + &b)?`, `(&a * 2.0)?`. Each operator is a run of its own;
/// [`Tensor::map`] computes several in one.
macro_rules! operators {
    ($($Trait:ident $method:ident;)+) => {
        $(
            impl std::ops::$Trait<&Tensor> for &Tensor {
                type Output = Result<Tensor>;
                #[track_caller]
                fn $method(self, other: &Tensor) -> Result<Tensor> {
                    self.map_with(other, |a, b| std::ops::$Trait::$method(a, b))
                }
            }
            operators! { @number $Trait $method: f64, i32 }
        )+
    };
    (@number $Trait:ident $method:ident: $($Number:ty),+) => {
        $(
            impl std::ops::$Trait<$Number> for &Tensor {
                type Output = Result<Tensor>;
                #[track_caller]
                fn $method(self, other: $Number) -> Result<Tensor> {
                    self.map(|x| std::ops::$Trait::$method(x, other))
                }
            }
            impl std::ops::$Trait<&Tensor> for $Number {
                type Output = Result<Tensor>;
                #[track_caller]
                fn $method(self, other: &Tensor) -> Result<Tensor> {
                    other.map(|x| std::ops::$Trait::$method(self, x))
                }
            }
        )+
    };
}

operators! {
    Add add;
    Sub sub;
    Mul mul;
    Div div;
}

#[cfg(test)]
mod tests {
    use crate::{Device, ErrorKind, Result, Tape, Tensor, Var};

    #[test]
    fn tensors_compute_with_tensors_and_numbers() -> Result<()> {
        let device = Device::cpu();
        let (a, b) = (Tensor::new(&device, [[1.0, 2.0], [3.0, 8.0]])?, Tensor::new(&device, [2.0, 4.0])?);
        for (result, expected) in [
            (&a + &b, [3.0, 6.0, 5.0, 12.0]),
            (&a - &b, [-1.0, -2.0, 1.0, 4.0]),
            (&a * 2, [2.0, 4.0, 6.0, 16.0]),
            (2.0 / &a, [2.0, 1.0, 2.0 / 3.0, 0.25]),
            (1 - &a, [0.0, -1.0, -2.0, -7.0]),
            (&a / &b, [0.5, 0.5, 1.5, 2.0]),
        ] {
            assert_eq!(result?.to_vec()?, expected);
        }
        assert_eq!(a.argmax(0)?.to_u32_vec()?, [1, 1]);
        let misfit = (&a + &Tensor::new(&device, [1.0, 2.0, 3.0])?).unwrap_err();
        assert!(misfit.kind() == ErrorKind::Shape && misfit.location().unwrap().file().ends_with("map.rs"), "{misfit}");
        assert_eq!(a.argmax(2).unwrap_err().kind(), ErrorKind::Shape);
        Ok(())
    }

    #[test]
    fn values_compute_with_numbers_of_either_type_on_either_side() -> Result<()> {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let x = tape.input(&Tensor::new(&device, [1.0, -2.0, 4.0])?);
        let mut y = 2 * &x + 1;
        y -= &x;
        y *= 3.0;
        y /= 2;
        y += x.clone();
        for (result, expected) in [
            (y, [4.0, -3.5, 11.5]),
            ((10 - &x).relu(), [9.0, 12.0, 6.0]),
            (x.gt(0.0) + x.eq(-2), [1.0, 1.0, 1.0]),
            (x.maximum(0.5f32) + x.minimum(&x), [2.0, -1.5, 8.0]),
            (x.clamp_min(0.0) + x.clamp_max(1.0), [2.0, -2.0, 5.0]),
            ([&x, &x].into_iter().map(|x| x * 2.0).sum::<Var>(), [4.0, -8.0, 16.0]),
            (Var::concat(&[x.clone(), x.clone()], 0).slice(0, 2..5), [4.0, 1.0, -2.0]),
            (Var::stack(&[&x, &x], 0).slice(0, 1..2).reshape([3]), [1.0, -2.0, 4.0]),
        ] {
            assert_eq!(result.to_vec()?, expected);
        }
        let whole = tape.input(&Tensor::new(&device, [1, 2, 3])?);
        assert_eq!((whole.clone() * 2 + 1).to_tensor()?.to_i32_vec()?, [3, 5, 7]);
        assert_eq!((whole * 0.5).to_tensor().unwrap_err().kind(), ErrorKind::Argument);
        Ok(())
    }
}
