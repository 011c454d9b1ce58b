//! Rearrangement of channels to pixels and back.

use meganeura_derive::Module;

use crate::error::bail;
use crate::module::{Init, Layer, Seed};
use crate::{Device, ErrorKind, Result, Var};

/// Rearranges channels to pixels: `y[n, c, r·h + i, r·w + j] = x[n, r²·c + r·i + j, h, w]`
///
/// Shapes: `x [N, C·r², H, W]` → `y [N, C, r·H, r·W]`. The result is a view, which its readers may have to copy. As in
/// PyTorch. [Shi et al., 2016](https://arxiv.org/abs/1609.05158).
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let x = Tape::new(&device).input(&Tensor::from_slice(&device, [1, 4, 1, 1], &[1.0, 2.0, 3.0, 4.0])?);
/// let y = PixelShuffle::new(2).forward(&x);
/// assert_eq!((y.shape(), y.to_vec()?), (Shape::from([1, 1, 2, 2]), vec![1.0, 2.0, 3.0, 4.0]));
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct PixelShuffle {
    #[module(skip)]
    factor: usize,
}

/// Rearranges pixels to channels, the inverse of [`PixelShuffle`]:
/// `y[n, r²·c + r·i + j, h, w] = x[n, c, r·h + i, r·w + j]`
///
/// Shapes: `x [N, C, r·H, r·W]` → `y [N, C·r², H, W]`. The result is a view, which its readers may have to copy.
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let x = Tape::new(&device).input(&Tensor::zeros(&device, [1, 3, 8, 6])?);
/// assert_eq!(PixelUnshuffle::new(2).forward(&x).shape(), Shape::from([1, 12, 4, 3]));
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct PixelUnshuffle {
    #[module(skip)]
    factor: usize,
}

impl PixelShuffle {
    /// Multiplies height and width by this factor.
    pub const fn new(factor: usize) -> Self {
        Self { factor }
    }
}

impl PixelUnshuffle {
    /// Divides height and width by this factor.
    pub const fn new(factor: usize) -> Self {
        Self { factor }
    }
}

fn check(layer: &str, factor: usize) -> Result<()> {
    if factor == 0 {
        bail!(Argument, "{layer}: a factor of 0; it must be at least 1");
    }
    Ok(())
}

/// Checks the factor, like [`forward`](Layer::forward), which refuses 0.
impl Init for PixelShuffle {
    type Output = Self;

    fn build(self, _: &Device, _: Seed) -> Result<Self> {
        check("pixel_shuffle", self.factor).map(|()| self)
    }
}

/// Checks the factor, like [`forward`](Layer::forward), which refuses 0.
impl Init for PixelUnshuffle {
    type Output = Self;

    fn build(self, _: &Device, _: Seed) -> Result<Self> {
        check("pixel_unshuffle", self.factor).map(|()| self)
    }
}

impl Layer for PixelShuffle {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        let r = self.factor;
        match *x.shape().dims() {
            [n, c, h, w] if r.checked_mul(r).is_some_and(|area| area > 0 && c % area == 0) => {
                let blocks = x.reshape([n, c / (r * r), r, r, h, w]);
                blocks.permute(&[0, 1, 4, 2, 5, 3]).reshape([n, c / (r * r), h * r, w * r])
            }
            _ => {
                let message = format!("needs images [N, C·{r}², H, W] with a factor of at least 1, not {}", x.shape());
                x.refuse("pixel_shuffle", ErrorKind::Shape, message)
            }
        }
    }
}

impl Layer for PixelUnshuffle {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        let r = self.factor;
        match *x.shape().dims() {
            [n, c, h, w] if r > 0 && h % r == 0 && w % r == 0 => {
                let blocks = x.reshape([n, c, h / r, r, w / r, r]);
                blocks.permute(&[0, 1, 3, 5, 2, 4]).reshape([n, c * r * r, h / r, w / r])
            }
            _ => {
                let message =
                    format!("needs images [N, C, {r}·H, {r}·W] with a factor of at least 1, not {}", x.shape());
                x.refuse("pixel_unshuffle", ErrorKind::Shape, message)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Shape, Tape, Tensor};

    #[test]
    fn pixels_go_where_pytorch_puts_them_and_back() {
        let device = Device::cpu();
        let x: Vec<_> = (0..16u8).map(f32::from).collect();
        let x = Tape::new(&device).input(&Tensor::from_slice(&device, [1, 8, 1, 2], &x).unwrap());
        let y = PixelShuffle::new(2).forward(&x);
        assert_eq!(y.shape(), Shape::from([1, 2, 2, 4]));
        let expected = [0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15].map(|x: u8| f32::from(x));
        assert_eq!(y.to_vec().unwrap(), expected);
        assert_eq!(PixelUnshuffle::new(2).forward(&y).to_vec().unwrap(), x.to_vec().unwrap());
    }

    #[test]
    fn misfits_are_errors() {
        let device = Device::cpu();
        assert_eq!(PixelShuffle::new(0).init(&device, Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
        assert_eq!(PixelUnshuffle::new(0).init(&device, Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
        let x = Tape::new(&device).input(&Tensor::zeros(&device, [1, 3, 4, 5]).unwrap());
        for factor in [0, 2, usize::MAX] {
            for y in [PixelShuffle::new(factor).forward(&x), PixelUnshuffle::new(factor).forward(&x)] {
                assert_eq!(y.error().unwrap().kind(), ErrorKind::Shape);
            }
        }
    }
}
