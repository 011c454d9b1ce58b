//! Pooling along sequences.

use meganeura_derive::Module;

use super::settings::expect_positive;
use crate::error::bail;
use crate::module::{Init, Layer, Seed};
use crate::ops::window::Window;
use crate::{Device, ErrorKind, Result, Var};

/// Max pooling along sequences: `y[n,c,p] = max x[n,c,p·s+i·d−pad]` over the kernel's `i`
///
/// Padding never wins; a window of padding alone, which dilation makes possible, gives −∞. The gradient goes to the
/// single element that won.
///
/// Shapes: `x [N, C, L]` → `y [N, C, P]` with `P = ⌊(L + 2·pad − d·(K−1) − 1)/s⌋ + 1`.
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let x = Tape::new(&device).input(&Tensor::from_slice(&device, [1, 1, 4], &[1., 2., 4., 3.])?);
/// assert_eq!(MaxPool1d::new(2).forward(&x).to_vec()?, [2., 4.]);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct MaxPool1d {
    #[module(skip)]
    kernel: usize,
    #[module(skip)]
    stride: usize,
    #[module(skip)]
    padding: usize,
    #[module(skip)]
    dilation: usize,
}

impl MaxPool1d {
    /// Non-overlapping windows of this extent.
    pub fn new(kernel: usize) -> Self {
        Self { kernel, stride: kernel, padding: 0, dilation: 1 }
    }

    /// The step of the window from one output to the next; the window's extent by default.
    pub fn stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    /// Elements of padding on each side of the input; none by default, at most half the kernel.
    pub fn padding(self, padding: usize) -> Self {
        Self { padding, ..self }
    }

    /// The distance in the input between neighbouring elements of a window; 1 by default.
    pub fn dilation(self, dilation: usize) -> Self {
        Self { dilation, ..self }
    }

    fn window(self) -> Window {
        let Self { kernel, stride, padding, dilation } = self;
        Window { kernel, stride, padding, dilation }
    }
}

/// Checks the settings, like [`forward`](Layer::forward).
impl Init for MaxPool1d {
    type Output = Self;

    fn build(self, _: &Device, _: Seed) -> Result<Self> {
        check("max_pool1d", self.window())?;
        Ok(self)
    }
}

impl Layer for MaxPool1d {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        let Self { kernel, stride, padding, dilation } = *self;
        match output(x, self.window()) {
            Ok(y) => as_row(x).max_pool2d([1, kernel], [1, stride], [0, padding], [1, dilation]).reshape(y),
            Err(message) => x.refuse("max_pool1d", ErrorKind::Shape, message),
        }
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::kept_channels()
    }
}

/// Average pooling along sequences: `y[n,c,p] = Σ x[n,c,p·s+i−pad] / count` over the kernel's `i`
///
/// The count is the kernel's extent, padding included, or with [`count_include_pad(false)`](Self::count_include_pad)
/// the part of it that lies in the input.
///
/// Shapes: `x [N, C, L]` → `y [N, C, P]` with `P = ⌊(L + 2·pad − K)/s⌋ + 1`.
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let x = Tape::new(&device).input(&Tensor::from_slice(&device, [1, 1, 4], &[1., 2., 4., 3.])?);
/// assert_eq!(AvgPool1d::new(2).forward(&x).to_vec()?, [1.5, 3.5]);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct AvgPool1d {
    #[module(skip)]
    kernel: usize,
    #[module(skip)]
    stride: usize,
    #[module(skip)]
    padding: usize,
    #[module(skip)]
    count_include_pad: bool,
}

impl AvgPool1d {
    /// Non-overlapping windows of this extent.
    pub fn new(kernel: usize) -> Self {
        Self { kernel, stride: kernel, padding: 0, count_include_pad: true }
    }

    /// The step of the window from one output to the next; the window's extent by default.
    pub fn stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    /// Zeros on each side of the input; none by default, at most half the kernel.
    pub fn padding(self, padding: usize) -> Self {
        Self { padding, ..self }
    }

    /// Counts padding in the average if `true`, the default.
    pub fn count_include_pad(self, count_include_pad: bool) -> Self {
        Self { count_include_pad, ..self }
    }

    fn window(self) -> Window {
        let Self { kernel, stride, padding, .. } = self;
        Window { kernel, stride, padding, dilation: 1 }
    }
}

/// Checks the settings, like [`forward`](Layer::forward).
impl Init for AvgPool1d {
    type Output = Self;

    fn build(self, _: &Device, _: Seed) -> Result<Self> {
        check("avg_pool1d", self.window())?;
        Ok(self)
    }
}

impl Layer for AvgPool1d {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        let Self { kernel, stride, padding, count_include_pad } = *self;
        match output(x, self.window()) {
            Ok(y) => as_row(x).avg_pool2d([1, kernel], [1, stride], [0, padding], count_include_pad).reshape(y),
            Err(message) => x.refuse("avg_pool1d", ErrorKind::Shape, message),
        }
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::kept_channels()
    }
}

/// Average pooling to `P` elements for inputs of any length: the means of elements `⌊p·L/P⌋ .. ⌈(p+1)·L/P⌉`
///
/// Windows overlap where `P` does not divide `L`, as in PyTorch. Where `P` exceeds `L`, each window has one or two
/// elements.
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
#[derive(Module, Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct AdaptiveAvgPool1d {
    #[module(skip)]
    size: usize,
}

