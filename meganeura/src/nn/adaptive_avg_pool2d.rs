//! Average pooling to a given size.

use meganeura_derive::Module;

use super::IntoPair;
use crate::error::bail;
use crate::module::{Init, Layer, Seed};
use crate::{Device, Result, Var};

/// Average pooling to `P×Q` for inputs of any size: the means of rows `⌊p·H/P⌋ .. ⌈(p+1)·H/P⌉`, columns likewise
///
/// Windows overlap where `P` does not divide `H`, as in PyTorch. Where `P` exceeds `H`, each window has one or two
/// rows.
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
#[derive(Module, Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct AdaptiveAvgPool2d {
    #[module(skip)]
    size: [usize; 2],
}

impl AdaptiveAvgPool2d {
    /// Pools to images of this height and width, or of this extent in both directions.
    pub fn new(size: impl IntoPair) -> Self {
        Self { size: size.into_pair() }
    }
}

/// Checks the size, like [`forward`](Layer::forward).
impl Init for AdaptiveAvgPool2d {
    type Output = Self;

    fn build(self, _: &Device, _: Seed) -> Result<Self> {
        if self.size.contains(&0) {
            bail!(
                Argument,
                "adaptive_avg_pool2d: the extents of the result must be at least 1, they are {:?}",
                self.size
            );
        }
        Ok(self)
    }
}

impl Layer for AdaptiveAvgPool2d {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        x.adaptive_avg_pool2d(self.size)
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::kept_channels()
    }
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
            assert!(error.to_string().contains("needs images [N, C, H, W], not [2, 3]"), "{error}");
        }
    }
}
