//! Cross-entropy of logits with integer labels.

mod native_rule;

use self::native_rule::Rule;
use super::softmax::{Rows, around, tail};
use super::{Bf16, Innermost, Kernel, Primitive, Stores};
use crate::kernel::launch::{Argument, Binding, Caps, Define, LINE, Launch, Variant, Workgroups, define, literal};
use crate::kernel::native::{OutView, Real, Scratch, View};
use crate::ops::Exact;
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::{DType, Result, Shape, TensorType};

/// Cross-entropy of each row: `ℓ = ln Σ eˣ − (1−s)·x[label] − s·mean(x)`, with label smoothing `s`; 0 for an ignored
/// label.
///
/// Shapes: `x [N,C,…]`, `labels u32 [N,…]` → `ℓ [N,…]`, and for the gradient the peak `m = max x [N,…]` and the mass
/// `Σ eˣ⁻ᵐ [N,…]`. They are kept apart because `ln Σ eˣ = m + ln(mass)` would be rounded at the magnitude of `m`.
/// Gradient: `dx = dℓ·(eˣ⁻ᵐ/mass − (1−s)·onehot − s/C)`; 0 in rows with an ignored label, even if they contain NaN.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CrossEntropy {
    pub(crate) smoothing: Exact,
    pub(crate) ignored: Option<u32>,
}

/// `dx` of [`CrossEntropy`]. Shapes: `x [N,C,…]`, `labels u32 [N,…]`, peak, mass and `dℓ [N,…]` → `dx [N,C,…]`.
/// Gradient: with `p = softmax(x)` and the cotangent `u`, `dℓ` gets `Σ u·(p − (1−s)·onehot − s/C)`, and `x` gets
/// `dℓ·p·(u − Σ u·p)`. The whole gradient goes to `x`: peak and mass are functions of `x` and get nothing. 0 in rows
/// with an ignored label.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CrossEntropyGrad {
    pub(crate) smoothing: Exact,
    pub(crate) ignored: Option<u32>,
}

/// The shape of the labels for these logits.
pub(crate) fn rows(x: Shape) -> Result<Shape, String> {
    match x.dims() {
        [n, _, rest @ ..] => Ok(Shape::new(&[&[*n], rest].concat())),
        _ => Err(format!("the logits must be [N, classes, …], they are {x}")),
    }
}

fn expect_labels(x: &TensorType, labels: &TensorType) -> Result<Shape, String> {
    let rows = rows(x.shape)?;
    if labels.dtype != DType::U32 || labels.shape != rows {
        return Err(format!("the labels must be integers {rows} for logits {}, they are {labels}", x.shape));
    }
    if !x.dtype.is_float() {
        return Err(format!("the logits must be floats, they are {}", x.dtype));
    }
    Ok(rows)
}

/// The WGSL condition that `label` is ignored.
pub(super) fn is_ignored(ignored: Option<u32>) -> String {
    ignored.map_or_else(|| "false".to_owned(), |ignored| format!("label == {ignored}u"))
}

impl Primitive for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let rows = expect_labels(&x[0], &x[1])?;
        if !(0.0..=1.0).contains(&self.smoothing.0) {
            return Err(format!("label smoothing must be between 0 and 1, it is {}", self.smoothing.0));
        }
        Ok(vec![x[0].with_shape(rows); 3])
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], y: &[TensorType], to: &mut Form) -> Option<form::Results> {
        let (labels, dtype) = (x[1].value, y[0].dtype);
        let is_ignored = self.ignored.map(|ignored| {
            let ignored = to.int(i64::from(ignored));
            to.node("Equal", &[labels, ignored], Vec::new())
        });
        let (first, axis) = (to.int(0), to.ints(vec![1]));
        let labels = match is_ignored {
            Some(is_ignored) => to.node("Where", &[is_ignored, first, labels], Vec::new()),
            None => labels,
        };
        let along = || vec![("axis", form::Attribute::Int(1))];
        let logarithms = to.node("LogSoftmax", &[x[0].value], along());
        let labels = to.node("Unsqueeze", &[labels, axis], Vec::new());
        let of_label = to.node("GatherElements", &[logarithms, labels], along());
        let of_label = to.node("Squeeze", &[of_label, axis], Vec::new());
        let mean = to.node("ReduceMean", &[logarithms, axis], vec![("keepdims", form::Attribute::Int(0))]);
        let [sharp, smooth] = [self.smoothing.0 - 1.0, -self.smoothing.0].map(|share| to.float(dtype, share));
        let terms = [to.node("Mul", &[of_label, sharp], Vec::new()), to.node("Mul", &[mean, smooth], Vec::new())];
        let mut loss = to.node("Add", &terms, Vec::new());
        if let Some(is_ignored) = is_ignored {
            let zero = to.float(dtype, 0.0);
            loss = to.node("Where", &[is_ignored, zero, loss], Vec::new());
        }
        Some(vec![Some(loss), None, None])
    }
}

