//! The class weights of labels.

use super::cross_entropy::is_ignored;
use super::{Kernel, Primitive};
use crate::kernel::launch::{Argument, Caps, Launch, Variant, Workgroups, define};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::tape::{Tape, Var};
use crate::{DType, Result, TensorType};

/// The weight of each label's class, 0 for an ignored label; NaN for a label past the classes.
///
/// Shapes: `weights [C]`, `labels u32 [N,…]` → `[N,…]`. The weights are data and get no gradient.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LabelWeights {
    ignored: Option<u32>,
}

impl Primitive for LabelWeights {
    fn name(&self) -> &'static str {
        "label_weights"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        if x[0].shape.rank() != 1 || !x[0].dtype.is_float() || x[1].dtype != DType::U32 {
            return Err(format!("takes weights [classes] and labels u32, they are {} and {}", x[0], x[1]));
        }
        Ok(vec![x[0].with_shape(x[1].shape)])
    }

    fn vjp(&self, _x: &[Var], _y: &[Var], _dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        Ok(vec![None, None])
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], y: &[TensorType], to: &mut Form) -> Option<form::Results> {
        let (weights, labels) = (x[0].value, x[1].value);
        let mut gather = |index| to.node("Gather", &[weights, index], vec![("axis", form::Attribute::Int(0))]);
        let Some(ignored) = self.ignored else { return form::only(gather(labels)) };
        let [ignored, first] = [i64::from(ignored), 0].map(|number| to.int(number));
        let is_ignored = to.node("Equal", &[labels, ignored], Vec::new());
        let labels = to.node("Where", &[is_ignored, first, labels], Vec::new());
        let weights = to.node("Gather", &[weights, labels], vec![("axis", form::Attribute::Int(0))]);
        let zero = to.float(y[0].dtype, 0.0);
        form::only(to.node("Where", &[is_ignored, zero, weights], Vec::new()))
    }

    #[cfg(feature = "testing")]
    fn cases() -> Vec<super::case::Case> {
        use super::case::{Array, Case};
        use crate::Shape;
        // The weights are inputs of the tape, not operands of the case, so there is no gradient to check. Values that
        // are only read are not rounded.
        let case = |shape: &'static [usize], classes: u32, ignored| {
            let count: usize = shape.iter().product();
            let labels: Vec<_> = (0..count as u32).map(|i| i * 7 % classes).collect();
            let weight = |label: &u32| if Some(*label) == ignored { 0.0 } else { f64::from(label + 1) };
            let expected: Vec<_> = labels.iter().map(weight).collect();
            let case = Case::recorded("label_weights", &[&[1]], move |x| {
                let device = x[0].tape().device();
                let data: Vec<_> = (0..classes).map(|c| f64::from(c + 1)).collect();
                let weights = crate::Tensor::from_f64(&device, [data.len()], &data).expect("fits");
                let labels = crate::Tensor::indices(&device, Shape::new(shape), &labels).expect("fits");
                x[0].tape().label_weights(&x[0].tape().input(&weights), &x[0].tape().input(&labels), ignored)
            });
            let naive = move |_: &[Array]| vec![Array { shape: Shape::new(shape), data: expected.clone() }];
            case.naive(naive).tolerance(0.0)
        };
        vec![case(&[1], 1, None), case(&[67], 5, Some(3)), case(&[2, 3, 5], 4, None), case(&[9], 3, Some(900))]
    }
}

impl Kernel for LabelWeights {
    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let (weights, labels) = (x[0].floats(), x[1].contiguous_indices());
        let classes = x[0].layout().shape().elements();
        native::parallel(y[0].floats(), 4096, &|first, y| {
            for (y, &label) in y.iter_mut().zip(&labels[first..]) {
                *y = match label as usize {
                    _ if Some(label) == self.ignored => T::ZERO,
                    class if class < classes => weights[class],
                    _ => T::NAN,
                };
            }
        });
    }

    fn variants(&self, x: &[Argument], y: &[TensorType], _: &Caps) -> Vec<Variant> {
        let rows = y[0].shape.elements();
        let defines = define![ROWS: rows, CLASSES: x[0].ty.shape.elements(), IGNORED: is_ignored(self.ignored)];
        let launch = Launch::new(self.name(), defines, (2, 1), Workgroups::of_elements(rows));
        vec![Variant::simple("row", launch.stores_through_epilogue())]
    }
}

impl Tape {
    /// The weight of each label's class; see [`LabelWeights`].
    #[track_caller]
    pub(crate) fn label_weights(&self, weights: &Var, labels: &Var, ignored: Option<u32>) -> Var {
        weights.record(LabelWeights { ignored }, &[weights, labels])
    }
}
