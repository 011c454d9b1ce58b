//! Cross-entropy of logits with integer labels.

mod native_rule;

use std::panic::Location;

use self::native_rule::Rule;
use super::gather::Gather;
use super::softmax::{Rows, around};
use super::{Kernel, Primitive};
use crate::graph::Exact;
use crate::kernel::launch::{Argument, Binding, Caps, Launch, Variant, Workgroups, define, literal};
use crate::kernel::native::{OutView, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::tape::Var;
use crate::{DType, Error, ErrorKind, Result, Shape, TensorType};

/// Cross-entropy of each row: `ℓ = ln Σ eˣ − (1−s)·x[label] − s·mean(x)`, with label smoothing `s`; 0 for an ignored
/// label.
///
/// Shapes: `x [N,C,…]`, `labels u32 [N,…]` → `ℓ [N,…]`, and for the gradient the peak `m = max x [N,…]` and the mass
/// `Σ eˣ⁻ᵐ [N,…]`. They are kept apart because `ln Σ eˣ = m + ln(mass)` would be rounded at the magnitude of `m`.
/// Gradient: `dx = dℓ·(eˣ⁻ᵐ/mass − (1−s)·onehot − s/C)`; 0 in rows with an ignored label, even if they contain NaN.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CrossEntropy {
    smoothing: Exact,
    ignored: Option<u32>,
}

/// `dx` of [`CrossEntropy`]. Shapes: `x [N,C,…]`, `labels u32 [N,…]`, peak, mass and `dℓ [N,…]` → `dx [N,C,…]`.
/// Gradient: with `p = softmax(x)` and the cotangent `u`, `dℓ` gets `Σ u·(p − (1−s)·onehot − s/C)`, and `x` gets
/// `dℓ·p·(u − Σ u·p)`. The whole gradient goes to `x`: peak and mass are functions of `x` and get nothing. 0 in rows
/// with an ignored label.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CrossEntropyGrad {
    smoothing: Exact,
    ignored: Option<u32>,
}

/// The shape of the labels for these logits.
fn rows(x: Shape) -> Result<Shape, String> {
    match x.dims() {
        [n, _, rest @ ..] => Ok(Shape::new(&[&[*n], rest].concat())),
        _ => Err(format!("the logits must be [N, classes, …], they are {x}")),
    }
}

