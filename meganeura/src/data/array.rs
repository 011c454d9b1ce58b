//! Arrays on the host: the fields of an example, or of a batch.

use super::Transform;
use crate::error::{bail, here};
use crate::host::{HostBuffer, reserve, try_filled};
use crate::seed::Seed;
use crate::{DType, Device, Result, Shape, Tensor};

/// The element types of arrays of examples: `f32`, `u32`, `i32` and `i64`.
pub trait Number: Copy + Default + Send + Sync + sealed::Host + 'static {}

impl Number for f32 {}
impl Number for u32 {}
impl Number for i32 {}
impl Number for i64 {}

mod sealed {
    use super::{DType, HostBuffer, Result, Tensor, bail};

    pub trait Host: Sized {
        const DTYPE: DType;

        fn host(values: Vec<Self>) -> HostBuffer;

        #[cfg(not(target_family = "wasm"))]
        fn read(tensor: &Tensor) -> Result<Vec<Self>>;
    }

    macro_rules! host {
        ($($T:ident $variant:ident $read:ident;)+) => {
            $(impl Host for $T {
                const DTYPE: DType = DType::$variant;

                fn host(values: Vec<Self>) -> HostBuffer {
                    HostBuffer::$variant(values)
                }

                #[cfg(not(target_family = "wasm"))]
                fn read(tensor: &Tensor) -> Result<Vec<Self>> {
                    $read(tensor)
                }
            })+
        };
    }

    host! {
        f32 F32 floats;
        u32 U32 integers;
        i32 I32 integers;
        i64 I64 integers;
    }

    #[cfg(not(target_family = "wasm"))]
    fn floats(tensor: &Tensor) -> Result<Vec<f32>> {
        if !tensor.ty().dtype.is_float() {
            bail!(Argument, "an array of floats from {}, which has integers", tensor.ty());
        }
        tensor.to_vec()
    }

    #[cfg(not(target_family = "wasm"))]
    fn integers<T: TryFrom<i64>>(tensor: &Tensor) -> Result<Vec<T>> {
        let numbers: Vec<i64> = match tensor.ty().dtype {
            DType::U32 => tensor.to_u32_vec()?.into_iter().map(i64::from).collect(),
            DType::I32 => tensor.to_i32_vec()?.into_iter().map(i64::from).collect(),
            DType::I64 => tensor.to_i64_vec()?,
            _ => bail!(Argument, "an array of integers from {}, which has floats", tensor.ty()),
        };
        let mut values = Vec::new();
        super::reserve(&mut values, numbers.len())?;
        for (at, number) in numbers.into_iter().enumerate() {
            let Ok(value) = T::try_from(number) else {
                bail!(
                    Argument,
                    "element {at} of {} is {number}, not one of {}",
                    tensor.ty(),
                    std::any::type_name::<T>()
                );
            };
            values.push(value);
        }
        Ok(values)
    }
}

/// Numbers on the host, row by row, with a shape.
///
/// An array is a field of an example, of all examples (the first axis counts them), or of a batch.
///
/// ```
/// use meganeura::data::Array;
///
/// let image = Array::new(vec![0.0; 3 * 8 * 8], [3, 8, 8])?;
/// let tokens = Array::from(vec![17_u32, 4, 25]); // [3]
/// assert_eq!((image.shape().rank(), tokens.shape()[0]), (3, 3));
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Array<E> {
    values: Vec<E>,
    shape: Shape,
}

impl<E: Number> Array<E> {
    /// An array of these numbers, row by row, with this shape. It may have no elements, but a batch cannot.
    ///
    /// # Errors
    ///
    /// Fails if the number of values is not the shape's number of elements.
    #[track_caller]
    pub fn new(values: Vec<E>, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        here(|| {
            if values.len() != shape.elements() {
                bail!(Shape, "{} numbers given for an array {shape}", values.len());
            }
            Ok(Self { values, shape })
        })
    }

    /// An array of zeros.
    ///
    /// # Errors
    ///
    /// Fails with [`OutOfMemory`](crate::ErrorKind::OutOfMemory) if there is no memory for them.
    #[track_caller]
    pub fn zeros(shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        here(|| {
            let values = try_filled(shape.elements(), E::default());
            Ok(Self { values: values.map_err(|error| error.context(format_args!("an array {shape}")))?, shape })
        })
    }

