//! Gathering elements along an axis by index, and scattering them back.

use super::segments::Segments;
use super::softmax::around;
use super::{Kernel, Primitive};
use crate::kernel::launch::{Argument, Caps, Launch, Variant, Workgroups, define};
use crate::kernel::native::{self, Element, OutView, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::{DType, Result, TensorType};

/// Gathers elements along an axis: `y[o…, k, i…] = x[o…, index[o…, k, i…], i…]`
///
/// Shapes: `x [O…, R, I…]`, `index u32 [O…, K, I…]` → `y [O…, K, I…]`. An index past the end gives NaN, or the integer
/// farthest from the others.
/// Gradient: [`ScatterAlong`]; for a permutation, a gather by its inverse.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Gather {
    pub(crate) axis: usize,
    /// `true` if the indices of each line are those of a sort, a permutation.
    pub(crate) permutation: bool,
}

/// Scatters elements along an axis: `y[o…, r, i…]` is the sum, or the maximum, of all `x[o…, k, i…]` with
/// `index[o…, k, i…] = r`, in a fixed order; 0 if there are none. An index past the end is ignored.
///
/// Shapes: `index u32 [O…, K, I…]`, `x [O…, K, I…]` → `y [O…, R, I…]`. Gradient of a sum: `dy` gathered by the indices.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ScatterAlong {
    pub(crate) axis: usize,
    pub(crate) rows: usize,
    pub(crate) fold: Fold,
}

/// The reduction of elements with one index.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Fold {
    Sum,
    /// The maximum of numbers that are at least 0. Has no gradient.
    Max,
}

impl Primitive for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let ([x, index], axis) = (x, self.axis) else { return Err(format!("takes two operands, not {}", x.len())) };
        if index.dtype != DType::U32 {
            return Err(format!("needs integers as indices, from `Tensor::indices` or `to_index`, not {index}"));
        }
        if axis >= x.shape.rank() {
            return Err(format!("axis {axis} is out of range: the shape has {} axes", x.shape.rank()));
        }
        if index.shape.rank() != x.shape.rank() || index.shape.with(axis, 1) != x.shape.with(axis, 1) {
            return Err(format!("{} and the indices' {} differ outside axis {axis}", x.shape, index.shape));
        }
        Ok(vec![x.with_shape(index.shape)])
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], _: &[TensorType], to: &mut Form) -> Option<form::Results> {
        let axis = vec![("axis", form::Attribute::Int(form::int(self.axis)))];
        form::only(to.node("GatherElements", &[x[0].value, x[1].value], axis))
    }
}

impl Kernel for Gather {
    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let (_, rows, inner) = around(x[0].layout().shape(), self.axis);
        let (_, count, _) = around(x[1].layout().shape(), self.axis);
        let index = x[1].indices();
        native::of_one_type!(x[0], y[0], |x, y| native::parallel(y, native::grain(1), &|first, y| {
            let (mut first, mut y) = (first, y);
            while !y.is_empty() {
                let (block, inside) = (first / (count * inner), first % (count * inner));
                let (part, rest) = y.split_at_mut(y.len().min(count * inner - inside));
                let (x, mut column) = (&x[block * rows * inner..][..rows * inner], inside % inner);
                for (y, &row) in part.iter_mut().zip(&index[first..]) {
                    *y = x.get(row as usize * inner + column).copied().unwrap_or(Element::NOTHING);
                    column = if column + 1 == inner { 0 } else { column + 1 };
                }
                (first, y) = (first + part.len(), rest);
            }
        }));
    }

    fn variants(&self, x: &[Argument], y: &[TensorType], _: &Caps) -> Vec<Variant> {
        let (_, rows, inner) = around(x[0].ty.shape, self.axis);
        let (elements, count) = (y[0].shape.elements(), y[0].shape[self.axis]);
        let defines = define![N: elements, ROWS: rows, COUNT: count, INNER: inner, ELEMENT: x[0].ty.dtype];
        let launch = Launch::new("gather", defines, (2, 1), Workgroups::of_elements(elements));
        vec![Variant::simple("element", launch.stores_through_epilogue())]
    }
}

