//! Pooling to a size, for inputs of any size.

use std::fmt;

use meganeura_derive::Module;

use super::IntoExtents;
use super::settings::expect_positive;
use crate::module::{Init, Layer, Seed};
use crate::ops::window::named;
use crate::{Device, ErrorKind, Result, Var};

/// Average pooling over `D` axes to a size, for inputs of any size: the means of elements `⌊p·L/P⌋ .. ⌈(p+1)·L/P⌉` of
/// each axis.
///
/// Windows overlap where `P` does not divide `L`, as in PyTorch. Where `P` exceeds `L`, each window has one or two
/// elements.
#[derive(Module, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct AdaptiveAvgPool<const D: usize> {
    #[module(skip)]
    size: [usize; D],
}

/// Average pooling to `P` elements for inputs of any length: see [`AdaptiveAvgPool`]
///
/// Shapes: `x [N, C, L]` → `y [N, C, P]`.
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let x = Tape::new(&device).input(&Tensor::from_slice(&device, [1, 1, 3], &[1.0, 2.0, 6.0])?);
/// assert_eq!(AdaptiveAvgPool1d::new(2).forward(&x).to_vec()?, [1.5, 4.0]);
/// # Ok::<(), meganeura::Error>(())
/// ```
pub type AdaptiveAvgPool1d = AdaptiveAvgPool<1>;

/// Average pooling to `P×Q` for inputs of any size: see [`AdaptiveAvgPool`]
///
/// Shapes: `x [N, C, H, W]` → `y [N, C, P, Q]`.
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let x = Tape::new(&device).input(&Tensor::from_slice(&device, [1, 1, 1, 3], &[1.0, 2.0, 6.0])?);
/// assert_eq!(AdaptiveAvgPool2d::new((1, 2)).forward(&x).to_vec()?, [1.5, 4.0]);
/// # Ok::<(), meganeura::Error>(())
/// ```
pub type AdaptiveAvgPool2d = AdaptiveAvgPool<2>;

/// Average pooling to `P×Q×R` for inputs of any size: see [`AdaptiveAvgPool`]
///
/// Shapes: `x [N, C, D, H, W]` → `y [N, C, P, Q, R]`.
pub type AdaptiveAvgPool3d = AdaptiveAvgPool<3>;

impl<const D: usize> AdaptiveAvgPool<D> {
    /// Pools to this extent, or to one for each axis.
    pub fn new(size: impl IntoExtents<D>) -> Self {
        Self { size: size.into_extents() }
    }

    fn name() -> &'static str {
        named::<D>(["adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"])
    }
}

/// Checks the size, like [`forward`](Layer::forward).
impl<const D: usize> Init for AdaptiveAvgPool<D> {
    type Output = Self;

    fn build(self, _: &Device, _: Seed) -> Result<Self> {
        expect_positive(Self::name(), &[("size", self.size)])?;
        Ok(self)
    }
}

impl<const D: usize> Layer for AdaptiveAvgPool<D> {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        match expect_positive(Self::name(), &[("size", self.size)]) {
            Ok(()) => x.adaptive_avg_pool(Self::name(), self.size),
            Err(_) => x.refuse(Self::name(), ErrorKind::Argument, empty(self.size)),
        }
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::kept_channels()
    }
}

impl<const D: usize> fmt::Debug for AdaptiveAvgPool<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = named::<D>(["AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d"]);
        f.debug_struct(name).field("size", &self.size).finish()
    }
}

/// Max pooling over `D` axes to a size, for inputs of any size: the maxima of elements `⌊p·L/P⌋ .. ⌈(p+1)·L/P⌉` of each
/// axis.
///
/// Windows overlap where `P` does not divide `L`, as in PyTorch. The gradient goes to the single element that won, the
/// first of several.
#[derive(Module, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct AdaptiveMaxPool<const D: usize> {
    #[module(skip)]
    size: [usize; D],
}

/// Max pooling to `P` elements for inputs of any length: see [`AdaptiveMaxPool`]
///
/// Shapes: `x [N, C, L]` → `y [N, C, P]`.
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let x = Tape::new(&device).input(&Tensor::from_slice(&device, [1, 1, 3], &[1.0, 2.0, 6.0])?);
/// let (y, index) = AdaptiveMaxPool1d::new(2).forward_with_indices(&x);
/// assert_eq!(y.to_vec()?, [2.0, 6.0]);
/// assert_eq!(index.to_tensor()?.to_u32_vec()?, [1, 2]);
/// # Ok::<(), meganeura::Error>(())
/// ```
pub type AdaptiveMaxPool1d = AdaptiveMaxPool<1>;

/// Max pooling to `P×Q` for inputs of any size: see [`AdaptiveMaxPool`]
///
/// Shapes: `x [N, C, H, W]` → `y [N, C, P, Q]`.
pub type AdaptiveMaxPool2d = AdaptiveMaxPool<2>;

/// Max pooling to `P×Q×R` for inputs of any size: see [`AdaptiveMaxPool`]
///
/// Shapes: `x [N, C, D, H, W]` → `y [N, C, P, Q, R]`.
pub type AdaptiveMaxPool3d = AdaptiveMaxPool<3>;

