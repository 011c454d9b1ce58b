//! Conversions between element types.

use super::{Kernel, Primitive};
use crate::kernel::launch::{Argument, Caps, Launch, Variant, Workgroups, define};
use crate::kernel::native::{self, OutView, Real, Scratch, Slice, View};
use crate::kernel::offset::offset;
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::{DType, Result, TensorType};

/// Converts elements to another type. An integer becomes the nearest float, and keeps its lower bits in a narrower type
/// of integers. A float is rounded towards 0; one that is no integer of the type becomes the nearest one, NaN becomes
/// 0.
///
/// Shapes: `x […]` → `y […]`. Has no gradient.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Cast {
    pub(crate) to: DType,
}

/// Converts numbers to indices, rounded down; values outside `u32` become its maximum. Shapes: `x […]` → `y u32 […]`.
/// Has no gradient.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ToIndex;

impl Primitive for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        match x {
            [x] if x.dtype.is_float() && self.to.is_float() => {
                Err(format!("the device's floats are {}, not {}; make a device of another precision", x.dtype, self.to))
            }
            [x] => Ok(vec![TensorType::new(self.to, x.shape)]),
            _ => Err(format!("takes one operand, not {}", x.len())),
        }
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], y: &[TensorType], to: &mut Form) -> Option<form::Results> {
        // Indices are 64-bit integers there, which keep more bits.
        const UINT32: i64 = 12;
        let is_wider = y[0].dtype == DType::U32;
        let words = || vec![("to", form::Attribute::Int(UINT32))];
        let value = if is_wider { to.node("Cast", &[x[0].value], words()) } else { x[0].value };
        form::only(to.cast(value, y[0].dtype))
    }
}

impl Kernel for Cast {
    fn reads_strided(&self, _: usize) -> bool {
        true
    }

    fn stores(&self) -> bool {
        true
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_possible_wrap,
        reason = "the conversions of `as` are those of this operation"
    )]
    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let layout = x[0].layout();
        macro_rules! convert {
            ($x:ident, $y:ident, |$value:ident| $e:expr) => {
                native::map($x, layout, $y, |$value| $e)
            };
        }
        match (x[0].slice(), &mut y[0]) {
            (Slice::Index(x), OutView::Float(y)) => convert!(x, y, |value| T::from_i64(i64::from(value))),
            (Slice::Int(x), OutView::Float(y)) => convert!(x, y, |value| T::from_i64(i64::from(value))),
            (Slice::Long(x), OutView::Float(y)) => convert!(x, y, |value| T::from_i64(value)),
            (Slice::Float(x), OutView::Index(y)) => convert!(x, y, |value| value.to_f64() as u32),
            (Slice::Float(x), OutView::Int(y)) => convert!(x, y, |value| value.to_f64() as i32),
            (Slice::Float(x), OutView::Long(y)) => convert!(x, y, |value| value.to_f64() as i64),
            (Slice::Index(x), OutView::Int(y)) => convert!(x, y, |value| value as i32),
            (Slice::Index(x), OutView::Long(y)) => convert!(x, y, |value| i64::from(value)),
            (Slice::Int(x), OutView::Index(y)) => convert!(x, y, |value| value as u32),
            (Slice::Int(x), OutView::Long(y)) => convert!(x, y, |value| i64::from(value)),
            (Slice::Long(x), OutView::Index(y)) => convert!(x, y, |value| value as u32),
            (Slice::Long(x), OutView::Int(y)) => convert!(x, y, |value| value as i32),
            _ => unreachable!("a conversion changes the type"),
        }
    }

    fn variants(&self, x: &[Argument], y: &[TensorType], _: &Caps) -> Vec<Variant> {
        let mut launch = launch("cast", &x[0], &y[0]);
        launch.defines.extend(define![RESULT: self.to]);
        vec![Variant::simple("element", launch.stores_through_epilogue())]
    }
}

impl Primitive for ToIndex {
    fn name(&self) -> &'static str {
        "to_index"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        match x {
            [x] if x.dtype != DType::U32 => Ok(vec![TensorType::new(DType::U32, x.shape)]),
            _ => Err("takes one operand of floats, i32 or i64".into()),
        }
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], y: &[TensorType], to: &mut Form) -> Option<form::Results> {
        // Numbers below 0 and NaN become an index past every end.
        let integers = !x[0].ty.dtype.is_float();
        let value = if integers { to.cast(x[0].value, DType::I64) } else { x[0].value };
        let dtype = if integers { DType::I64 } else { x[0].ty.dtype };
        let [zero, past] = [0.0, f64::from(u32::MAX)].map(|number| to.number_as(dtype, number));
        let is_index = to.node("GreaterOrEqual", &[value, zero], Vec::new());
        let index = to.node("Where", &[is_index, value, past], Vec::new());
        let whole = if integers { index } else { to.node("Floor", &[index], Vec::new()) };
        let whole = to.cast(whole, y[0].dtype);
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
        let (layout, x) = (x[0].layout(), x[0].slice());
        let index = |at: usize| match x {
            Slice::Float(x) => {
                let value = x[at].to_f64();
                if value >= 0.0 && value <= f64::from(u32::MAX) { value as u32 } else { u32::MAX }
            }
            Slice::Int(x) => u32::try_from(x[at]).unwrap_or(u32::MAX),
            Slice::Long(x) => u32::try_from(x[at]).unwrap_or(u32::MAX),
            Slice::Index(_) => unreachable!("the type rule refused indices"),
        };
        native::parallel(y[0].indices(), native::grain(1), &|first, y| {
            y.iter_mut().zip(first..).for_each(|(y, at)| *y = index(layout.at(at)));
        });
    }

    fn variants(&self, x: &[Argument], y: &[TensorType], _: &Caps) -> Vec<Variant> {
        vec![Variant::simple("element", launch(self.name(), &x[0], &y[0]))]
    }
}

fn launch(kernel: &'static str, x: &Argument, y: &TensorType) -> Launch {
    let elements = y.shape.elements();
    let defines = define![N: elements, FROM: x.ty.dtype, IN_OFFSET: offset(&x.layout, "i")];
    Launch::new(kernel, defines, (1, 1), Workgroups::of_elements(elements))
}
