//! The inputs or targets of an example, and their stacking into tensors.

use super::Array;
use super::array::Number;
use crate::error::bail;
use crate::host::{reserve, try_collect};
use crate::{Device, Result, Shape, Tensor, TensorType};

/// The inputs or the targets of an example: any number of fields, of any shape, of `f32` or `u32`.
///
/// | fields of an example | in a batch of N examples |
/// |---|---|
/// | `Array<f32>`, `Array<u32>` of shape `[…]` | a [`Tensor`] `[N, …]` |
/// | `u32`, a label; `f32` | a [`Tensor`] `[N]` |
/// | a tuple of up to six, an array `[F; M]`, a `Vec` of fields | a tuple, an array, a `Vec` of the same length |
/// | `()`, for nothing | `()` |
///
/// Your own struct can be fields as well; its methods call those of its fields.
///
/// ```
/// use meganeura::data::{Array, Fields};
/// use meganeura::{Device, Result, Tensor, TensorType};
///
/// /// Two pictures of the same place.
/// struct Stereo<A = Array<f32>> {
///     left: A,
///     right: A,
/// }
///
/// impl Fields for Stereo {
///     type Stacked = Self;
///     type Tensors = Stereo<Tensor>;
///
///     fn types(&self) -> Vec<TensorType> {
///         [self.left.types(), self.right.types()].concat()
///     }
///
///     fn stack(self, count: usize) -> Result<Self> {
///         Ok(Self { left: self.left.stack(count)?, right: self.right.stack(count)? })
///     }
///
///     fn push_onto(self, batch: &mut Self) -> Result<()> {
///         self.left.push_onto(&mut batch.left)?;
///         self.right.push_onto(&mut batch.right)
///     }
///
///     fn into_tensors(self, device: &Device) -> Result<Stereo<Tensor>> {
///         Ok(Stereo { left: self.left.into_tensors(device)?, right: self.right.into_tensors(device)? })
///     }
/// }
/// ```
pub trait Fields: Sized + Send + 'static {
    /// The fields of a batch on the host: those of its examples, with an additional first axis.
    type Stacked: Fields;

    /// The fields on a device.
    type Tensors: Send + 'static;

    /// The element type and shape of each field. Examples with different types do not make a batch.
    fn types(&self) -> Vec<TensorType>;

    /// A batch that starts with this example and has room for `count` examples.
    ///
    /// # Errors
    ///
    /// Fails if a shape has no elements or leaves no axis for the batch, or there is no memory.
    fn stack(self, count: usize) -> Result<Self::Stacked>;

    /// Appends this example to a batch.
    ///
    /// # Errors
    ///
    /// Fails if a shape differs from that of the first example, or if there is no memory.
    fn push_onto(self, batch: &mut Self::Stacked) -> Result<()>;

    /// The fields as tensors; floats in the device's precision.
    ///
    /// # Errors
    ///
    /// Fails if a field has no elements, or the device has no room for it.
    fn into_tensors(self, device: &Device) -> Result<Self::Tensors>;
}

impl<E: Number> Fields for Array<E> {
    type Stacked = Self;
    type Tensors = Tensor;

    fn types(&self) -> Vec<TensorType> {
        vec![TensorType::new(Self::dtype(), self.shape())]
    }

    fn stack(self, count: usize) -> Result<Self> {
        self.begin(count)
    }

    fn push_onto(self, batch: &mut Self) -> Result<()> {
        batch.push(self.values(), self.shape())
    }

    fn into_tensors(self, device: &Device) -> Result<Tensor> {
        self.into_tensor(device)
    }
}

/// A single number is an array without axes.
macro_rules! single {
    ($($number:ty)+) => {$(
        impl Fields for $number {
            type Stacked = Array<$number>;
            type Tensors = Tensor;

            fn types(&self) -> Vec<TensorType> {
                vec![TensorType::new(Array::<$number>::dtype(), Shape::from([]))]
            }

            fn stack(self, count: usize) -> Result<Array<$number>> {
                Array::new(vec![self], [])?.begin(count)
            }

            fn push_onto(self, batch: &mut Array<$number>) -> Result<()> {
                batch.push(&[self], Shape::from([]))
            }

            fn into_tensors(self, device: &Device) -> Result<Tensor> {
                Array::new(vec![self], [])?.into_tensor(device)
            }
        }
    )+};
}

single!(f32 u32);