impl<const D: usize> AdaptiveMaxPool<D> {
    /// Pools to this extent, or to one for each axis.
    pub fn new(size: impl IntoExtents<D>) -> Self {
        Self { size: size.into_extents() }
    }

    /// The maxima, and the index of each, as
    /// [`MaxPool::forward_with_indices`](super::MaxPool::forward_with_indices) counts them.
    ///
    /// Errors: in single precision, more than 2²⁴ elements of a channel, unless windows have one size and the input at
    /// most two axes.
    #[must_use]
    #[track_caller]
    pub fn forward_with_indices(&self, x: &Var) -> (Var, Var) {
        let _entered = crate::module::enter(self, x);
        let (y, index) = self.pooled(x, true);
        let index = index.unwrap_or_else(|| y.clone());
        (y, index)
    }

    #[track_caller]
    fn pooled(&self, x: &Var, wants_indices: bool) -> (Var, Option<Var>) {
        match expect_positive(Self::name(), &[("size", self.size)]) {
            Ok(()) => x.adaptive_max_pool(Self::name(), self.size, wants_indices),
            Err(_) => (x.refuse(Self::name(), ErrorKind::Argument, empty(self.size)), None),
        }
    }

    fn name() -> &'static str {
        named::<D>(["adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"])
    }
}

/// Checks the size, like [`forward`](Layer::forward).
impl<const D: usize> Init for AdaptiveMaxPool<D> {
    type Output = Self;

    fn build(self, _: &Device, _: Seed) -> Result<Self> {
        expect_positive(Self::name(), &[("size", self.size)])?;
        Ok(self)
    }
}

impl<const D: usize> Layer for AdaptiveMaxPool<D> {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        self.pooled(x, false).0
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::kept_channels()
    }
}

impl<const D: usize> fmt::Debug for AdaptiveMaxPool<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = named::<D>(["AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d"]);
        f.debug_struct(name).field("size", &self.size).finish()
    }
}

/// The message about a size that has no elements.
fn empty(size: impl fmt::Debug) -> String {
    format!("the extents of the result must be at least 1, they are {size:?}")
}

/// The mean of each channel of each image: from feature maps to vectors.
///
/// Shapes: `x [N, C, H, W]` → `y [N, C]`. [`AdaptiveAvgPool2d`] to one pixel computes the same and keeps the axes.
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let x = Tape::new(&device).input(&Tensor::from_slice(&device, [1, 2, 1, 2], &[1.0, 3.0, 5.0, 5.0])?);
/// assert_eq!(GlobalAvgPool2d.forward(&x).to_vec()?, [2.0, 5.0]);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GlobalAvgPool2d;

impl Init for GlobalAvgPool2d {
    type Output = Self;

    fn build(self, _: &Device, _: Seed) -> Result<Self> {
        Ok(self)
    }
}

impl Layer for GlobalAvgPool2d {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        let y = x.adaptive_avg_pool2d([1, 1]);
        match *y.shape().dims() {
            [n, c, ..] => y.reshape([n, c]),
            _ => y,
        }
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::channels_as_features()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, Shape, Tape, Tensor};

    #[test]
    fn divides_windows_as_pytorch_does() {
        let device = Device::cpu();
        let x: Vec<_> = (0..15u8).map(f32::from).collect();
        let x = Tape::new(&device).input(&Tensor::from_slice(&device, [1, 1, 3, 5], &x).unwrap());
        let of = |size: (usize, usize)| AdaptiveAvgPool2d::new(size).forward(&x).to_vec().unwrap();
        // Rows 0..2 and 1..3; columns 0..2, 1..4 and 3..5.
        assert_eq!(of((2, 3)), [3.0, 4.5, 6.0, 8.0, 9.5, 11.0]);
        // Equal windows take another code path.
        assert_eq!(of((3, 1)), [2.0, 7.0, 12.0]);
        assert_eq!(of((1, 10))[..4], [5.0, 5.0, 6.0, 6.0]);
    }

    #[test]
    fn misfits_are_errors() {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let x = tape.input(&Tensor::zeros(&device, [2, 1, 3, 5]).unwrap());
        let none = AdaptiveAvgPool2d::new((0, 2));
        assert_eq!(none.init(&device, Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
        assert_eq!(none.forward(&x).error().unwrap().kind(), ErrorKind::Argument);
        assert_eq!(GlobalAvgPool2d.forward(&x).shape(), Shape::from([2, 1]));
        let flat = tape.input(&Tensor::zeros(&device, [2, 3]).unwrap());
        for y in [GlobalAvgPool2d.forward(&flat), AdaptiveAvgPool2d::new(1).forward(&flat)] {
            let error = y.error().unwrap();
            assert_eq!(error.kind(), ErrorKind::Shape);
            let message = error.to_string();
            assert!(
                message.contains("images [N, C, H, W], not [2, 3]") || message.contains("it is [2, 3]"),
                "{message}"
            );
        }
    }
}