    /// Stacks arrays that may differ in their first axis, such as texts, and fills the shorter ones up with `padding`:
    /// `[Tᵢ, …]` → `[N, T, …]` with the greatest `T`. Also returns the lengths `Tᵢ`, for
    /// [`Steps::Lengths`](crate::nn::Steps::Lengths) and masks. In a batch, the function of
    /// [`collate`](super::Batches::collate) calls it. No arrays, or empty ones, become an array of `T = 1`.
    ///
    /// ```
    /// use meganeura::data::Array;
    ///
    /// let texts = [Array::from(vec![5_u32, 2]), Array::from(vec![7, 1, 4])];
    /// let (words, lengths) = Array::padded(&texts, 0)?;
    /// assert_eq!(words, Array::new(vec![5, 2, 0, 7, 1, 4], [2, 3])?);
    /// assert_eq!(lengths.values(), [2, 3]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if the arrays differ in another axis, or have none; if there is no memory for them.
    #[track_caller]
    pub fn padded(arrays: &[Self], padding: E) -> Result<(Self, Array<u32>)> {
        here(|| {
            let inner = arrays.first().map_or(&[][..], |first| first.shape.dims().get(1..).unwrap_or_default());
            let mut lengths = Vec::new();
            reserve(&mut lengths, arrays.len())?;
            for (at, array) in arrays.iter().enumerate() {
                match *array.shape.dims() {
                    [length, ref rest @ ..] if rest == inner => lengths.push(length),
                    _ => bail!(Shape, "array {at} of shape {}, where the first has {}", array.shape, arrays[0].shape),
                }
            }
            if inner.len() + 2 > crate::MAX_RANK {
                bail!(Shape, "arrays of shape {} leave no axis for the batch", arrays[0].shape);
            }
            let longest = lengths.iter().copied().max().unwrap_or(0).max(1);
            let shape = Shape::new(&[&[arrays.len(), longest], inner].concat());
            let mut values = try_filled(shape.elements(), padding)?;
            let row = shape.elements() / arrays.len().max(1);
            for (row, array) in values.chunks_mut(row.max(1)).zip(arrays) {
                row[..array.values.len()].copy_from_slice(&array.values);
            }
            let lengths = lengths.into_iter().map(u32::try_from).collect::<Result<Vec<_>, _>>();
            let Ok(lengths) = lengths else { bail!(Argument, "an array of more than 2³² rows") };
            Ok((Self { values, shape }, lengths.into()))
        })
    }

    /// The extents.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The numbers, row by row.
    #[must_use]
    pub fn values(&self) -> &[E] {
        &self.values
    }

    /// The numbers, mutable.
    #[must_use]
    pub fn values_mut(&mut self) -> &mut [E] {
        &mut self.values
    }

    /// The numbers without their shape.
    #[must_use]
    pub fn into_values(self) -> Vec<E> {
        self.values
    }

    /// This array as the first one of a batch, with room for `count`.
    pub(super) fn begin(self, count: usize) -> Result<Self> {
        let Self { mut values, shape } = self;
        if shape.elements() == 0 {
            bail!(Shape, "an example needs at least one number, shape {shape} has none");
        }
        if shape.rank() == crate::MAX_RANK {
            bail!(Shape, "an example of shape {shape} leaves no axis for the batch");
        }
        let more = shape.elements().saturating_mul(count.saturating_sub(1));
        reserve(&mut values, more).map_err(|error| error.context(format_args!("a batch of {count} times {shape}")))?;
        Ok(Self { values, shape: Shape::new(&[&[1], shape.dims()].concat()) })
    }

    /// Appends another array to a batch.
    pub(super) fn push(&mut self, values: &[E], shape: Shape) -> Result<()> {
        let (count, of) = (self.shape[0], &self.shape.dims()[1..]);
        if of != shape.dims() {
            bail!(Shape, "an array has the shape {shape}, but the others of its batch have {}", Shape::new(of));
        }
        reserve(&mut self.values, values.len())?;
        self.values.extend_from_slice(values);
        self.shape = self.shape.with(0, count + 1);
        Ok(())
    }