macro_rules! tuples {
    ($(($($name:ident $place:tt),*))+) => {$(
        impl<$($name: Fields),*> Fields for ($($name,)*) {
            type Stacked = ($($name::Stacked,)*);
            type Tensors = ($($name::Tensors,)*);

            fn types(&self) -> Vec<TensorType> {
                [$(self.$place.types()),*].concat()
            }

            fn stack(self, count: usize) -> Result<Self::Stacked> {
                Ok(($(self.$place.stack(count)?,)*))
            }

            fn push_onto(self, batch: &mut Self::Stacked) -> Result<()> {
                $(self.$place.push_onto(&mut batch.$place)?;)*
                Ok(())
            }

            fn into_tensors(self, device: &Device) -> Result<Self::Tensors> {
                Ok(($(self.$place.into_tensors(device)?,)*))
            }
        }
    )+};
}

tuples! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
}

/// For examples without targets.
impl Fields for () {
    type Stacked = ();
    type Tensors = ();

    fn types(&self) -> Vec<TensorType> {
        Vec::new()
    }

    fn stack(self, _: usize) -> Result<()> {
        Ok(())
    }

    fn push_onto(self, (): &mut ()) -> Result<()> {
        Ok(())
    }

    fn into_tensors(self, _: &Device) -> Result<()> {
        Ok(())
    }
}

impl<F: Fields> Fields for Vec<F> {
    type Stacked = Vec<F::Stacked>;
    type Tensors = Vec<F::Tensors>;

    fn types(&self) -> Vec<TensorType> {
        self.iter().flat_map(F::types).collect()
    }

    fn stack(self, count: usize) -> Result<Self::Stacked> {
        self.into_iter().map(|field| field.stack(count)).collect()
    }

    fn push_onto(self, batch: &mut Self::Stacked) -> Result<()> {
        if self.len() != batch.len() {
            bail!(Shape, "{} fields among others of {}", self.len(), batch.len());
        }
        self.into_iter().zip(batch).try_for_each(|(field, batch)| field.push_onto(batch))
    }

    fn into_tensors(self, device: &Device) -> Result<Self::Tensors> {
        self.into_iter().map(|field| field.into_tensors(device)).collect()
    }
}

impl<F: Fields, const M: usize> Fields for [F; M] {
    type Stacked = [F::Stacked; M];
    type Tensors = [F::Tensors; M];

    fn types(&self) -> Vec<TensorType> {
        self.iter().flat_map(F::types).collect()
    }

    fn stack(self, count: usize) -> Result<Self::Stacked> {
        each(self, |field| field.stack(count))
    }

    fn push_onto(self, batch: &mut Self::Stacked) -> Result<()> {
        self.into_iter().zip(batch).try_for_each(|(field, batch)| field.push_onto(batch))
    }

    fn into_tensors(self, device: &Device) -> Result<Self::Tensors> {
        each(self, |field| field.into_tensors(device))
    }
}

fn each<F, G, const M: usize>(fields: [F; M], of: impl FnMut(F) -> Result<G>) -> Result<[G; M]> {
    let fields: Vec<_> = fields.into_iter().map(of).collect::<Result<_>>()?;
    Ok(fields.try_into().unwrap_or_else(|_| unreachable!("as many as before")))
}

/// The inputs or the targets of all examples of a dataset in memory ([`Dataset::from_columns`]).
///
/// `Vec<u32>` and `Vec<f32>` have one number per example; the first axis of an [`Array`] counts the examples. Tuples of
/// up to six, and arrays, have that many fields. `()` has none.
///
/// [`Dataset::from_columns`]: super::Dataset::from_columns
pub trait Columns: Send + Sync + 'static {
    /// The fields of an example.
    type Fields: Fields;

    /// Appends the number of examples of each column.
    ///
    /// # Errors
    ///
    /// Fails if a column has no first axis.
    fn counts(&self, counts: &mut Vec<usize>) -> Result<()>;

    /// The fields of example `index`, which is in range for all columns.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory for them.
    fn row(&self, index: usize) -> Result<Self::Fields>;
}

impl<E: Number + Fields> Columns for Vec<E> {
    type Fields = E;

    fn counts(&self, counts: &mut Vec<usize>) -> Result<()> {
        counts.push(self.len());
        Ok(())
    }

    fn row(&self, index: usize) -> Result<E> {
        Ok(self[index])
    }
}

impl<E: Number> Columns for Array<E> {
    type Fields = Self;

    fn counts(&self, counts: &mut Vec<usize>) -> Result<()> {
        let Some(&count) = self.shape().dims().first() else {
            bail!(Shape, "a single number has no axis that counts examples");
        };
        counts.push(count);
        Ok(())
    }

    fn row(&self, index: usize) -> Result<Self> {
        let shape = Shape::new(&self.shape().dims()[1..]);
        let size = shape.elements();
        Array::new(try_collect(self.values()[index * size..][..size].iter().copied())?, shape)
    }
}

