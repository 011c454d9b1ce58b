//! Upsampling of images.

use meganeura_derive::Module;

use super::IntoPair;
use super::settings::expect_positive;
use crate::error::bail;
use crate::module::{Init, Layer, Seed};
use crate::{Device, Result, Var};

/// Upsampling of images by whole factors: pixels are repeated, or interpolated between the nearest four or sixteen
///
/// [`nearest`](Self::nearest) computes `y[n,c,p,q] = x[n,c,⌊p/s⌋,⌊q/s⌋]`. For [`bilinear`](Self::bilinear) and
/// [`bicubic`](Self::bicubic), pixel `p` lies at `(p + ½)/s − ½` of the input, or with
/// [`align_corners(true)`](Self::align_corners) at `p·(H − 1)/(s·H − 1)`. [`Var::resize_bilinear`] and
/// [`Var::resize_bicubic`] resize to any other size.
///
/// Shapes: `x [N, C, H, W]` → `y [N, C, s·H, s·W]`.
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let x = Tape::new(&device).input(&Tensor::from_slice(&device, [1, 1, 1, 2], &[0.0, 4.0])?);
/// assert_eq!(Upsample::nearest((1, 2)).forward(&x).to_vec()?, [0.0, 0.0, 4.0, 4.0]);
/// assert_eq!(Upsample::bilinear((1, 2)).forward(&x).to_vec()?, [0.0, 1.0, 3.0, 4.0]);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Upsample {
    #[module(skip)]
    scale: [usize; 2],
    #[module(skip)]
    mode: Mode,
    #[module(skip)]
    align_corners: bool,
}

/// The kind of interpolation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Nearest,
    Bilinear,
    Bicubic,
}

impl Upsample {
    /// Repeats each pixel `scale` times in both directions, or by one factor for the height and one for the width.
    pub fn nearest(scale: impl IntoPair) -> Self {
        Self { scale: scale.into_pair(), mode: Mode::Nearest, align_corners: false }
    }

    /// Interpolates linearly to `scale` times as many pixels in both directions, or by one factor for the height and
    /// one for the width.
    pub fn bilinear(scale: impl IntoPair) -> Self {
        Self { scale: scale.into_pair(), mode: Mode::Bilinear, align_corners: false }
    }

    /// Interpolates by cubic polynomials, which are sharper, to `scale` times as many pixels in both directions, or by
    /// one factor for the height and one for the width.
    pub fn bicubic(scale: impl IntoPair) -> Self {
        Self { scale: scale.into_pair(), mode: Mode::Bicubic, align_corners: false }
    }

    /// Aligns the centres of the corner pixels of input and output if `true`, rather than the outer corners of both
    /// images; `false` by default. Not for [`nearest`](Self::nearest).
    pub fn align_corners(self, align_corners: bool) -> Self {
        Self { align_corners, ..self }
    }

    fn check(self) -> Result<()> {
        expect_positive("upsample", &[("scale", self.scale)])?;
        if self.align_corners && self.mode == Mode::Nearest {
            bail!(Argument, "upsample: `Upsample::nearest` has no corners to align; use `Upsample::bilinear`");
        }
        Ok(())
    }
}

/// Checks the settings, like [`forward`](Layer::forward).
impl Init for Upsample {
    type Output = Self;

    fn build(self, _: &Device, _: Seed) -> Result<Self> {
        self.check().map(|()| self)
    }
}

impl Layer for Upsample {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        if let Err(error) = self.check() {
            return x.fail(error.at(std::panic::Location::caller()));
        }
        let &[_, _, h, w] = x.shape().dims() else { return x.upsample_nearest(self.scale) };
        let size = [h.saturating_mul(self.scale[0]), w.saturating_mul(self.scale[1])];
        match self.mode {
            Mode::Nearest => x.upsample_nearest(self.scale),
            Mode::Bilinear => x.resize_bilinear(size, self.align_corners),
            Mode::Bicubic => x.resize_bicubic(size, self.align_corners),
        }
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
    fn computes_the_formulas() {
        let device = Device::cpu();
        let x = Tape::new(&device).input(&Tensor::from_slice(&device, [1, 1, 2, 2], &[1.0, 2.0, 3.0, 4.0]).unwrap());
        let of = |layer: Upsample| layer.forward(&x).to_vec().unwrap();
        let rows = [[1.0, 1.0, 2.0, 2.0], [3.0, 3.0, 4.0, 4.0]];
        assert_eq!(of(Upsample::nearest(2)), [rows[0], rows[0], rows[1], rows[1]].concat());
        // PyTorch's values.
        let expected = [[1.0, 1.25, 1.75, 2.0], [1.5, 1.75, 2.25, 2.5], [2.5, 2.75, 3.25, 3.5], [3.0, 3.25, 3.75, 4.0]];
        assert_eq!(of(Upsample::bilinear(2)), expected.concat());
        let aligned = of(Upsample::bilinear((1, 2)).align_corners(true));
        let expected = [1.0, 4.0 / 3.0, 5.0 / 3.0, 2.0, 3.0, 10.0 / 3.0, 11.0 / 3.0, 4.0];
        assert!(aligned.iter().zip(expected).all(|(y, e)| (y - e).abs() < 1e-6f32), "{aligned:?}");
    }

    #[test]
    fn misfits_are_errors() {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let x = tape.input(&Tensor::zeros(&device, [1, 1, 2, 2]).unwrap());
        for layer in [Upsample::nearest(0), Upsample::bilinear((1, 0)), Upsample::nearest(2).align_corners(true)] {
            assert_eq!(layer.init(&device, Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
            assert_eq!(layer.forward(&x).error().unwrap().kind(), ErrorKind::Argument, "{layer:?}");
        }
        for layer in [Upsample::nearest(usize::MAX), Upsample::bilinear(usize::MAX), Upsample::bicubic(usize::MAX)] {
            assert!(layer.forward(&x).error().is_some(), "{layer:?}");
        }
        let flat = tape.input(&Tensor::zeros(&device, [2, 2]).unwrap());
        for layer in [Upsample::nearest(2), Upsample::bilinear(2), Upsample::bicubic(2)] {
            let (y, line) = (layer.forward(&flat), line!());
            let error = y.error().unwrap();
            assert_eq!((error.kind(), error.location().unwrap().line()), (ErrorKind::Shape, line));
        }
    }
}
