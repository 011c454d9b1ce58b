//! Pooling of volumes.

use meganeura_derive::Module;

use super::IntoTriple;
use super::settings::expect_positive;
use crate::error::bail;
use crate::module::{Init, Layer, Seed};
use crate::ops::window::{Window, axis_name};
use crate::{Device, ErrorKind, Result, Var};

/// The geometry of windows over volumes, per axis `[depth, height, width]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Windows {
    kernel: [usize; 3],
    stride: [usize; 3],
    padding: [usize; 3],
    dilation: [usize; 3],
}

impl Windows {
    fn of(kernel: [usize; 3]) -> Self {
        Self { kernel, stride: kernel, padding: [0; 3], dilation: [1; 3] }
    }

    /// The shapes of the input and of the output, or the error if the input does not fit.
    fn shapes(&self, x: &Var) -> Result<[[usize; 5]; 2], String> {
        let (&[n, c, d, h, w], true) = (x.shape().dims(), x.ty().dtype.is_float()) else {
            return Err(format!("the input must be floats [N, C, D, H, W], it is {}", x.ty()));
        };
        let (input, mut output) = ([n, c, d, h, w], [n, c, 0, 0, 0]);
        for axis in 0..3 {
            let name = axis_name::<3>(axis);
            let [kernel, stride, padding, dilation] =
                [self.kernel, self.stride, self.padding, self.dilation].map(|triple| triple[axis]);
            output[2 + axis] = Window { kernel, stride, padding, dilation }.slide(name, input[2 + axis], false)?;
            if padding > kernel / 2 {
                return Err(format!("{name}: padding {padding} is more than half the kernel, {kernel}"));
            }
        }
        Ok([input, output])
    }

    fn check(&self, layer: &str) -> Result<()> {
        let Self { kernel, stride, padding, dilation } = *self;
        expect_positive(layer, &[("kernel", kernel), ("stride", stride), ("dilation", dilation)])?;
        if (0..3).any(|axis| padding[axis] > kernel[axis] / 2) {
            bail!(Argument, "{layer}: padding {padding:?} is more than half the kernel {kernel:?}");
        }
        Ok(())
    }
}

/// Splits a triple into two pairs: the depth with `one`, and the height with the width.
fn split(triple: [usize; 3], one: usize) -> ([usize; 2], [usize; 2]) {
    ([triple[0], one], [triple[1], triple[2]])
}

/// Max pooling of volumes: `y[n,c,p,q,r] = max x[n,c,p·s+i·d−pad,q·s+j·d−pad,r·s+k·d−pad]` over the kernel's `i, j, k`
///
/// Padding never wins; a window of padding alone, which dilation makes possible, gives −∞. The gradient goes to the
/// single element that won. Computed by [`Var::max_pool2d`] on every slice, then along the depth.
///
/// Shapes: `x [N, C, D, H, W]` → `y [N, C, P, Q, R]` with `P = ⌊(D + 2·pad − d·(KD−1) − 1)/s⌋ + 1`, and `Q`, `R`
/// likewise.
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let x = Tape::new(&device).input(&Tensor::from_slice(&device, [1, 1, 2, 1, 4], &[1., 2., 3., 4., 5., 0., 0., 0.])?);
/// assert_eq!(MaxPool3d::new((2, 1, 2)).forward(&x).to_vec()?, [5., 4.]);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct MaxPool3d {
    #[module(skip)]
    windows: Windows,
}

impl MaxPool3d {
    /// Non-overlapping windows of this extent, or of this depth, height and width.
    pub fn new(kernel: impl IntoTriple) -> Self {
        Self { windows: Windows::of(kernel.into_triple()) }
    }

    /// The step of the window from one output to the next; the window's extent by default.
    pub fn stride(mut self, stride: impl IntoTriple) -> Self {
        self.windows.stride = stride.into_triple();
        self
    }

    /// Voxels of padding on each side of the input; none by default, at most half the kernel.
    pub fn padding(mut self, padding: impl IntoTriple) -> Self {
        self.windows.padding = padding.into_triple();
        self
    }

    /// The distance in the input between neighbouring elements of a window; 1 by default.
    pub fn dilation(mut self, dilation: impl IntoTriple) -> Self {
        self.windows.dilation = dilation.into_triple();
        self
    }
}

/// Checks the settings, like [`forward`](Layer::forward).
impl Init for MaxPool3d {
    type Output = Self;

    fn build(self, _: &Device, _: Seed) -> Result<Self> {
        self.windows.check("max_pool3d")?;
        Ok(self)
    }
}

impl Layer for MaxPool3d {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        let Windows { kernel, stride, padding, dilation } = self.windows;
        let ([n, c, d, h, w], output) = match self.windows.shapes(x) {
            Ok([input, output]) => (input, output),
            Err(message) => return x.refuse("max_pool3d", ErrorKind::Shape, message),
        };
        let ((kd, kernel), (sd, stride)) = (split(kernel, 1), split(stride, 1));
        let ((pd, padding), (dd, dilation)) = (split(padding, 0), split(dilation, 1));
        let slices = x.reshape([n, c * d, h, w]).max_pool2d(kernel, stride, padding, dilation);
        slices.reshape([n, c, d, output[3] * output[4]]).max_pool2d(kd, sd, pd, dd).reshape(output)
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::kept_channels()
    }
}

