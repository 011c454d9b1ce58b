//! Conversions between floats and integers for indexing.

use super::{Kernel, Primitive};
use crate::kernel::launch::{Argument, Caps, Launch, Variant, Workgroups, define};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
use crate::kernel::offset::offset;
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::{DType, Precision, Result, TensorType};

/// Converts integers to floats of a device's precision. Shapes: `x u32 […]` → `y […]`. Has no gradient.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ToFloat {
    pub(crate) precision: Precision,
}

/// Converts floats to integers, rounded down; values outside `u32` become its maximum. Shapes: `x […]` → `y u32 […]`.
/// Has no gradient.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ToIndex;

impl Primitive for ToFloat {
    fn name(&self) -> &'static str {
        "to_float"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        match x {
            [x] if x.dtype == DType::U32 => Ok(vec![TensorType::new(self.precision.dtype(), x.shape)]),
            _ => Err("takes one operand of integers".into()),
        }
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], y: &[TensorType], to: &mut Form) -> Option<form::Results> {
        form::only(to.cast(x[0].value, y[0].dtype))
    }
}

impl Kernel for ToFloat {
    fn reads_strided(&self, _: usize) -> bool {
        true
    }

    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let (layout, x) = (x[0].layout(), x[0].indices());
        native::parallel(y[0].floats(), native::grain(1), &|first, y| {
            y.iter_mut().zip(first..).for_each(|(y, at)| *y = T::from_f64(f64::from(x[layout.at(at)])));
        });
    }

    fn variants(&self, x: &[Argument], y: &[TensorType], _: &Caps) -> Vec<Variant> {
        vec![Variant::simple("element", launch(self.name(), &x[0], &y[0]).stores_through_epilogue())]
    }
}

impl Primitive for ToIndex {
    fn name(&self) -> &'static str {
        "to_index"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        match x {
            [x] if x.dtype.is_float() => Ok(vec![TensorType::new(DType::U32, x.shape)]),
            _ => Err("takes one operand of floats".into()),
        }
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], y: &[TensorType], to: &mut Form) -> Option<form::Results> {
        // Numbers below 0 and NaN become an index past every end.
        let [zero, past] = [0.0, f64::from(u32::MAX)].map(|number| to.float(x[0].ty.dtype, number));
        let is_index = to.node("GreaterOrEqual", &[x[0].value, zero], Vec::new());
        let index = to.node("Where", &[is_index, x[0].value, past], Vec::new());
        let floor = to.node("Floor", &[index], Vec::new());
        let whole = to.cast(floor, y[0].dtype);
        // For readers that derive from it that no index is negative.
        let zero = to.int(0);
        form::only(to.node("Max", &[whole, zero], Vec::new()))
    }
}

impl Kernel for ToIndex {
    fn reads_strided(&self, _: usize) -> bool {
        true
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "only what fits is cast")]
    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let (layout, x) = (x[0].layout(), x[0].floats());
        native::parallel(y[0].indices(), native::grain(1), &|first, y| {
            for (y, at) in y.iter_mut().zip(first..) {
                let value = x[layout.at(at)].to_f64();
                *y = if value >= 0.0 && value <= f64::from(u32::MAX) { value as u32 } else { u32::MAX };
            }
        });
    }

    fn variants(&self, x: &[Argument], y: &[TensorType], _: &Caps) -> Vec<Variant> {
        vec![Variant::simple("element", launch(self.name(), &x[0], &y[0]))]
    }
}

fn launch(kernel: &'static str, x: &Argument, y: &TensorType) -> Launch {
    let elements = y.shape.elements();
    let defines = define![N: elements, IN_OFFSET: offset(&x.layout, "i")];
    Launch::new(kernel, defines, (1, 1), Workgroups::of_elements(elements))
}