impl Primitive for ScatterAlong {
    fn name(&self) -> &'static str {
        "scatter_along"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let ([index, x], axis) = (x, self.axis) else { return Err(format!("takes two operands, not {}", x.len())) };
        if index.dtype != DType::U32 || !x.dtype.is_float() {
            return Err(format!("needs integers as indices, and floats, not {index} and {x}"));
        }
        if index.shape != x.shape {
            return Err(format!("needs an index for each of {}, not {}", x.shape, index.shape));
        }
        if axis >= x.shape.rank() {
            return Err(format!("axis {axis} is out of range: the shape has {} axes", x.shape.rank()));
        }
        if self.rows == 0 {
            return Err("the result must have at least one row".into());
        }
        Ok(vec![x.with_shape(x.shape.with(axis, self.rows))])
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], y: &[TensorType], to: &mut Form) -> Option<form::Results> {
        // Indices past the end go to one extra row, which is then sliced off.
        let zero = to.float(y[0].dtype, 0.0);
        let shape = to.ints(form::ints(y[0].shape.with(self.axis, self.rows + 1).dims()));
        let zeros = to.node("Expand", &[zero, shape], Vec::new());
        let past = to.int(form::int(self.rows));
        let index = to.node("Min", &[x[0].value, past], Vec::new());
        let fold = match self.fold {
            Fold::Sum => "add",
            Fold::Max => "max",
        };
        let attributes =
            vec![("axis", form::Attribute::Int(form::int(self.axis))), ("reduction", form::Attribute::Text(fold))];
        let rows = to.node("ScatterElements", &[zeros, index, x[1].value], attributes);
        let [start, end, axis] = [0, self.rows, self.axis].map(|number| to.ints(vec![form::int(number)]));
        form::only(to.node("Slice", &[rows, start, end, axis], Vec::new()))
    }
}

impl Kernel for ScatterAlong {
    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let (_, count, inner) = around(x[0].layout().shape(), self.axis);
        let (rows, fold) = (self.rows, self.fold);
        let (index, x) = (x[0].indices(), x[1].floats());
        native::parallel(y[0].floats(), rows * inner, &|first, y| {
            y.fill(T::ZERO);
            let begin = first / (rows * inner) * count * inner;
            let terms = index[begin..][..count * inner].iter().zip(&x[begin..][..count * inner]);
            let mut column = 0;
            for (&row, &x) in terms {
                // A row past the end is none of the result's.
                match (y.get_mut(row as usize * inner + column), fold) {
                    (Some(y), Fold::Sum) => *y += x,
                    (Some(y), Fold::Max) if x > *y || x.is_nan() => *y = x,
                    _ => {}
                }
                column = if column + 1 == inner { 0 } else { column + 1 };
            }
        });
    }

    fn variants(&self, x: &[Argument], y: &[TensorType], _: &Caps) -> Vec<Variant> {
        let (_, count, inner) = around(x[0].ty.shape, self.axis);
        let elements = y[0].shape.elements();
        let fold = if self.fold == Fold::Sum { "sum" } else { "max" };
        let of = |name, segments: Segments| {
            let mut defines = segments.shape();
            defines.extend(define![FOLD: fold, N: elements, ROWS: self.rows, COUNT: count, INNER: inner]);
            let workgroups = segments.workgroups(elements, 1, segments.loops(count, 1, 1), 1);
            Variant::simple(name, Launch::new(self.name(), defines, (2, 1), workgroups).stores_through_epilogue())
        };
        let (serial, shared) = (of("serial", Segments::SERIAL), of("shared", Segments::whole(256)));
        if count > 256 && elements < 1 << 16 { vec![shared, serial] } else { vec![serial, shared] }
    }
}