    /// The array on a device; floats in the device's precision.
    ///
    /// # Errors
    ///
    /// Fails if the array has no elements, and if the device has no room.
    #[track_caller]
    pub fn into_tensor(self, device: &Device) -> Result<Tensor> {
        here(|| match E::host(self.values) {
            // This determines the largest label, so that a label out of range is an error.
            HostBuffer::U32(data) => Tensor::from_host(device, self.shape, HostBuffer::U32(data)),
            host => Tensor::from_host(device, self.shape, host.try_cast(device.precision().dtype())?),
        })
    }

    /// The numbers of a tensor, such as one that [`io::load_tensors`](crate::io::load_tensors) read from a file.
    /// Integers become integers of this type; floats become `f32`.
    ///
    /// ```
    /// use meganeura::io::{load_tensors, save_tensors};
    /// use meganeura::prelude::*;
    ///
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("digits.safetensors");
    /// # let device = Device::cpu();
    /// # let images = Tensor::zeros(&device, [5, 1, 8, 8])?;
    /// # let labels = Tensor::from_i64(&device, [5], &[1, 0, 2, 1, 0])?;
    /// # save_tensors(&path, [("images", &images), ("labels", &labels)])?;
    /// let file = load_tensors(path, &Device::cpu())?; // "digits.safetensors", or with the feature `npz` "digits.npz"
    /// let (images, labels) = (file.tensor("images")?, file.tensor("labels")?);
    /// let digits = Dataset::from_columns(Array::<f32>::from_tensor(images)?, Array::<u32>::from_tensor(labels)?)?;
    /// # assert_eq!(digits.get(2)?.1.values(), [2]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if the array is of floats and the tensor of integers, or the other way round; if an integer is not one of
    /// this type; if the device fails.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    pub fn from_tensor(tensor: &Tensor) -> Result<Self> {
        here(|| {
            let values = E::read(tensor)?;
            Ok(Self { values, shape: tensor.shape() })
        })
    }

    pub(super) fn dtype() -> DType {
        E::DTYPE
    }
}

impl Array<f32> {
    /// This array after a [transformation](Transform), which draws from this seed. Two arrays that change together,
    /// such as an image and its mask, get the same seed.
    ///
    /// # Errors
    ///
    /// Fails if the transformation does not fit the shape, or there is no memory for the result.
    #[track_caller]
    pub fn transformed(self, transform: &(impl Transform + ?Sized), seed: impl Into<Seed>) -> Result<Self> {
        let (seed, Self { mut values, shape }) = (seed.into(), self);
        here(|| {
            if shape.elements() == 0 {
                bail!(Shape, "{transform:?} needs at least one number, shape {shape} has none");
            }
            let after = transform.shape(shape).map_err(|error| error.context(format_args!("{transform:?}")))?;
            reserve(&mut values, after.elements())?;
            transform.apply(&mut values, shape, seed);
            if values.len() != after.elements() {
                let found = values.len();
                bail!(Shape, "{transform:?} makes {found} numbers of shape {shape}, and said that it makes {after}");
            }
            Ok(Self { values, shape: after })
        })
    }
}

impl Array<f32> {
    /// The numbers as labels. A first axis of one element, the channel of a mask, is left out: `[1, H, W]` becomes
    /// `[H, W]`.
    ///
    /// # Errors
    ///
    /// Fails if a number is not a whole number from 0 to 2³² − 1.
    #[track_caller]
    pub fn labels(&self) -> Result<Array<u32>> {
        here(|| {
            let mut labels = Vec::new();
            reserve(&mut labels, self.values.len())?;
            for (at, &number) in self.values.iter().enumerate() {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
                let label = number as u32;
                #[expect(clippy::float_cmp, reason = "whole numbers are exact")]
                if label as f32 != number {
                    bail!(Argument, "element {at} is {number}, which is not a label");
                }
                labels.push(label);
            }
            let shape = match *self.shape.dims() {
                [1, ref rest @ ..] if !rest.is_empty() => Shape::new(rest),
                _ => self.shape,
            };
            Array::new(labels, shape)
        })
    }
}

