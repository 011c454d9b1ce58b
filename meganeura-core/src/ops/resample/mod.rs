//! Resampling of images, with one rule along each axis. Bilinear and bicubic interpolation, and means over windows of
//! unequal size, are one operation; its gradient is the transpose.

mod axis;
#[cfg(feature = "testing")]
mod cases;
#[cfg(feature = "onnx")]
mod onnx;

use axis::{Axis, Rule};

#[cfg(feature = "onnx")]
use super::form::{Form, Operand, Results};
use super::terms::{self, Terms};
use super::{Bf16, Kernel, Primitive};
use crate::kernel::launch::{Argument, Caps, LINE, Variant, define};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
use crate::tape::Var;
use crate::{ErrorKind, Result, Shape, TensorType};

/// Resizes planes: `y[n,c,p,q] = Σ x[n,c,h,w]·a(p,h)·b(q,w)`, or the transpose
/// `y[n,c,h,w] = Σ x[n,c,p,q]·a(p,h)·b(q,w)`
///
/// Shapes: `x [N,C,H,W]` → `y [N,C,P,Q]`, or the reverse.
/// Gradient: the transpose, which gathers like the operation: each element of either is a sum in a fixed order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Resample {
    rule: Rule,
    /// Rows, columns.
    axes: [Axis; 2],
    transposed: bool,
}

impl Resample {
    /// From `(height, width)` to `size`.
    fn new(rule: Rule, x: [usize; 2], size: [usize; 2]) -> Self {
        let axis = |k: usize| Axis { inputs: x[k], outputs: size[k] };
        Self { rule, axes: [axis(0), axis(1)], transposed: false }
    }

    /// The extents of the operand and of the result.
    fn extents(&self) -> ([usize; 2], [usize; 2]) {
        let (inputs, outputs) = (self.axes.map(|axis| axis.inputs), self.axes.map(|axis| axis.outputs));
        if self.transposed { (outputs, inputs) } else { (inputs, outputs) }
    }

    /// An upper bound on the terms of one element, vertically and horizontally.
    fn most_terms(&self) -> [usize; 2] {
        self.axes.map(|axis| if self.transposed { axis.most_readers(self.rule) } else { axis.most_sources(self.rule) })
    }

    /// For each position of the result, the first position of the operand and the weights from there on.
    fn taps<T: Real>(&self, axis: Axis) -> Vec<(usize, Vec<T>)> {
        let Self { rule, transposed, .. } = *self;
        let tap = |out: usize| {
            let range = if transposed { axis.readers(rule, out) } else { axis.window(rule, out) };
            let share =
                |at| T::from_f64(if transposed { axis.share(rule, at, out) } else { axis.share(rule, out, at) });
            (range.start, range.map(share).collect())
        };
        (0..if transposed { axis.inputs } else { axis.outputs }).map(tap).collect()
    }
}

impl Primitive for Resample {
    fn name(&self) -> &'static str {
        "resample"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let (read, [p, q]) = self.extents();
        match *x[0].shape.dims() {
            _ if !x[0].dtype.is_float() => return Err(format!("needs floats, the operand holds {}", x[0].dtype)),
            [_, _, h, w] if [h, w] == read => (),
            _ => return Err(format!("needs images [N, C, {}, {}], not {}", read[0], read[1], x[0].shape)),
        }
        // Shaders compute indices in 32 bits.
        if self.axes.iter().any(|axis| axis.outputs == 0 || axis.inputs.saturating_mul(axis.outputs) > 1 << 28) {
            return Err(format!(
                "a plane of {p}×{q} from one of {}×{}; both need at least one element, and not too many",
                read[0], read[1]
            ));
        }
        Ok(vec![x[0].with_shape(x[0].shape.with(2, p).with(3, q))])
    }

    fn vjp(&self, _x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let back = Self { transposed: !self.transposed, ..self.clone() };
        Ok(vec![dy[0].as_ref().map(|dy| dy.record(back, &[dy]))])
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[Operand], y: &[TensorType], to: &mut Form) -> Option<Results> {
        self.form(x[0].value, y[0].dtype, to)
    }

    #[cfg(feature = "testing")]
    fn cases() -> Vec<super::case::Case> {
        cases::cases()
    }
}

impl Kernel for Resample {
    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        let ([h, w], [p, q]) = self.extents();
        let x = x[0].floats();
        let [rows, columns] = self.axes.map(|axis| self.taps::<T>(axis));
        native::parallel_scratch(y[0].floats(), p * q, (scratch, w), &|plane, y, row| {
            let x = &x[plane * h * w..][..h * w];
            for (y, (first, shares)) in y.chunks_exact_mut(q).zip(&rows) {
                row.fill(T::ZERO);
                for (x, &share) in x[first * w..].chunks_exact(w).zip(shares) {
                    row.iter_mut().zip(x).for_each(|(row, &x)| *row += share * x);
                }
                for (y, (first, shares)) in y.iter_mut().zip(&columns) {
                    *y = row[*first..].iter().zip(shares).map(|(&x, &share)| x * share).sum();
                }
            }
        });
    }

    fn bf16(&self, x: &[TensorType], y: &[TensorType], caps: &Caps) -> Option<Bf16> {
        terms::bf16(&[0], [x[0].shape, y[0].shape], self.most_terms(), caps)
    }

    fn variants(&self, x: &[Argument], y: &[TensorType], _: &Caps) -> Vec<Variant> {
        let ([h, w], [p, q]) = self.extents();
        let axis = |axis: Axis| {
            let line = match self.rule {
                Rule::Mean => "0, 0, 0".to_owned(),
                Rule::Linear { corners } | Rule::Cubic { corners } => {
                    let line = axis.line(corners);
                    format!("{}, {}, {}", line.slope, line.shift, line.unit)
                }
            };
            format!("Axis({}, {}, {line})", axis.inputs, axis.outputs)
        };
        let results = y[0].shape.elements();
        let channels = x[0].format.channels().map_or(1, |lines| lines.channels);
        let rule = match self.rule {
            Rule::Mean => "mean",
            Rule::Linear { .. } => "linear",
            Rule::Cubic { .. } => "cubic",
        };
        let mut defines =
            define![N: results / (channels * p * q), SIDE: channels.div_ceil(LINE), H: h, W: w, P: p, Q: q];
        defines.extend(define![
            RULE: rule, TRANSPOSED: u32::from(self.transposed), ROWS: axis(self.axes[0]), COLUMNS: axis(self.axes[1]),
        ]);
        let terms = Terms { kernel: self.name(), defines, bindings: (1, 1), results, extent: self.most_terms() };
        terms.variants(x[0].format, "gather")
    }
}

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

fn not_images(shape: Shape) -> String {
    format!("needs images [N, C, H, W], not {shape}")
}
