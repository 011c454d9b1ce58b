//! Pooling over windows of one size.

use std::fmt;

use meganeura_derive::Module;

use super::IntoExtents;
use super::settings::expect_positive;
use crate::error::bail;
use crate::module::{Init, Layer, Seed};
use crate::ops::window::named;
use crate::ops::{Divisor, Pool};
use crate::{Device, Result, Var};

/// Max pooling over `D` axes: [`MaxPool1d`], [`MaxPool2d`] and [`MaxPool3d`].
///
/// Padding never wins; a window of padding alone, which dilation makes possible, gives −∞. The gradient goes to the
/// single element that won.
#[derive(Module, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct MaxPool<const D: usize> {
    #[module(skip)]
    pool: Pool<D>,
}

/// Max pooling along sequences: `y[n,c,p] = max x[n,c,p·s+i·d−pad]` over the kernel's `i`
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
pub type MaxPool1d = MaxPool<1>;

/// Max pooling: `y[n,c,p,q] = max x[n,c,p·s+i·d−pad,q·s+j·d−pad]` over the kernel's `i, j`
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
pub type MaxPool2d = MaxPool<2>;

/// Max pooling of volumes: `y[n,c,p,q,r] = max x[n,c,p·s+i·d−pad,q·s+j·d−pad,r·s+k·d−pad]` over the kernel's `i, j, k`
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
pub type MaxPool3d = MaxPool<3>;

impl<const D: usize> MaxPool<D> {
    /// Non-overlapping windows of this extent, or of one for each axis.
    pub fn new(kernel: impl IntoExtents<D>) -> Self {
        Self { pool: Pool::new(kernel.into_extents()) }
    }

    /// The step of the window from one output to the next; the window's extent by default.
    pub fn stride(mut self, stride: impl IntoExtents<D>) -> Self {
        self.pool.stride = stride.into_extents();
        self
    }

    /// Elements of padding on each side of the input; none by default, at most half the kernel.
    pub fn padding(mut self, padding: impl IntoExtents<D>) -> Self {
        self.pool.padding = padding.into_extents();
        self
    }

    /// The distance in the input between neighbouring elements of a window; 1 by default.
    pub fn dilation(mut self, dilation: impl IntoExtents<D>) -> Self {
        self.pool.dilation = dilation.into_extents();
        self
    }

    /// Rounds the number of windows up if `true`; down by default. The last window may then reach past the padding, but
    /// none begins there.
    pub fn ceil_mode(mut self, ceil_mode: bool) -> Self {
        self.pool.ceil_mode = ceil_mode;
        self
    }

    /// The maxima, and the index of each: `u32`, counted over all axes of a channel, as in `[D, H, W]`. PyTorch calls
    /// that `return_indices`. A window of padding alone has the index `u32::MAX`.
    #[must_use]
    #[track_caller]
    pub fn forward_with_indices(&self, x: &Var) -> (Var, Var) {
        let _entered = crate::module::enter(self, x);
        x.max_pool_of(self.pool).into()
    }

    fn name() -> &'static str {
        named::<D>(["max_pool1d", "max_pool2d", "max_pool3d"])
    }
}

/// Checks the settings, like [`forward`](Layer::forward).
impl<const D: usize> Init for MaxPool<D> {
    type Output = Self;

    fn build(self, _: &Device, _: Seed) -> Result<Self> {
        check(Self::name(), &self.pool)?;
        Ok(self)
    }
}

impl<const D: usize> Layer for MaxPool<D> {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        x.max_pool_of(self.pool)[0].clone()
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::kept_channels()
    }
}

impl<const D: usize> fmt::Debug for MaxPool<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pool { kernel, stride, padding, dilation, ceil_mode } = &self.pool;
        f.debug_struct(named::<D>(["MaxPool1d", "MaxPool2d", "MaxPool3d"]))
            .field("kernel", kernel)
            .field("stride", stride)
            .field("padding", padding)
            .field("dilation", dilation)
            .field("ceil_mode", ceil_mode)
            .finish()
    }
}

/// Average pooling over `D` axes: [`AvgPool1d`], [`AvgPool2d`] and [`AvgPool3d`].
///
/// A window's sum is divided by the number of its elements, padding included, or with
/// [`count_include_pad(false)`](Self::count_include_pad) by the number of those that lie in the input, or by
/// [`divisor_override`](Self::divisor_override).
#[derive(Module, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct AvgPool<const D: usize> {
    #[module(skip)]
    pool: Pool<D>,
    #[module(skip)]
    count_include_pad: bool,
    #[module(skip)]
    divisor_override: Option<usize>,
}

/// Average pooling along sequences: `y[n,c,p] = Σ x[n,c,p·s+i−pad] / count` over the kernel's `i`
///
/// Shapes: `x [N, C, L]` → `y [N, C, P]` with `P = ⌊(L + 2·pad − K)/s⌋ + 1`. The divisor is that of [`AvgPool`].
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let x = Tape::new(&device).input(&Tensor::from_slice(&device, [1, 1, 4], &[1., 2., 4., 3.])?);
/// assert_eq!(AvgPool1d::new(2).forward(&x).to_vec()?, [1.5, 3.5]);
/// # Ok::<(), meganeura::Error>(())
/// ```
pub type AvgPool1d = AvgPool<1>;

