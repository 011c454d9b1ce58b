//! The class weights of labels.

use super::cross_entropy::is_ignored;
use super::{Kernel, Primitive};
use crate::kernel::launch::{Argument, Caps, Launch, Variant, Workgroups, define};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::{DType, Result, TensorType};

/// The weight of each label's class, 0 for an ignored label; NaN for a label past the classes.
///
/// Shapes: `weights [C]`, `labels u32 [N,…]` → `[N,…]`. The weights are data and get no gradient.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LabelWeights {
    pub(crate) ignored: Option<u32>,
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
