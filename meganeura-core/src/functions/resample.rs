//! Resampling of images. The gradient is the transpose.

#[cfg(feature = "testing")]
mod cases;

use super::Vjp;
use crate::ops::resample::{Resample, Rule, not_images};
use crate::{ErrorKind, Result, Var};

impl Var {
    /// Repeats each pixel of `[N, C, H, W]` `scale` times vertically and horizontally:
    /// `y[n,c,p,q] = x[n,c,⌊p/s⌋,⌊q/t⌋]`
    ///
    /// This is a view, which its readers may have to copy. The gradient is a single sum over each pixel's copies.
    #[doc(alias = "interpolate")]
    #[must_use]
    #[track_caller]
    pub fn upsample_nearest(&self, scale: [usize; 2]) -> Self {
        let [s, t] = scale;
        match *self.shape().dims() {
            _ if s == 0 || t == 0 => self.refuse(
                "upsample_nearest",
                ErrorKind::Argument,
                format!("scale {scale:?}; both must be at least 1"),
            ),
            [n, c, h, w] => {
                let Some([p, q]) = h.checked_mul(s).zip(w.checked_mul(t)).map(|(p, q)| [p, q]) else {
                    let message = format!("scale {scale:?} is too large for images {}", self.shape());
                    return self.refuse("upsample_nearest", ErrorKind::Argument, message);
                };
                self.reshape([n, c, h, 1, w, 1]).expand([n, c, h, s, w, t]).reshape([n, c, p, q])
            }
            _ => self.refuse("upsample_nearest", ErrorKind::Shape, not_images(self.shape())),
        }
    }

    /// Resizes images `[N, C, H, W]` by interpolation between the four nearest pixels.
    ///
    /// Pixel `p` is at `(p + ½)·H/P − ½` in the original. With `align_corners` it is at `p·(H − 1)/(P − 1)`, so that
    /// the centres of the corners coincide. Outside the outermost centres, the outermost pixel is used. Like PyTorch's
    /// `interpolate`, it does not average when it shrinks.
    #[doc(alias = "interpolate")]
    #[must_use]
    #[track_caller]
    pub fn resize_bilinear(&self, size: [usize; 2], align_corners: bool) -> Self {
        self.resample("resize_bilinear", Rule::Linear { corners: align_corners }, size)
    }

    /// Resizes images `[N, C, H, W]` by cubic polynomials between the sixteen nearest pixels, with a = −¾. [Keys,
    /// 1981](https://doi.org/10.1109/TASSP.1981.1163711).
    ///
    /// Results may lie outside the range of the original pixels. Positions are those of
    /// [`resize_bilinear`](Self::resize_bilinear); beyond the edges, the outermost pixel is used. Like PyTorch's
    /// `interpolate` without antialiasing.
    #[doc(alias = "interpolate")]
    #[must_use]
    #[track_caller]
    pub fn resize_bicubic(&self, size: [usize; 2], align_corners: bool) -> Self {
        self.resample("resize_bicubic", Rule::Cubic { corners: align_corners }, size)
    }

    /// The means of `P×Q` windows that cover images `[N, C, H, W]`: of rows `⌊p·H/P⌋ .. ⌈(p+1)·H/P⌉`, and columns
    /// likewise
    ///
    /// Windows overlap if `P` does not divide `H`, as in PyTorch.
    #[must_use]
    #[track_caller]
    pub fn adaptive_avg_pool2d(&self, size: [usize; 2]) -> Self {
        let [p, q] = size;
        match *self.shape().dims() {
            // Equal windows are a sum, which reductions split if it is long.
            [n, c, h, w] if p > 0 && q > 0 && h % p == 0 && w % q == 0 && self.ty().dtype.is_float() => {
                self.reshape([n, c, p, h / p, q, w / q]).mean_over(&[3, 5])
            }
            _ => self.resample("adaptive_avg_pool2d", Rule::Mean, size),
        }
    }

    #[track_caller]
    fn resample(&self, name: &'static str, rule: Rule, size: [usize; 2]) -> Self {
        match *self.shape().dims() {
            _ if size.contains(&0) => self.refuse(
                name,
                ErrorKind::Argument,
                format!("the extents of the result must be at least 1, they are {size:?}"),
            ),
            [_, _, h, w] => self.record(Resample::new(rule, [h, w], size), &[self]),
            _ => self.refuse(name, ErrorKind::Shape, not_images(self.shape())),
        }
    }
}

impl Vjp for Resample {
    fn vjp(&self, _x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let back = Self { transposed: !self.transposed, ..self.clone() };
        Ok(vec![dy[0].as_ref().map(|dy| dy.record(back, &[dy]))])
    }
}