/// Average pooling: `y[n,c,p,q] = Σ x[n,c,p·s+i−pad,q·s+j−pad] / count` over the kernel's `i, j`
///
/// Shapes: `x [N, C, H, W]` → `y [N, C, P, Q]` with `P = ⌊(H + 2·pad − KH)/s⌋ + 1`, and `Q` likewise. The divisor is
/// that of [`AvgPool`]. The mean over the whole image is [`GlobalAvgPool2d`](super::GlobalAvgPool2d).
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
pub type AvgPool2d = AvgPool<2>;

/// Average pooling of volumes: `y[n,c,p,q,r] = Σ x[n,c,p·s+i−pad,q·s+j−pad,r·s+k−pad] / count` over the kernel's
/// `i, j, k`
///
/// Shapes: `x [N, C, D, H, W]` → `y [N, C, P, Q, R]` with `P = ⌊(D + 2·pad − KD)/s⌋ + 1`, and `Q`, `R` likewise. The
/// divisor is that of [`AvgPool`].
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let x = Tape::new(&device).input(&Tensor::from_slice(&device, [1, 1, 2, 1, 4], &[1., 2., 3., 4., 5., 0., 0., 1.])?);
/// assert_eq!(AvgPool3d::new((2, 1, 2)).forward(&x).to_vec()?, [2., 2.]);
/// # Ok::<(), meganeura::Error>(())
/// ```
pub type AvgPool3d = AvgPool<3>;

impl<const D: usize> AvgPool<D> {
    /// Non-overlapping windows of this extent, or of one for each axis.
    pub fn new(kernel: impl IntoExtents<D>) -> Self {
        Self { pool: Pool::new(kernel.into_extents()), count_include_pad: true, divisor_override: None }
    }

    /// The step of the window from one output to the next; the window's extent by default.
    pub fn stride(mut self, stride: impl IntoExtents<D>) -> Self {
        self.pool.stride = stride.into_extents();
        self
    }

    /// Zeros on each side of the input; none by default, at most half the kernel.
    pub fn padding(mut self, padding: impl IntoExtents<D>) -> Self {
        self.pool.padding = padding.into_extents();
        self
    }

    /// Rounds the number of windows up if `true`; down by default. The last window may then reach past the padding, but
    /// none begins there. What lies past the padding never counts.
    pub fn ceil_mode(mut self, ceil_mode: bool) -> Self {
        self.pool.ceil_mode = ceil_mode;
        self
    }

    /// Counts padding in the average if `true`, the default.
    pub fn count_include_pad(self, count_include_pad: bool) -> Self {
        Self { count_include_pad, ..self }
    }

    /// Divides every sum by this number, at least 1, instead of the number of the window's elements.
    pub fn divisor_override(self, divisor: usize) -> Self {
        Self { divisor_override: Some(divisor), ..self }
    }

    fn name() -> &'static str {
        named::<D>(["avg_pool1d", "avg_pool2d", "avg_pool3d"])
    }
}

/// Checks the settings, like [`forward`](Layer::forward).
impl<const D: usize> Init for AvgPool<D> {
    type Output = Self;

    fn build(self, _: &Device, _: Seed) -> Result<Self> {
        check(Self::name(), &self.pool)?;
        if self.divisor_override == Some(0) {
            bail!(Argument, "{}: divisor 0; it must be at least 1", Self::name());
        }
        Ok(self)
    }
}

impl<const D: usize> Layer for AvgPool<D> {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        let divisor = match (self.divisor_override, self.count_include_pad) {
            (Some(divisor), _) => Divisor::Fixed(divisor),
            (None, true) => Divisor::Padded,
            (None, false) => Divisor::Inside,
        };
        x.avg_pool_of(self.pool, divisor)
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::kept_channels()
    }
}

impl<const D: usize> fmt::Debug for AvgPool<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pool { kernel, stride, padding, ceil_mode, .. } = &self.pool;
        f.debug_struct(named::<D>(["AvgPool1d", "AvgPool2d", "AvgPool3d"]))
            .field("kernel", kernel)
            .field("stride", stride)
            .field("padding", padding)
            .field("ceil_mode", ceil_mode)
            .field("count_include_pad", &self.count_include_pad)
            .field("divisor_override", &self.divisor_override)
            .finish()
    }
}

/// Checks a pooling's settings. Padding of more than half the kernel would make windows that miss the input.
fn check<const D: usize>(layer: &str, pool: &Pool<D>) -> Result<()> {
    let Pool { kernel, stride, padding, dilation, .. } = *pool;
    expect_positive(layer, &[("kernel", kernel), ("stride", stride), ("dilation", dilation)])?;
    if (0..D).any(|axis| padding[axis] > kernel[axis] / 2) {
        bail!(Argument, "{layer}: padding {padding:?} is more than half the kernel {kernel:?}");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