macro_rules! columns {
    ($(($($name:ident $place:tt),*))+) => {$(
        impl<$($name: Columns),*> Columns for ($($name,)*) {
            type Fields = ($($name::Fields,)*);

            fn counts(&self, counts: &mut Vec<usize>) -> Result<()> {
                $(self.$place.counts(counts)?;)*
                Ok(())
            }

            fn row(&self, index: usize) -> Result<Self::Fields> {
                Ok(($(self.$place.row(index)?,)*))
            }
        }
    )+};
}

columns! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
}

impl Columns for () {
    type Fields = ();

    fn counts(&self, _: &mut Vec<usize>) -> Result<()> {
        Ok(())
    }

    fn row(&self, _: usize) -> Result<()> {
        Ok(())
    }
}

impl<C: Columns, const M: usize> Columns for [C; M] {
    type Fields = [C::Fields; M];

    fn counts(&self, counts: &mut Vec<usize>) -> Result<()> {
        self.iter().try_for_each(|column| column.counts(counts))
    }

    fn row(&self, index: usize) -> Result<Self::Fields> {
        each(self.each_ref(), |column| column.row(index))
    }
}

/// The pixels of all examples, which become numbers from 0 to 1 when one is read: 255 is 1.
pub(super) struct Pixels {
    pub bytes: Vec<u8>,
    pub count: usize,
    /// The shape of one example.
    pub shape: Shape,
}

impl Columns for Pixels {
    type Fields = Array<f32>;

    fn counts(&self, counts: &mut Vec<usize>) -> Result<()> {
        counts.push(self.count);
        Ok(())
    }

    fn row(&self, index: usize) -> Result<Array<f32>> {
        let (size, mut numbers) = (self.shape.elements(), Vec::new());
        reserve(&mut numbers, size)?;
        numbers.extend(self.bytes[index * size..][..size].iter().map(|&byte| f32::from(byte) / 255.0));
        Array::new(numbers, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, ErrorKind, Precision};

    #[test]
    fn batches_have_an_axis_more() {
        let device = Device::cpu();
        let example = |i: u8| {
            let x = f32::from(i);
            let array = Array::new(vec![x, -x], [2]).unwrap();
            (array.clone(), [u32::from(i), 9], vec![x], (), (Array::from(vec![u32::from(i)]), x))
        };
        let mut batch = example(0).stack(3).unwrap();
        example(1).push_onto(&mut batch).unwrap();
        example(2).push_onto(&mut batch).unwrap();
        let (a, [b, c], d, (), (e, f)) = batch.into_tensors(&device).unwrap();
        assert_eq!((a.shape(), a.to_vec().unwrap()), ([3, 2].into(), vec![0.0, -0.0, 1.0, -1.0, 2.0, -2.0]));
        assert_eq!((b.to_u32_vec().unwrap(), c.to_u32_vec().unwrap()), (vec![0, 1, 2], vec![9; 3]));
        assert_eq!((d[0].shape(), e.shape(), f.to_vec().unwrap()), ([3].into(), [3, 1].into(), vec![0.0, 1.0, 2.0]));
        let types: Vec<_> = example(0).types().iter().map(ToString::to_string).collect();
        assert_eq!(types, ["f32[2]", "u32[]", "u32[]", "f32[]", "u32[1]", "f32[]"]);
    }

    #[test]
    fn arrays_of_different_shapes_are_refused() {
        let mut batch = vec![Array::from(vec![1_u32])].stack(2).unwrap();
        let error = vec![Array::from(vec![1, 2])].push_onto(&mut batch).unwrap_err();
        assert_eq!(
            (error.kind(), error.message()),
            (ErrorKind::Shape, "an array has the shape [2], but the others of its batch have [1]")
        );
        assert_eq!(Vec::<Array<u32>>::new().push_onto(&mut batch).unwrap_err().kind(), ErrorKind::Shape);
        for shape in [&[0][..], &[1; 8]] {
            assert_eq!(Array::<f32>::zeros(shape).unwrap().stack(1).unwrap_err().kind(), ErrorKind::Shape);
        }
        let huge = Array::<f32>::zeros([2]).unwrap().stack(usize::MAX).unwrap_err();
        assert_eq!(huge.kind(), ErrorKind::OutOfMemory);
    }

    #[test]
    fn floats_follow_the_precision() {
        let device = Device::cpu().with_precision(Precision::Double).unwrap();
        let (x, label) = (0.5_f32, 3_u32).into_tensors(&device).unwrap();
        assert_eq!((x.ty().dtype, label.ty().dtype), (DType::F64, DType::U32));
    }
}