fn expect_labels(x: &TensorType, labels: &TensorType) -> Result<Shape, String> {
    let rows = rows(x.shape)?;
    if labels.dtype != DType::U32 || labels.shape != rows {
        return Err(format!("the labels must be u32{rows} for logits {}, they are {labels}", x.shape));
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

    fn vjp(&self, x: &[Var], y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let Some(dy) = &dy[0] else { return Ok(vec![None, None]) };
        let grad = CrossEntropyGrad { smoothing: self.smoothing, ignored: self.ignored };
        Ok(vec![Some(dy.record(grad, &[&x[0], &x[1], &y[1], &y[2], dy])), None])
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

    #[cfg(feature = "testing")]
    fn special() -> &'static [super::case::Special] {
        &[super::case::Special::Statistics]
    }

    #[cfg(feature = "testing")]
    fn cases() -> Vec<super::case::Case> {
        let ignoring = |x: &[usize], smoothing, ignored| {
            let labels = rows(Shape::new(x)).expect("cases fit");
            let case = super::case::Case::new(Self { smoothing: Exact(smoothing), ignored }).input(x);
            // The serial form adds up a mass of this many terms one by one: ε·√K.
            let tolerance = (f64::from(f32::EPSILON) * crate::kernel::native::real::<f64>(x[1]).sqrt()).max(1e-5);
            case.labels(labels.dims(), x[1]).tolerance(tolerance).scale(3.0)
        };
        let case = |x: &[usize], smoothing| ignoring(x, smoothing, None);
        vec![
            ignoring(&[7, 3], 0.0, Some(1)),
            ignoring(&[2, 2, 3, 5], 0.2, Some(0)),
            ignoring(&[9, 300], 0.1, Some(u32::MAX)),
            ignoring(&[5, 16_500], 0.1, Some(2)),
            case(&[1, 2], 0.0),
            case(&[5, 3], 0.0),
            case(&[4, 10], 0.1),
            case(&[2, 7, 3, 2], 0.3),
            case(&[3, 300], 0.0),
            case(&[133, 10], 0.1),
            case(&[2, 40, 3, 5], 0.2),
            // enough classes to be split
            case(&[3, 16_500], 0.1),
            case(&[1, 1100, 7], 0.3),
        ]
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

    fn variants(&self, x: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        Rows::forms(x[0].ty.shape, 1).iter().map(|(name, rows)| self.variant(name, rows, x[0].ty.shape)).collect()
    }
}

impl CrossEntropy {
    fn variant(&self, name: &'static str, form: &Rows, x: Shape) -> Variant {
        let (rows, classes, inner) = around(x, 1);
        let mut defines = form.segments.defines(classes, form.parts);
        defines.extend(define![ROWS: rows, CLASSES: classes, INNER: inner, SMOOTH: literal(self.smoothing.0)]);
        defines.push(("IGNORED", is_ignored(self.ignored)));
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

    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let ([x, labels, _, _, d_loss], Some(u)) = (x, &dy[0]) else { return Ok(vec![None; x.len()]) };
        let (rows, kept) = (d_loss.shape(), x.shape().with(1, 1));
        let (labels, d_loss) = (labels.reshape(kept), d_loss.reshape(kept));
        let (zero, smoothing) = (x.constant(0.0), self.smoothing.0);
        let ignored = self.ignored.map(|ignored| labels.to_float().eq(&x.constant(f64::from(ignored))));
        let unless_ignored = |value: Var| match &ignored {
            Some(ignored) => ignored.where_cond(&zero, &value),
            None => value,
        };
        // Ignored rows may contain anything.
        let p = unless_ignored(x.clone()).softmax(1);
        let mean = (u * &p).sum_keep(&[1]);
        let of_label = u.record(Gather { axis: 1, permutation: false }, &[u, &labels]).scale(1.0 - smoothing);
        let of_all = u.sum_keep(&[1]).scale(smoothing / x.shape()[1] as f64);
        let of_loss = unless_ignored(&mean - of_label - of_all);
        let of_x = unless_ignored(d_loss * (p * (u - mean)));
        Ok(vec![Some(of_x), None, None, None, Some(of_loss.reshape(rows))])
    }

    #[cfg(feature = "testing")]
    fn special() -> &'static [super::case::Special] {
        &[super::case::Special::WithoutOnnx]
    }

    #[cfg(feature = "testing")]
    fn cases() -> Vec<super::case::Case> {
        // Peak and mass are not independent operands, see above. The gradients of `cross_entropy`'s cases test this, on
        // every device.
        Vec::new()
    }
}

impl Kernel for CrossEntropyGrad {
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

    fn variants(&self, x: &[Argument], y: &[TensorType], _: &Caps) -> Vec<Variant> {
        let (rows, classes, inner) = around(x[0].ty.shape, 1);
        let mut defines = define![ROWS: rows, CLASSES: classes, INNER: inner];
        defines.extend(define![SMOOTH: literal(self.smoothing.0), IGNORED: is_ignored(self.ignored)]);
        let workgroups = Workgroups::of_elements(y[0].shape.elements());
        vec![Variant::simple(
            "element",
            Launch::new(self.name(), defines, (5, 1), workgroups).loads_through_prologue(4).stores_through_epilogue(),
        )]
    }
}

impl Var {
    /// The cross-entropy of each row of logits `[N, classes, …]` with labels `u32 [N, …]`; 0 where the label is
    /// `ignored`.
    #[track_caller]
    pub(crate) fn cross_entropy_rows(&self, labels: &Self, smoothing: f64, ignored: Option<u32>) -> Self {
        let classes = self.shape().dims().get(1).copied().unwrap_or(0);
        if let Some(label) = labels.largest_index(ignored).filter(|&label| label as usize >= classes) {
            let message = format!("label {label} is out of range, the logits have {classes} classes");
            let error = Error::new(ErrorKind::Argument, message).in_op("cross_entropy").operand(self.ty(), self.path());
            return self.fail(error.operand(labels.ty(), None).at(Location::caller()));
        }
        // Labels of an input that is bound later are checked then.
        labels.note_range(classes, ignored);
        let [loss, _, _] = self.record_many(CrossEntropy { smoothing: Exact(smoothing), ignored }, &[self, labels]);
        loss
    }
}

#[cfg(test)]
mod tests {
    use crate::{Device, Result, Tape, Tensor};

    #[test]
    fn masked_classes_cost_nothing() -> Result<()> {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let x = tape.input(&Tensor::from_slice(&device, [1, 3], &[0.0, 1.0, f32::NEG_INFINITY])?);
        let labels = tape.input(&Tensor::indices(&device, [1], &[0])?);
        let loss = x.cross_entropy_rows(&labels, 0.0, None);
        assert!((loss.to_vec()?[0] - 1.313_261_7).abs() < 1e-6);
        let grads = tape.backward(&loss.sum())?;
        assert!(grads.of(&x).expect("the loss depends on x").to_vec()?.iter().all(|dx| dx.is_finite()));
        Ok(())
    }

    #[test]
    fn equal_scores_share_the_gradient_at_any_magnitude() -> Result<()> {
        let device = Device::cpu();
        // The lowest class has a probability of at most e⁻¹⁰⁰.
        let close = |x: &[f32], y: [f32; 6]| x.iter().zip(y).all(|(x, y)| (x - y).abs() < 1e-40);
        for large in [1e2, 1e4, 1e6, 1e7, 1e30] {
            let tape = Tape::new(&device);
            // The same row twice: with its label far below the other scores, and among them.
            let x = tape.input(&Tensor::from_slice(&device, [2, 3], &[0.0, large, large, 0.0, large, large])?);
            let losses = x.cross_entropy_rows(&tape.input(&Tensor::indices(&device, [2], &[0, 1])?), 0.0, None);
            let grads = tape.backward(&losses.sum())?;
            let dx = grads.of(&x).expect("the loss depends on x").to_vec()?;
            let ln2 = std::f32::consts::LN_2;
            assert_eq!(losses.to_vec()?, [large + ln2, ln2], "{large}");
            assert!(close(&dx, [-1.0, 0.5, 0.5, 0.0, -0.5, 0.5]), "{large}: {dx:?}");
            // Rows along the other axis.
            let y = x.t().softmax(0).to_vec()?;
            assert!(close(&y, [0.0, 0.0, 0.5, 0.5, 0.5, 0.5]), "{large}: {y:?}");
        }
        Ok(())
    }
}