impl AdaptiveAvgPool1d {
    /// Pools to sequences of this length.
    pub fn new(size: usize) -> Self {
        Self { size }
    }
}

/// Checks the size, like [`forward`](Layer::forward).
impl Init for AdaptiveAvgPool1d {
    type Output = Self;

    fn build(self, _: &Device, _: Seed) -> Result<Self> {
        expect_positive("adaptive_avg_pool1d", &[("size", [self.size])])?;
        Ok(self)
    }
}

impl Layer for AdaptiveAvgPool1d {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        let message = match (x.shape().dims(), self.size) {
            (_, 0) => return x.refuse("adaptive_avg_pool1d", ErrorKind::Argument, "size 0; it must be at least 1"),
            (&[n, c, _], size) if x.ty().dtype.is_float() => {
                return as_row(x).adaptive_avg_pool2d([1, size]).reshape([n, c, size]);
            }
            _ => format!("the input must be floats [N, C, L], it is {}", x.ty()),
        };
        x.refuse("adaptive_avg_pool1d", ErrorKind::Shape, message)
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::kept_channels()
    }
}

#[track_caller]
fn as_row(x: &Var) -> Var {
    let [a, b, length] = *x.shape().dims() else { unreachable!("three axes, as was checked") };
    x.reshape([a, b, 1, length])
}

/// The output's shape, or the error if the input does not fit.
fn output(x: &Var, window: Window) -> Result<[usize; 3], String> {
    let (&[n, c, length], true) = (x.shape().dims(), x.ty().dtype.is_float()) else {
        return Err(format!("the input must be floats [N, C, L], it is {}", x.ty()));
    };
    let Window { kernel, padding, .. } = window;
    let p = window.slide("length", length, false)?;
    if padding > kernel / 2 {
        return Err(format!("padding {padding} is more than half the kernel, {kernel}"));
    }
    Ok([n, c, p])
}

fn check(layer: &str, Window { kernel, stride, padding, dilation }: Window) -> Result<()> {
    expect_positive(layer, &[("kernel", [kernel]), ("stride", [stride]), ("dilation", [dilation])])?;
    if padding > kernel / 2 {
        bail!(Argument, "{layer}: padding {padding} is more than half the kernel, {kernel}");
    }
    Ok(())
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
        let x = input(&[1, 2, 5]);
        // Negative values: padding with zeros would win.
        let y = MaxPool1d::new(2).padding(1).forward(&x);
        assert_eq!(y.shape(), Shape::from([1, 2, 3]));
        assert_eq!(y.to_vec().unwrap(), [0.0, -1.0, -3.0, -5.0, -6.0, -8.0]);
        assert_eq!(MaxPool1d::new(2).stride(1).dilation(3).forward(&x).to_vec().unwrap(), [0.0, -1.0, -5.0, -6.0]);
        let pool = AvgPool1d::new(3).padding(1).stride(2);
        assert_eq!(pool.forward(&x).to_vec().unwrap()[..3], [-1.0 / 3.0, -2.0, -7.0 / 3.0]);
        assert_eq!(pool.count_include_pad(false).forward(&x).to_vec().unwrap()[..3], [-0.5, -2.0, -3.5]);
        assert_eq!(AdaptiveAvgPool1d::new(2).forward(&x).to_vec().unwrap(), [-1.0, -3.0, -6.0, -8.0]);
    }

    #[test]
    fn senseless_settings_are_errors() {
        let device = Device::cpu();
        let x = input(&[1, 1, 8]);
        let pool = MaxPool1d::new(2);
        for pool in [MaxPool1d::new(0), pool.stride(0), pool.dilation(0), pool.padding(2)] {
            assert_eq!(pool.init(&device, Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
            assert!(pool.forward(&x).error().is_some(), "{pool:?}");
        }
        for pool in [AvgPool1d::new(0), AvgPool1d::new(2).stride(0), AvgPool1d::new(2).padding(2)] {
            assert_eq!(pool.init(&device, Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
            assert!(pool.forward(&x).error().is_some(), "{pool:?}");
        }
        let none = AdaptiveAvgPool1d::new(0);
        assert_eq!(none.init(&device, Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
        assert_eq!(none.forward(&x).error().unwrap().kind(), ErrorKind::Argument);
    }

    #[test]
    fn other_shapes_are_errors() {
        let images = input(&[1, 2, 3, 4]);
        for (y, name) in [
            (MaxPool1d::new(2).forward(&images), "max_pool1d"),
            (AvgPool1d::new(2).forward(&images), "avg_pool1d"),
            (AdaptiveAvgPool1d::new(2).forward(&images), "adaptive_avg_pool1d"),
        ] {
            let message = y.error().unwrap().to_string();
            assert!(message.starts_with(&format!("{name}: the input must be floats [N, C, L]")), "{message}");
        }
        let message = MaxPool1d::new(3).forward(&input(&[1, 1, 2])).error().unwrap().to_string();
        assert!(message.contains("spans 3 elements, but the padded input has only 2"), "{message}");
    }
}
