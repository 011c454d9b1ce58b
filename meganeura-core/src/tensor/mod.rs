//! Tensors: values on a device.

mod compare;
mod display;
mod make;
mod nested;

use std::fmt;

pub use nested::Nested;

use crate::error::{bail, here, here_async};
use crate::host::{HostBuffer, index_of, try_collect};
use crate::storage::Storage;
#[cfg(not(target_family = "wasm"))]
use crate::wait::block_on;
use crate::wait::block_or_refuse;
use crate::{DType, Device, Error, ErrorKind, Result, Shape, TensorType};

/// An array of numbers on a [`Device`]. Cheap to clone, and immutable.
///
/// Elements are in row-major order (NCHW for images, OIHW for convolution weights). Floats have the device's precision.
#[derive(Clone)]
pub struct Tensor {
    device: Device,
    ty: TensorType,
    storage: Storage,
    /// The largest and the second-largest distinct element of a tensor of integers, as indices, computed when it was
    /// made. So labels can be checked without reading them back from the device, even if one label means "no label".
    largest: [Option<u32>; 2],
}

impl Tensor {
    /// A tensor of floats from numbers in row-major order.
    ///
    /// # Errors
    ///
    /// Fails if the length of `data` is not the number of elements of `shape`, if that is 0, or if the device has no
    /// room.
    #[doc(alias("from_floats", "from_vec"))]
    #[track_caller]
    pub fn from_slice(device: &Device, shape: impl Into<Shape>, data: &[f32]) -> Result<Self> {
        let host = match device.precision().dtype() {
            DType::F64 => HostBuffer::F64(data.iter().map(|&x| f64::from(x)).collect()),
            _ => HostBuffer::F32(data.to_vec()),
        };
        Self::from_host(device, shape.into(), host)
    }

    /// A tensor of floats from 64-bit numbers, rounded to the device's precision.
    ///
    /// # Errors
    ///
    /// Fails like [`Tensor::from_slice`].
    #[track_caller]
    #[expect(clippy::cast_possible_truncation, reason = "rounding to the device's precision is what is asked for")]
    pub fn from_f64(device: &Device, shape: impl Into<Shape>, data: &[f64]) -> Result<Self> {
        let host = match device.precision().dtype() {
            DType::F64 => HostBuffer::F64(data.to_vec()),
            _ => HostBuffer::F32(data.iter().map(|&x| x as f32).collect()),
        };
        Self::from_host(device, shape.into(), host)
    }

    /// A boolean mask: a tensor of floats, 1 for `true` and 0 for `false`, like the result of a comparison.
    ///
    /// # Errors
    ///
    /// Fails like [`Tensor::from_slice`].
    #[track_caller]
    pub fn from_bools(device: &Device, shape: impl Into<Shape>, data: &[bool]) -> Result<Self> {
        let host = match device.precision().dtype() {
            DType::F64 => HostBuffer::F64(data.iter().map(|&x| f64::from(u8::from(x))).collect()),
            _ => HostBuffer::F32(data.iter().map(|&x| f32::from(u8::from(x))).collect()),
        };
        Self::from_host(device, shape.into(), host)
    }

    /// A tensor of unsigned integers: class labels or indices.
    ///
    /// # Errors
    ///
    /// Fails like [`Tensor::from_slice`].
    #[track_caller]
    pub fn indices(device: &Device, shape: impl Into<Shape>, data: &[u32]) -> Result<Self> {
        Self::from_host(device, shape.into(), HostBuffer::U32(data.to_vec()))
    }

    /// A tensor of 32-bit integers.
    ///
    /// # Errors
    ///
    /// Fails like [`Tensor::from_slice`].
    #[track_caller]
    pub fn from_i32(device: &Device, shape: impl Into<Shape>, data: &[i32]) -> Result<Self> {
        Self::from_host(device, shape.into(), HostBuffer::I32(data.to_vec()))
    }