impl Kernel for CrossEntropy {
    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let (_, classes, inner) = around(x[0].layout().shape(), 1);
        let (x, labels) = (x[0].floats(), x[1].contiguous_indices());
        let [loss, peak, mass] = y else { unreachable!("three results") };
        let rule = Rule { smoothing: T::from_f64(self.smoothing.0), ignored: self.ignored, classes, inner };
        rule.losses(x, labels, loss.floats(), [peak.floats(), mass.floats()]);
    }

    /// Logits in bf16 are what a product in fast precision stores. The loss and what the gradient needs stay in `f32`.
    fn bf16(&self, x: &[TensorType], _: &[TensorType], caps: &Caps) -> Option<Bf16> {
        let fits = caps.bf16 && Rows::are_lines(x[0].shape, 1);
        // The form for lines is the only one.
        let fits = fits && Rows::of_lines(x[0].shape, 1).workgroups(3).loops <= caps.loops;
        fits.then_some(Bf16::new(Innermost::Last, &[0], Stores::Full))
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        let shape = x[0].ty.shape;
        if x[0].format.is_bf16() {
            return vec![self.variant("lines", &Rows::of_lines(shape, 1), shape, true)];
        }
        Rows::forms(shape, 1).iter().map(|(name, rows)| self.variant(name, rows, shape, false)).collect()
    }
}

/// Defines for the logits `[rows, classes, …]` in elements or in lines, and for the loss. A row has `len` of either.
fn of_logits(x: Shape, len: usize, lines: bool, smoothing: Exact, ignored: Option<u32>) -> Vec<Define> {
    let (rows, classes, inner) = around(x, 1);
    let mut defines = define![ROWS: rows, CLASSES: classes, INNER: inner, LEN: len, SMOOTH: literal(smoothing.0)];
    defines.push(("IGNORED", is_ignored(ignored)));
    defines.extend(define![FORMAT: if lines { "lines" } else { "full" }]);
    defines
}

impl CrossEntropy {
    fn variant(&self, name: &'static str, form: &Rows, x: Shape, lines: bool) -> Variant {
        let mut defines = form.segments.defines(form.len, form.parts);
        defines.extend(of_logits(x, form.len, lines, self.smoothing, self.ignored));
        if lines {
            defines.extend(define![TAIL: tail(x[1])]);
        }
        let launch = Launch::new(self.name(), defines, (2, 3), form.workgroups(3));
        let mut launch = launch.stores_through_epilogue();
        if form.parts == 1 {
            return Variant::simple(name, launch);
        }
        let (parts, scratch) = form.parts_launch(3);
        launch.bindings.splice(2..2, (0..3).map(Binding::Scratch));
        Variant { name, launches: vec![parts, launch], scratch }
    }
}

impl Primitive for CrossEntropyGrad {
    fn name(&self) -> &'static str {
        "cross_entropy_grad"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let rows = expect_labels(&x[0], &x[1])?;
        if x[2..].iter().any(|x| x.shape != rows) {
            return Err(format!(
                "peaks, masses and cotangents must be {rows}, they are {}, {} and {}",
                x[2], x[3], x[4]
            ));
        }
        Ok(vec![x[0]])
    }
}

impl Kernel for CrossEntropyGrad {
    fn overwrites(&self) -> Option<usize> {
        Some(0)
    }

    fn loads(&self) -> Option<usize> {
        // Often a constant, 1/N; read once per class, along with an exponential.
        Some(4)
    }

    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let (_, classes, inner) = around(x[0].layout().shape(), 1);
        let labels = x[1].contiguous_indices();
        let rule = Rule { smoothing: T::from_f64(self.smoothing.0), ignored: self.ignored, classes, inner };
        rule.gradient(x[0].floats(), labels, [x[2].floats(), x[3].floats(), x[4].floats()], y[0].floats());
    }

    fn bf16(&self, x: &[TensorType], _: &[TensorType], caps: &Caps) -> Option<Bf16> {
        let fits = caps.bf16 && Rows::are_lines(x[0].shape, 1);
        fits.then_some(Bf16::new(Innermost::Last, &[0], Stores::Lines))
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        let (shape, lines) = (x[0].ty.shape, x[0].format.is_bf16());
        let (rows, classes, inner) = around(shape, 1);
        let len = if lines { classes.div_ceil(LINE) } else { classes };
        let mut defines = of_logits(shape, len, lines, self.smoothing, self.ignored);
        // Many elements of a row share what they need of it.
        let (block, wg) = (len.saturating_mul(inner), 64);
        let each = if lines || block < 16 * wg { 1 } else { 4 };
        let take = if each == 1 { block } else { block.div_ceil(each * wg) * wg };
        defines.extend(define![EACH: each, TAKE: take]);
        let workgroups = Workgroups::of(rows.saturating_mul(take), wg);
        let mut launch = Launch::new(self.name(), defines, (5, 1), workgroups);
        // The logits come last, because the gradient may take their place.
        launch.bindings[..4].rotate_left(1);
        let launch = launch.loads_through_prologue(4).stores_through_epilogue();
        vec![if lines { Variant::simple("lines", launch.by_lines()) } else { Variant::simple("element", launch) }]
    }
}