/// An array of one axis.
impl<E: Number> From<Vec<E>> for Array<E> {
    fn from(values: Vec<E>) -> Self {
        let shape = Shape::from([values.len()]);
        Self { values, shape }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::data::HorizontalFlip;

    #[test]
    fn numbers_fill_their_shape() {
        assert_eq!(Array::new(vec![1_u32, 2], [1, 2]).unwrap().values(), [1, 2]);
        let error = Array::new(vec![1.0, 2.0], [3]).unwrap_err();
        assert_eq!((error.kind(), error.message()), (ErrorKind::Shape, "2 numbers given for an array [3]"));
        assert_eq!(Array::<f32>::zeros([1 << 40, 1 << 40]).unwrap_err().kind(), ErrorKind::OutOfMemory);
        let mut zeros = Array::<u32>::zeros([2]).unwrap();
        zeros.values_mut()[1] = 7;
        assert_eq!(zeros, Array::from(vec![0, 7]));
    }

    #[test]
    fn numbers_of_tensors_are_read() {
        let device = Device::cpu();
        let floats = Tensor::from_slice(&device, [1, 2], &[0.5, -1.0]).unwrap();
        let integers = Tensor::from_i64(&device, [2], &[-1, 7]).unwrap();
        assert_eq!(Array::<f32>::from_tensor(&floats).unwrap(), Array::new(vec![0.5, -1.0], [1, 2]).unwrap());
        assert_eq!(Array::<i32>::from_tensor(&integers).unwrap(), Array::from(vec![-1, 7]));
        for (error, part) in [
            (Array::<u32>::from_tensor(&integers).unwrap_err(), "element 0 of i64[2] is -1, not one of u32"),
            (Array::<i64>::from_tensor(&floats).unwrap_err(), "from f32[1, 2], which has floats"),
            (Array::<f32>::from_tensor(&integers).unwrap_err(), "from i64[2], which has integers"),
        ] {
            assert!(error.kind() == ErrorKind::Argument && error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn rows_are_padded_to_the_longest() {
        let frames = |count: usize| Array::new((0..2 * count).map(|i| i as f32).collect(), [count, 2]).unwrap();
        let (padded, lengths) = Array::padded(&[frames(1), frames(3), frames(0)], -1.0).unwrap();
        assert_eq!((padded.shape(), lengths.values()), (Shape::from([3, 3, 2]), &[1, 3, 0][..]));
        let rows = [[0.0, 1.0, -1.0, -1.0, -1.0, -1.0], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [-1.0; 6]];
        assert_eq!(padded.values(), rows.concat());
        let (empty, lengths) = Array::<u32>::padded(&[], 0).unwrap();
        assert_eq!((empty.shape(), lengths.values().len()), (Shape::from([0, 1]), 0));
        let wide = Array::new(vec![0.0; 3], [1, 3]).unwrap();
        let error = Array::padded(&[frames(1), wide], 0.0).unwrap_err();
        assert!(error.kind() == ErrorKind::Shape && error.message().contains("array 1 of shape [1, 3]"), "{error}");
        let scalar = Array::new(vec![1.0], []).unwrap();
        assert_eq!(Array::padded(&[scalar], 0.0).unwrap_err().kind(), ErrorKind::Shape);
    }

    #[test]
    fn the_largest_of_a_batch_of_labels_is_known() {
        let labels = Array::from(vec![0_u32, 7]).into_tensor(&Device::cpu()).unwrap();
        assert_eq!(labels.largest_index(None), Some(7));
    }

    #[test]
    fn empty_arrays_are_not_transformed() {
        let empty = Array::<f32>::zeros([3, 5, 0]).unwrap();
        let error = empty.transformed(&HorizontalFlip::new(1.0), 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shape);
    }

    #[test]
    fn equal_seeds_transform_alike() {
        let flip = HorizontalFlip::new(0.5);
        let mirrored = |seed: u64, values: [f32; 2]| {
            let image = Array::new(values.to_vec(), [1, 1, 2]).unwrap();
            image.transformed(&flip, seed).unwrap().values()[0] != values[0]
        };
        let seen: Vec<_> = (0..20).map(|seed| mirrored(seed, [1.0, 2.0])).collect();
        assert!(seen.contains(&true) && seen.contains(&false));
        assert_eq!((0..20).map(|seed| mirrored(seed, [5.0, 3.0])).collect::<Vec<_>>(), seen);
        let error = Array::from(vec![0.0, 1.0]).transformed(&flip, 1).unwrap_err();
        assert!(error.kind() == ErrorKind::Shape && error.message().starts_with("HorizontalFlip"), "{error}");
    }
}