    /// A tensor of 64-bit integers.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let x = Tensor::from_i64(&Device::cpu(), [2], &[(1 << 53) + 1, -7])?;
    /// assert_eq!(x.map(|x| x * 2.0)?.to_i64_vec()?, [(1 << 54) + 2, -14]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails like [`Tensor::from_slice`].
    #[track_caller]
    pub fn from_i64(device: &Device, shape: impl Into<Shape>, data: &[i64]) -> Result<Self> {
        Self::from_host(device, shape.into(), HostBuffer::I64(data.to_vec()))
    }

    /// A single integer of a type that has it.
    pub(crate) fn whole(device: &Device, dtype: DType, number: i64) -> Result<Self> {
        match (dtype, i32::try_from(number)) {
            (DType::I32, Ok(number)) => Self::from_i32(device, Shape::SCALAR, &[number]),
            _ => Self::from_i64(device, Shape::SCALAR, &[number]),
        }
    }

    /// A tensor filled with one number.
    ///
    /// # Errors
    ///
    /// Fails if the shape has no elements, or if the device has no room.
    #[track_caller]
    pub fn full(device: &Device, shape: impl Into<Shape>, value: f32) -> Result<Self> {
        here(|| {
            let ty = TensorType::new(device.precision().dtype(), shape.into());
            device.expect_fits(ty)?;
            let host = HostBuffer::try_full(ty.dtype, ty.shape.elements(), value);
            Self::from_host(device, ty.shape, host.map_err(|error| error.context(format!("a tensor {ty}")))?)
        })
    }

    /// A tensor of zeros.
    ///
    /// # Errors
    ///
    /// Fails like [`Tensor::full`].
    #[track_caller]
    pub fn zeros(device: &Device, shape: impl Into<Shape>) -> Result<Self> {
        Self::full(device, shape, 0.0)
    }

    #[track_caller]
    #[doc(hidden)]
    pub fn from_host(device: &Device, shape: Shape, host: HostBuffer) -> Result<Self> {
        here(|| {
            if shape.elements() == 0 {
                bail!(Shape, "a tensor needs at least one element, but {shape} has none (an empty batch?)");
            }
            if shape.elements() != host.len() {
                bail!(Shape, "{} numbers given for shape {shape}, which has {}", host.len(), shape.elements());
            }
            let ty = TensorType::new(host.dtype(), shape);
            let largest = host.largest_indices();
            Ok(Self { device: device.clone(), ty, storage: device.upload(host, ty)?, largest })
        })
    }

    pub(crate) fn from_storage(device: &Device, ty: TensorType, storage: Storage) -> Self {
        Self { device: device.clone(), ty, storage, largest: [None; 2] }
    }

