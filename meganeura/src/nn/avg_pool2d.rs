//! Average pooling.

use meganeura_derive::Module;

use super::{IntoPair, max_pool2d};
use crate::module::{Init, Layer, Seed};
use crate::{Device, Result, Var};

/// Average pooling: `y[n,c,p,q] = Σ x[n,c,p·s+i−pad,q·s+j−pad] / count` over the kernel's `i, j`
///
/// The count is the kernel's area, padding included, or with
/// [`count_include_pad(false)`](Self::count_include_pad) the part of it that lies in the input.
///
/// Shapes: `x [N, C, H, W]` → `y [N, C, P, Q]` with `P = ⌊(H + 2·pad − KH)/s⌋ + 1`, and `Q` likewise.
/// The mean over the whole image is [`GlobalAvgPool2d`](super::GlobalAvgPool2d).
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let tape = Tape::new(&device);
/// let x = tape.input(&Tensor::from_slice(&device, [1, 1, 2, 4], &[1., 2., 3., 4., 5., 6., 7., 8.])?);
/// assert_eq!(AvgPool2d::new(2).forward(&x).to_vec()?, [3.5, 5.5]);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct AvgPool2d {
    #[module(skip)]
    kernel: [usize; 2],
    #[module(skip)]
    stride: [usize; 2],
    #[module(skip)]
    padding: [usize; 2],
    #[module(skip)]
    count_include_pad: bool,
}

impl AvgPool2d {
    /// Non-overlapping windows of this extent, or of this height and width.
    pub fn new(kernel: impl IntoPair) -> Self {
        let kernel = kernel.into_pair();
        Self { kernel, stride: kernel, padding: [0, 0], count_include_pad: true }
    }

    /// The step of the window from one output to the next; the window's extent by default.
    pub fn stride(self, stride: impl IntoPair) -> Self {
        Self { stride: stride.into_pair(), ..self }
    }

    /// Rows and columns of zeros on each side of the input; none by default, at most half the kernel.
    pub fn padding(self, padding: impl IntoPair) -> Self {
        Self { padding: padding.into_pair(), ..self }
    }

    /// Counts padding in the average if `true`, the default.
    pub fn count_include_pad(self, count_include_pad: bool) -> Self {
        Self { count_include_pad, ..self }
    }
}

/// Checks the settings, like [`forward`](Layer::forward).
impl Init for AvgPool2d {
    type Output = Self;

    fn build(self, _: &Device, _: Seed) -> Result<Self> {
        max_pool2d::check("avg_pool2d", self.kernel, self.stride, self.padding)?;
        Ok(self)
    }
}

impl Layer for AvgPool2d {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        x.avg_pool2d(self.kernel, self.stride, self.padding, self.count_include_pad)
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::kept_channels()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, Tape, Tensor};

    #[test]
    fn computes_the_formula() {
        let device = Device::cpu();
        let x: Vec<_> = (0..9u8).map(f32::from).collect();
        let x = Tape::new(&device).input(&Tensor::from_slice(&device, [1, 1, 3, 3], &x).unwrap());
        let pool = AvgPool2d::new(2).padding(1);
        assert_eq!(pool.forward(&x).to_vec().unwrap(), [0.0, 0.75, 2.25, 6.0]);
        assert_eq!(pool.count_include_pad(false).forward(&x).to_vec().unwrap(), [0.0, 1.5, 4.5, 6.0]);
        assert_eq!(AvgPool2d::new((1, 3)).stride((2, 1)).forward(&x).to_vec().unwrap(), [1.0, 7.0]);
    }

    #[test]
    fn senseless_settings_are_errors() {
        let device = Device::cpu();
        let x = Tape::new(&device).input(&Tensor::zeros(&device, [1, 1, 8, 8]).unwrap());
        for pool in [AvgPool2d::new(0), AvgPool2d::new(2).stride(0), AvgPool2d::new(2).padding(2)] {
            assert_eq!(pool.init(&device, Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
            assert!(pool.forward(&x).error().is_some(), "{pool:?}");
        }
    }
}
