//! Resampling of images, with one rule along each axis. Bilinear and bicubic interpolation, and means over windows of
//! unequal size, are one operation; its gradient is the transpose.

mod axis;
#[cfg(feature = "onnx")]
mod onnx;

pub(crate) use axis::{Axis, Rule};

#[cfg(feature = "onnx")]
use super::form::{Form, Operand, Results};
use super::terms::{self, Terms};
use super::{Bf16, Kernel, Primitive};
use crate::kernel::launch::{Argument, Caps, LINE, Variant, define};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
use crate::{Result, Shape, TensorType};

/// Resizes planes: `y[n,c,p,q] = Σ x[n,c,h,w]·a(p,h)·b(q,w)`, or the transpose
/// `y[n,c,h,w] = Σ x[n,c,p,q]·a(p,h)·b(q,w)`
///
/// Shapes: `x [N,C,H,W]` → `y [N,C,P,Q]`, or the reverse.
/// Gradient: the transpose, which gathers like the operation: each element of either is a sum in a fixed order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Resample {
    pub(crate) rule: Rule,
    /// Rows, columns.
    pub(crate) axes: [Axis; 2],
    pub(crate) transposed: bool,
}

impl Resample {
    /// From `(height, width)` to `size`.
    pub(crate) fn new(rule: Rule, x: [usize; 2], size: [usize; 2]) -> Self {
        let axis = |k: usize| Axis { inputs: x[k], outputs: size[k] };
        Self { rule, axes: [axis(0), axis(1)], transposed: false }
    }

    /// The extents of the operand and of the result.
    pub(crate) fn extents(&self) -> ([usize; 2], [usize; 2]) {
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

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[Operand], y: &[TensorType], to: &mut Form) -> Option<Results> {
        self.form(x[0].value, y[0].dtype, to)
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
        let elements = y[0].shape.elements();
        let channels = x[0].format.channels().map_or(1, |of| of.channels);
        let results = x[0].format.channels().map_or(elements, |of| elements / channels * of.pitch());
        let rule = match self.rule {
            Rule::Mean => "mean",
            Rule::Linear { .. } => "linear",
            Rule::Cubic { .. } => "cubic",
        };
        let mut defines =
            define![N: elements / (channels * p * q), SIDE: channels.div_ceil(LINE), H: h, W: w, P: p, Q: q];
        defines.extend(define![
            RULE: rule, TRANSPOSED: u32::from(self.transposed), ROWS: axis(self.axes[0]), COLUMNS: axis(self.axes[1]),
        ]);
        let terms = Terms { kernel: self.name(), defines, bindings: (1, 1), results, extent: self.most_terms() };
        terms.variants(x[0].format, "gather")
    }
}

pub(crate) fn not_images(shape: Shape) -> String {
    format!("needs images [N, C, H, W], not {shape}")
}
