//! Max pooling.

use meganeura_derive::Module;

use super::IntoPair;
use super::settings::expect_positive;
use crate::error::bail;
use crate::module::{Init, Layer, Seed};
use crate::{Device, Result, Var};

/// Max pooling: `y[n,c,p,q] = max x[n,c,p·s+i·d−pad,q·s+j·d−pad]` over the kernel's `i, j`
///
/// Padding never wins; a window of padding alone, which dilation makes possible, gives −∞. The gradient goes to the
/// single element that won.
///
/// Shapes: `x [N, C, H, W]` → `y [N, C, P, Q]` with `P = ⌊(H + 2·pad − d·(KH−1) − 1)/s⌋ + 1`, and `Q` likewise.
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let tape = Tape::new(&device);
/// let x = tape.input(&Tensor::from_slice(&device, [1, 1, 2, 4], &[1., 2., 3., 4., 5., 6., 7., 8.])?);
/// assert_eq!(MaxPool2d::new(2).forward(&x).to_vec()?, [6., 8.]);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct MaxPool2d {
    #[module(skip)]
    kernel: [usize; 2],
    #[module(skip)]
    stride: [usize; 2],
    #[module(skip)]
    padding: [usize; 2],
    #[module(skip)]
    dilation: [usize; 2],
}

impl MaxPool2d {
    /// Non-overlapping windows of this extent, or of this height and width.
    pub fn new(kernel: impl IntoPair) -> Self {
        let kernel = kernel.into_pair();
        Self { kernel, stride: kernel, padding: [0, 0], dilation: [1, 1] }
    }

    /// The step of the window from one output to the next; the window's extent by default.
    pub fn stride(self, stride: impl IntoPair) -> Self {
        Self { stride: stride.into_pair(), ..self }
    }

    /// Rows and columns of padding on each side of the input; none by default, at most half the kernel.
    pub fn padding(self, padding: impl IntoPair) -> Self {
        Self { padding: padding.into_pair(), ..self }
    }

    /// The distance in the input between neighbouring elements of a window; 1 by default.
    pub fn dilation(self, dilation: impl IntoPair) -> Self {
        Self { dilation: dilation.into_pair(), ..self }
    }
}

/// Checks the settings, like [`forward`](Layer::forward).
impl Init for MaxPool2d {
    type Output = Self;

    fn build(self, _: &Device, _: Seed) -> Result<Self> {
        check("max_pool2d", self.kernel, self.stride, self.padding)?;
        expect_positive("max_pool2d", &[("dilation", self.dilation)])?;
        Ok(self)
    }
}

impl Layer for MaxPool2d {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        x.max_pool2d(self.kernel, self.stride, self.padding, self.dilation)
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::kept_channels()
    }
}

/// Checks a pooling's settings. Padding of more than half the kernel would make windows that miss the input.
pub(super) fn check(layer: &str, kernel: [usize; 2], stride: [usize; 2], padding: [usize; 2]) -> Result<()> {
    expect_positive(layer, &[("kernel", kernel), ("stride", stride)])?;
    if padding[0] > kernel[0] / 2 || padding[1] > kernel[1] / 2 {
        bail!(Argument, "{layer}: padding {padding:?} is more than half the kernel {kernel:?}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, Shape, Tape, Tensor};

    #[test]
    fn computes_the_formula() {
        let device = Device::cpu();
        let x: Vec<_> = (0..12u8).map(|i| -f32::from(i)).collect();
        let x = Tape::new(&device).input(&Tensor::from_slice(&device, [1, 1, 3, 4], &x).unwrap());
        // Negative values: padding with zeros would win.
        let y = MaxPool2d::new(2).padding(1).forward(&x);
        assert_eq!(y.shape(), Shape::from([1, 1, 2, 3]));
        assert_eq!(y.to_vec().unwrap(), [0.0, -1.0, -3.0, -4.0, -5.0, -7.0]);
        let y = MaxPool2d::new((1, 2)).stride((2, 1)).dilation((1, 2)).forward(&x);
        assert_eq!(y.to_vec().unwrap(), [0.0, -1.0, -8.0, -9.0]);
    }

    #[test]
    fn senseless_settings_are_errors() {
        let device = Device::cpu();
        let x = Tape::new(&device).input(&Tensor::zeros(&device, [1, 1, 8, 8]).unwrap());
        let pool = MaxPool2d::new(2);
        for pool in [MaxPool2d::new(0), pool.stride(0), pool.dilation(0), pool.padding(2)] {
            assert_eq!(pool.init(&device, Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
            assert!(pool.forward(&x).error().is_some(), "{pool:?}");
        }
    }
}
