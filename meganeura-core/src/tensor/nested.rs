//! Tensors from nested arrays.

use super::Tensor;
use crate::error::{bail, here};
use crate::{Device, Result, Shape};

/// A number, or an array or `Vec` of such, to any depth: the argument of [`Tensor::new`].
pub trait Nested {
    /// The type of the numbers.
    #[doc(hidden)]
    type Number: Number;

    /// Notes the extents from an axis on. `false` if rows differ in their number of elements.
    #[doc(hidden)]
    fn measure(&self, axis: usize, extents: &mut Vec<usize>) -> bool;

    #[doc(hidden)]
    fn push_onto(self, numbers: &mut Vec<Self::Number>);
}

/// An element type of [`Tensor::new`].
#[doc(hidden)]
pub trait Number: Sized {
    #[doc(hidden)]
    #[track_caller]
    fn tensor(device: &Device, shape: Shape, numbers: &[Self]) -> Result<Tensor>;
}

macro_rules! numbers {
    ($($T:ty, $make:ident;)+) => {
        $(
            impl Number for $T {
                fn tensor(device: &Device, shape: Shape, numbers: &[Self]) -> Result<Tensor> {
                    Tensor::$make(device, shape, numbers)
                }
            }
            impl Nested for $T {
                type Number = $T;

                fn measure(&self, axis: usize, extents: &mut Vec<usize>) -> bool {
                    extents.len() == axis
                }

                fn push_onto(self, numbers: &mut Vec<$T>) {
                    numbers.push(self);
                }
            }
        )+
    };
}

numbers! {
    f32, from_slice;
    f64, from_f64;
    u32, indices;
    i32, from_i32;
    i64, from_i64;
    bool, from_bools;
}

fn measure_rows<T: Nested>(rows: &[T], axis: usize, extents: &mut Vec<usize>) -> bool {
    match extents.get(axis) {
        None => extents.push(rows.len()),
        Some(extent) if *extent != rows.len() => return false,
        Some(_) => {}
    }
    rows.iter().all(|row| row.measure(axis + 1, extents))
}

impl<T: Nested, const N: usize> Nested for [T; N] {
    type Number = T::Number;

    fn measure(&self, axis: usize, extents: &mut Vec<usize>) -> bool {
        measure_rows(self, axis, extents)
    }

    fn push_onto(self, numbers: &mut Vec<T::Number>) {
        self.into_iter().for_each(|row| row.push_onto(numbers));
    }
}

impl<T: Nested> Nested for Vec<T> {
    type Number = T::Number;

    fn measure(&self, axis: usize, extents: &mut Vec<usize>) -> bool {
        measure_rows(self, axis, extents)
    }

    fn push_onto(self, numbers: &mut Vec<T::Number>) {
        self.into_iter().for_each(|row| row.push_onto(numbers));
    }
}

impl Tensor {
    /// A tensor from a number, or from nested arrays or `Vec`s of numbers. `f32` and `f64` give floats, `u32` indices,
    /// `i32` and `i64` integers, `bool` a mask.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let x = Tensor::new(&Device::cpu(), [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])?;
    /// assert_eq!(x.shape(), Shape::from([2, 3]));
    /// let ragged = Tensor::new(&Device::cpu(), vec![vec![1.0, 2.0], vec![3.0]]);
    /// assert!(ragged.is_err());
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if rows have different numbers of elements, if there are more axes than a [`Shape`] has, if there is no
    /// element, or if the device has no room.
    #[doc(alias("tensor", "from_data"))]
    #[track_caller]
    pub fn new(device: &Device, numbers: impl Nested) -> Result<Self> {
        here(|| {
            let (mut extents, mut flat) = (Vec::new(), Vec::new());
            if !numbers.measure(0, &mut extents) {
                bail!(Shape, "the rows have different numbers of elements");
            }
            if extents.len() > crate::MAX_RANK {
                bail!(Shape, "{} axes; a tensor has at most {}", extents.len(), crate::MAX_RANK);
            }
            numbers.push_onto(&mut flat);
            Number::tensor(device, Shape::new(&extents), &flat)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, ErrorKind};

    #[test]
    fn nesting_gives_the_shape_and_the_number_the_type() -> Result<()> {
        let device = Device::cpu();
        let cube = Tensor::new(&device, [[[1.0f32, 2.0]], [[3.0, 4.0]], [[5.0, 6.0]]])?;
        assert_eq!((cube.shape(), cube.to_vec()?), (Shape::from([3, 1, 2]), vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
        assert_eq!(Tensor::new(&device, 2.5)?.shape(), Shape::SCALAR);
        assert_eq!(Tensor::new(&device, vec![[1u32, 2], [3, 4]])?.to_u32_vec()?, [1, 2, 3, 4]);
        assert_eq!(Tensor::new(&device, [1, -2])?.ty().dtype, DType::I32);
        assert_eq!(Tensor::new(&device, [1i64 << 40])?.to_i64_vec()?, [1 << 40]);
        assert_eq!(Tensor::new(&device, [true, false])?.to_vec()?, [1.0, 0.0]);
        for ragged in [vec![vec![1.0], vec![2.0, 3.0]], vec![vec![], vec![1.0]], vec![vec![1.0], vec![]]] {
            assert_eq!(Tensor::new(&device, ragged).unwrap_err().kind(), ErrorKind::Shape);
        }
        assert!(Tensor::new(&device, Vec::<f32>::new()).is_err());
        assert!(Tensor::new(&device, [[[[[[[[[1.0]]]]]]]]]).is_err());
        Ok(())
    }
}