    /// The device that holds the numbers.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The element type and shape.
    #[must_use]
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// The extents along each axis.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.ty.shape
    }

    /// The type of each element.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    pub(crate) fn storage(&self) -> &Storage {
        &self.storage
    }

    pub(crate) fn storage_mut(&mut self) -> &mut Storage {
        &mut self.storage
    }

    /// The largest of these indices, except ignored ones, if the host knows it. Integers outside `u32` count as its
    /// maximum, as in [`Var::to_index`](crate::Var::to_index).
    #[doc(hidden)]
    pub fn largest_index(&self, ignored: Option<u32>) -> Option<u32> {
        self.largest.into_iter().flatten().find(|&element| Some(element) != ignored)
    }

    /// The same numbers in another shape with as many elements. One extent may be [`Shape::REST`], PyTorch's -1.
    ///
    /// # Errors
    ///
    /// Fails if the number of elements differs.
    #[track_caller]
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Self> {
        here(|| {
            let resolved = shape.into().resolved(self.shape());
            let shape = resolved.map_err(|message| Error::new(ErrorKind::Shape, message))?;
            if shape.elements() != self.shape().elements() {
                bail!(Shape, "{} does not reshape to {shape}: the numbers of elements differ", self.shape());
            }
            Ok(Self { ty: self.ty.with_shape(shape), ..self.clone() })
        })
    }

    /// The numbers on another device, in that device's precision. If the devices are the [`same`](Device::same),
    /// nothing is copied.
    ///
    /// # Errors
    ///
    /// Fails if either device does, or if the other has no room.
    #[doc(alias("to", "cuda"))]
    #[track_caller]
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        here(|| {
            if self.device.same(device) {
                return Ok(Self { device: device.clone(), ..self.clone() });
            }
            let host = self.to_host_here()?;
            let host = if self.ty.dtype.is_float() { host.try_cast(device.precision().dtype())? } else { host };
            Self::from_host(device, self.shape(), host)
        })
    }

    /// `true` if plans of this device can read the tensor in place. Integers are the same numbers in every precision.
    pub(crate) fn is_readable_on(&self, device: &Device) -> bool {
        let shared = !self.ty.dtype.is_float() && !self.device.is_gpu() && !device.is_gpu();
        shared || self.device.same(device)
    }

    /// The numbers on the host.
    #[doc(hidden)]
    pub async fn to_host(&self) -> Result<HostBuffer> {
        self.device.download(&self.storage, self.ty).await
    }

    /// The numbers on the host. Fails where that would block the thread of a web page.
    #[doc(hidden)]
    pub fn to_host_here(&self) -> Result<HostBuffer> {
        block_or_refuse(self.to_host(), "await `to_vec_async` or another async read")
    }

    /// The numbers, in row-major order. Waits for the device.
    ///
    /// # Errors
    ///
    /// Fails if the device was lost, or if the elements are not floats.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        block_on(self.to_vec_async())
    }

    /// Like [`Tensor::to_vec`], without blocking the thread.
    ///
    /// # Errors
    ///
    /// Fails like [`Tensor::to_vec`].
    #[track_caller]
    pub fn to_vec_async(&self) -> impl Future<Output = Result<Vec<f32>>> {
        here_async(async { self.as_f32(self.to_host().await?) })
    }

    fn as_f32(&self, host: HostBuffer) -> Result<Vec<f32>> {
        match host.try_cast(DType::F32)? {
            HostBuffer::F32(data) => Ok(data),
            _ => bail!(Argument, "read as f32, but the tensor is {}", self.ty),
        }
    }

    /// The numbers as `f64`, in row-major order. Waits for the device.
    ///
    /// # Errors
    ///
    /// Fails like [`Tensor::to_vec`].
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    pub fn to_f64_vec(&self) -> Result<Vec<f64>> {
        block_on(self.to_f64_vec_async())
    }

    /// Like [`Tensor::to_f64_vec`], without blocking the thread.
    ///
    /// # Errors
    ///
    /// Fails like [`Tensor::to_vec`].
    #[track_caller]
    pub fn to_f64_vec_async(&self) -> impl Future<Output = Result<Vec<f64>>> {
        here_async(async { Self::as_f64(self.to_host().await?) })
    }

    fn as_f64(host: HostBuffer) -> Result<Vec<f64>> {
        match host.try_cast(DType::F64)? {
            HostBuffer::F64(data) => Ok(data),
            other => bail!(Argument, "read as f64, but the elements are {}", other.dtype()),
        }
    }

    /// The integers as `u32`, in row-major order. Waits for the device.
    ///
    /// # Errors
    ///
    /// Fails if the device was lost, if the elements are floats, or if one of them is no `u32`.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    pub fn to_u32_vec(&self) -> Result<Vec<u32>> {
        block_on(self.to_u32_vec_async())
    }

    /// Like [`Tensor::to_u32_vec`], without blocking the thread.
    ///
    /// # Errors
    ///
    /// Fails like [`Tensor::to_u32_vec`].
    #[track_caller]
    pub fn to_u32_vec_async(&self) -> impl Future<Output = Result<Vec<u32>>> {
        here_async(async {
            match self.to_host().await? {
                HostBuffer::U32(data) => Ok(data),
                host => self.as_integers(host),
            }
        })
    }

    /// The integers as indices, as in [`Var::to_index`](crate::Var::to_index).
    #[doc(hidden)]
    pub async fn to_index_vec_async(&self) -> Result<Vec<u32>> {
        match self.to_host().await? {
            HostBuffer::U32(data) => Ok(data),
            HostBuffer::I32(data) => try_collect(data.into_iter().map(index_of)),
            HostBuffer::I64(data) => try_collect(data.into_iter().map(index_of)),
            HostBuffer::F32(_) | HostBuffer::F64(_) => bail!(Shape, "floats are no indices"),
        }
    }

    /// The integers as `i32`, in row-major order. Waits for the device.
    ///
    /// # Errors
    ///
    /// Fails if the device was lost, if the elements are floats, or if one of them is no `i32`.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    pub fn to_i32_vec(&self) -> Result<Vec<i32>> {
        block_on(self.to_i32_vec_async())
    }

    /// Like [`Tensor::to_i32_vec`], without blocking the thread.
    ///
    /// # Errors
    ///
    /// Fails like [`Tensor::to_i32_vec`].
    #[track_caller]
    pub fn to_i32_vec_async(&self) -> impl Future<Output = Result<Vec<i32>>> {
        here_async(async {
            match self.to_host().await? {
                HostBuffer::I32(data) => Ok(data),
                host => self.as_integers(host),
            }
        })
    }

    /// The integers as `i64`, in row-major order. Waits for the device.
    ///
    /// # Errors
    ///
    /// Fails if the device was lost, if the elements are floats, or if one of them is no `i64`.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    pub fn to_i64_vec(&self) -> Result<Vec<i64>> {
        block_on(self.to_i64_vec_async())
    }

    /// Like [`Tensor::to_i64_vec`], without blocking the thread.
    ///
    /// # Errors
    ///
    /// Fails like [`Tensor::to_i64_vec`].
    #[track_caller]
    pub fn to_i64_vec_async(&self) -> impl Future<Output = Result<Vec<i64>>> {
        here_async(async {
            match self.to_host().await? {
                HostBuffer::I64(data) => Ok(data),
                host => self.as_integers(host),
            }
        })
    }

    /// The integers of another type, if all of them fit.
    fn as_integers<T: TryFrom<i64>>(&self, host: HostBuffer) -> Result<Vec<T>> {
        let name = std::any::type_name::<T>();
        let fitting = |x: i64| {
            let Ok(fitting) = T::try_from(x) else { bail!(Argument, "read as {name}, but an element is {x}") };
            Ok(fitting)
        };
        match host {
            HostBuffer::U32(data) => data.into_iter().map(|x| fitting(x.into())).collect(),
            HostBuffer::I32(data) => data.into_iter().map(|x| fitting(x.into())).collect(),
            HostBuffer::I64(data) => data.into_iter().map(fitting).collect(),
            HostBuffer::F32(_) | HostBuffer::F64(_) => bail!(Argument, "read as {name}, but the tensor is {}", self.ty),
        }
    }

    /// The number of a one-element tensor. Waits for the device.
    ///
    /// # Errors
    ///
    /// Fails if there are more elements, or like [`Tensor::to_vec`].
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    pub fn item(&self) -> Result<f32> {
        block_on(self.item_async())
    }

    /// Like [`Tensor::item`], without blocking the thread.
    ///
    /// # Errors
    ///
    /// Fails like [`Tensor::item`].
    #[track_caller]
    pub fn item_async(&self) -> impl Future<Output = Result<f32>> {
        here_async(async { self.single(&self.to_vec_async().await?) })
    }

    fn single(&self, data: &[f32]) -> Result<f32> {
        match *data {
            [x] => Ok(x),
            _ => bail!(Shape, "`item` reads a tensor of one element, but this one is {}", self.shape()),
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} on {})", self.ty, self.device)
    }
}