/// Average pooling of volumes: `y[n,c,p,q,r] = Σ x[n,c,p·s+i−pad,q·s+j−pad,r·s+k−pad] / count` over the kernel's
/// `i, j, k`
///
/// The count is the kernel's volume, padding included, or with [`count_include_pad(false)`](Self::count_include_pad)
/// the part of it that lies in the input. Computed by [`Var::avg_pool2d`] of every slice, then along the depth.
///
/// Shapes: `x [N, C, D, H, W]` → `y [N, C, P, Q, R]` with `P = ⌊(D + 2·pad − KD)/s⌋ + 1`, and `Q`, `R` likewise.
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let x = Tape::new(&device).input(&Tensor::from_slice(&device, [1, 1, 2, 1, 4], &[1., 2., 3., 4., 5., 0., 0., 1.])?);
/// assert_eq!(AvgPool3d::new((2, 1, 2)).forward(&x).to_vec()?, [2., 2.]);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct AvgPool3d {
    #[module(skip)]
    windows: Windows,
    #[module(skip)]
    count_include_pad: bool,
}

impl AvgPool3d {
    /// Non-overlapping windows of this extent, or of this depth, height and width.
    pub fn new(kernel: impl IntoTriple) -> Self {
        Self { windows: Windows::of(kernel.into_triple()), count_include_pad: true }
    }

    /// The step of the window from one output to the next; the window's extent by default.
    pub fn stride(mut self, stride: impl IntoTriple) -> Self {
        self.windows.stride = stride.into_triple();
        self
    }

    /// Zeros on each side of the input; none by default, at most half the kernel.
    pub fn padding(mut self, padding: impl IntoTriple) -> Self {
        self.windows.padding = padding.into_triple();
        self
    }

    /// Counts padding in the average if `true`, the default.
    pub fn count_include_pad(self, count_include_pad: bool) -> Self {
        Self { count_include_pad, ..self }
    }
}

/// Checks the settings, like [`forward`](Layer::forward).
impl Init for AvgPool3d {
    type Output = Self;

    fn build(self, _: &Device, _: Seed) -> Result<Self> {
        self.windows.check("avg_pool3d")?;
        Ok(self)
    }
}

impl Layer for AvgPool3d {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        let (Windows { kernel, stride, padding, .. }, count) = (self.windows, self.count_include_pad);
        let ([n, c, d, h, w], output) = match self.windows.shapes(x) {
            Ok([input, output]) => (input, output),
            Err(message) => return x.refuse("avg_pool3d", ErrorKind::Shape, message),
        };
        let ((kd, kernel), (sd, stride), (pd, padding)) = (split(kernel, 1), split(stride, 1), split(padding, 0));
        let slices = x.reshape([n, c * d, h, w]).avg_pool2d(kernel, stride, padding, count);
        slices.reshape([n, c, d, output[3] * output[4]]).avg_pool2d(kd, sd, pd, count).reshape(output)
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::kept_channels()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Shape, Tape, Tensor};

    fn input(shape: &[usize]) -> Var {
        let device = Device::cpu();
        let x: Vec<_> = (0..shape.iter().product::<usize>()).map(|i| -(i as f32)).collect();
        Tape::new(&device).input(&Tensor::from_slice(&device, Shape::new(shape), &x).unwrap())
    }

    #[test]
    fn computes_the_formulas() {
        let x = input(&[1, 1, 3, 2, 2]);
        // Negative values: padding with zeros would win.
        let y = MaxPool3d::new(2).padding((1, 0, 0)).forward(&x);
        assert_eq!(y.shape(), Shape::from([1, 1, 2, 1, 1]));
        assert_eq!(y.to_vec().unwrap(), [0.0, -4.0]);
        let pool = AvgPool3d::new(2).padding((1, 0, 0));
        assert_eq!(pool.forward(&x).to_vec().unwrap(), [-0.75, -7.5]);
        assert_eq!(pool.count_include_pad(false).forward(&x).to_vec().unwrap(), [-1.5, -7.5]);
    }

    #[test]
    fn senseless_settings_are_errors() {
        let device = Device::cpu();
        let x = input(&[1, 1, 8, 8, 8]);
        let pool = MaxPool3d::new(2);
        for pool in [MaxPool3d::new(0), pool.stride(0), pool.dilation((1, 0, 1)), pool.padding((0, 2, 0))] {
            assert_eq!(pool.init(&device, Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
            assert!(pool.forward(&x).error().is_some(), "{pool:?}");
        }
        for pool in [AvgPool3d::new(0), AvgPool3d::new(2).stride(0), AvgPool3d::new(2).padding(2)] {
            assert_eq!(pool.init(&device, Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
            assert!(pool.forward(&x).error().is_some(), "{pool:?}");
        }
    }

    #[test]
    fn other_shapes_are_errors() {
        for (y, name) in [
            (MaxPool3d::new(2).forward(&input(&[1, 2, 3, 4])), "max_pool3d"),
            (AvgPool3d::new(2).forward(&input(&[1, 2, 3, 4])), "avg_pool3d"),
        ] {
            let message = y.error().unwrap().to_string();
            assert!(message.starts_with(&format!("{name}: the input must be floats [N, C, D, H, W]")), "{message}");
        }
        let message = MaxPool3d::new(3).forward(&input(&[1, 1, 2, 4, 4])).error().unwrap().to_string();
        assert!(message.contains("depth: a kernel of 3 spans 3 elements"), "{message}");
    }
}
