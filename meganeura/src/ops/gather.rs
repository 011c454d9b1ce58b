//! Gathering elements along an axis by index, and scattering them back.

use super::segments::Segments;
use super::softmax::around;
use super::{Kernel, Primitive};
use crate::kernel::launch::{Argument, Caps, Launch, Variant, Workgroups, define};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::tape::Var;
use crate::{DType, Error, ErrorKind, Result, TensorType};

/// Gathers elements along an axis: `y[o…, k, i…] = x[o…, index[o…, k, i…], i…]`
///
/// Shapes: `x [O…, R, I…]`, `index u32 [O…, K, I…]` → `y [O…, K, I…]`. An index past the end gives NaN.
/// Gradient: [`ScatterAlong`]; for a permutation, a gather by its inverse.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Gather {
    pub(super) axis: usize,
    /// `true` if the indices of each line are those of a sort, a permutation.
    pub(super) permutation: bool,
}

/// Scatters elements along an axis: `y[o…, r, i…]` is the sum, or the maximum, of all `x[o…, k, i…]` with
/// `index[o…, k, i…] = r`, in a fixed order; 0 if there are none. An index past the end is ignored.
///
/// Shapes: `index u32 [O…, K, I…]`, `x [O…, K, I…]` → `y [O…, R, I…]`. Gradient of a sum: `dy` gathered by the indices.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ScatterAlong {
    pub(super) axis: usize,
    pub(super) rows: usize,
    pub(super) fold: Fold,
}

/// The reduction of elements with one index.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Fold {
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
        if index.dtype != DType::U32 || !x.dtype.is_float() {
            return Err(format!("needs floats and u32 indices, from `Tensor::indices`, not {x} and {index}"));
        }
        if axis >= x.shape.rank() {
            return Err(format!("axis {axis} is out of range: the shape has {} axes", x.shape.rank()));
        }
        if index.shape.rank() != x.shape.rank() || index.shape.with(axis, 1) != x.shape.with(axis, 1) {
            return Err(format!("{} and the indices' {} differ outside axis {axis}", x.shape, index.shape));
        }
        Ok(vec![x.with_shape(index.shape)])
    }

    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let Some(dy) = &dy[0] else { return Ok(vec![None, None]) };
        let (index, axis) = (&x[1], self.axis);
        // The most elements that floats can number exactly.
        let dx = if self.permutation && x[0].shape()[axis] <= 1 << 24 {
            // Sorting a permutation finds the position of each `r`, which is the inverse.
            let inverse = index.to_float().argsort(axis, false);
            dy.record(self.clone(), &[dy, &inverse])
        } else {
            let back = ScatterAlong { axis, rows: x[0].shape()[axis], fold: Fold::Sum };
            dy.record(back, &[index, dy])
        };
        Ok(vec![Some(dx), None])
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], _: &[TensorType], to: &mut Form) -> Option<form::Results> {
        let axis = vec![("axis", form::Attribute::Int(form::int(self.axis)))];
        form::only(to.node("GatherElements", &[x[0].value, x[1].value], axis))
    }

    #[cfg(feature = "testing")]
    fn cases() -> Vec<super::case::Case> {
        use super::case::Case;
        let case = |x: &[usize], axis, count| {
            let index = crate::Shape::new(x).with(axis, count);
            Case::new(Self { axis, permutation: false }).input(x).labels(index.dims(), x[axis]).tolerance(1e-5)
        };
        let own = vec![
            case(&[1], 0, 1),
            case(&[5], 0, 70),
            case(&[3, 4], 1, 6),
            case(&[2, 7, 3], 1, 5),
            case(&[6, 67], 0, 300),
        ];
        [own, super::grid_sample::cases()].concat()
    }
}

impl Kernel for Gather {
    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let (_, rows, inner) = around(x[0].layout().shape(), self.axis);
        let (_, count, _) = around(x[1].layout().shape(), self.axis);
        let (x, index) = (x[0].floats(), x[1].indices());
        native::parallel(y[0].floats(), native::grain(1), &|first, y| {
            for (y, at) in y.iter_mut().zip(first..) {
                let row = index[at] as usize;
                let place = (at / (count * inner) * rows + row) * inner + at % inner;
                *y = if row < rows { x[place] } else { T::NAN };
            }
        });
    }

    fn variants(&self, x: &[Argument], y: &[TensorType], _: &Caps) -> Vec<Variant> {
        let (_, rows, inner) = around(x[0].ty.shape, self.axis);
        let (elements, count) = (y[0].shape.elements(), y[0].shape[self.axis]);
        let defines = define![N: elements, ROWS: rows, COUNT: count, INNER: inner];
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
            return Err(format!("needs u32 indices, from `Tensor::indices`, and floats, not {index} and {x}"));
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

    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let (Some(dy), Fold::Sum) = (&dy[0], self.fold) else { return Ok(vec![None, None]) };
        // Indices past the end do not affect the result.
        Ok(vec![None, Some(dy.gather_or_zero(self.axis, &x[0]))])
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

    #[cfg(feature = "testing")]
    fn cases() -> Vec<super::case::Case> {
        use super::case::Case;
        let of = |x: &[usize], axis, rows, classes| {
            Case::new(Self { axis, rows, fold: Fold::Sum }).labels(x, classes).input(x).tolerance(1e-5)
        };
        vec![
            of(&[1], 0, 1, 1),
            of(&[300], 0, 5, 5),
            of(&[3, 4], 1, 6, 6),
            // Some indices are past the end, and some elements are never named.
            of(&[2, 7, 3], 1, 5, 9),
            of(&[1030, 3], 0, 2, 2),
            Case::recorded("scatter_along", &[&[3, 300]], |x| {
                let index = (&x[0] * 3.0 + 20.0).to_index().clone();
                let places = x[0].tape().iota([3, 300], 1);
                let last = Self { axis: 1, rows: 40, fold: Fold::Max };
                x[0].record(last, &[&index, &places]) + x[0].sum() * 0.0
            }),
        ]
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
            let terms = index[begin..][..count * inner].iter().zip(&x[begin..][..count * inner]).enumerate();
            for (at, (&row, &x)) in terms.filter(|(_, (row, _))| (**row as usize) < rows) {
                let y = &mut y[row as usize * inner + at % inner];
                match fold {
                    Fold::Sum => *y += x,
                    Fold::Max if x > *y || x.is_nan() => *y = x,
                    Fold::Max => {}
                }
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
            let workgroups = segments.workgroups(elements, 1, segments.loops(count, 1, 1));
            Variant::simple(name, Launch::new(self.name(), defines, (2, 1), workgroups).stores_through_epilogue())
        };
        let (serial, shared) = (of("serial", Segments::SERIAL), of("shared", Segments::whole(256)));
        if count > 256 && elements < 1 << 16 { vec![shared, serial] } else { vec![serial, shared] }
    }
}

impl Var {
    /// Gathers elements along an axis by index: `y[o…, k, i…] = x[o…, index[o…, k, i…], i…]`, like PyTorch's `gather`
    ///
    /// Shapes: `x [O…, R, I…]`, `index u32 [O…, K, I…]` → `y [O…, K, I…]`. For rows of a table, see
    /// [`embedding`](Self::embedding); for the same indices in every line, [`index_select`](Self::index_select).
    ///
    /// Shapes that differ outside the axis are an error. So is an index past the end, if the host knows the indices;
    /// otherwise that element of the result is NaN.
    #[must_use]
    #[track_caller]
    pub fn gather(&self, axis: usize, index: &Self) -> Self {
        if let Some(poisoned) = self.misplaced(axis, index, "gather") {
            return poisoned;
        }
        self.record(Gather { axis, permutation: false }, &[self, index])
    }

    /// Adds elements to this value at given positions: `y[o…, index[o…, k, i…], i…] += source[o…, k, i…]`, in a fixed
    /// order
    ///
    /// Shapes: `x [O…, R, I…]`, `index u32 [O…, K, I…]`, `source [O…, K, I…]` → `y [O…, R, I…]`.
    ///
    /// Fails like [`gather`](Self::gather); an index past the end that the host does not know is ignored.
    #[must_use]
    #[track_caller]
    pub fn scatter_add(&self, axis: usize, index: &Self, source: &Self) -> Self {
        if let Some(poisoned) = self.misplaced(axis, index, "scatter_add") {
            return poisoned;
        }
        self + self.scattered(axis, index, source, Fold::Sum)
    }

    /// Replaces elements of this value: `y[o…, index[o…, k, i…], i…] = source[o…, k, i…]`. If several have the same
    /// index, the last one wins.
    ///
    /// Shapes and errors are those of [`scatter_add`](Self::scatter_add). In single precision, `K` is at most 2²⁴.
    #[must_use]
    #[track_caller]
    pub fn scatter(&self, axis: usize, index: &Self, source: &Self) -> Self {
        if let Some(poisoned) = self.misplaced(axis, index, "scatter") {
            return poisoned;
        }
        if source.shape() != index.shape() {
            return self.record(ScatterAlong { axis, rows: 1, fold: Fold::Sum }, &[index, source]);
        }
        // For each position, one more than the number of its last source, 0 if there is none.
        let numbers = self.tape().iota(source.shape(), axis) + self.constant(1.0);
        let last = self.scattered(axis, index, &numbers, Fold::Max);
        let is_kept = last.eq(&self.constant(0.0));
        let from = (&last - self.constant(1.0)).maximum(&self.constant(0.0)).to_index();
        let replaced = source.record(Gather { axis, permutation: false }, &[source, &from]);
        is_kept.where_cond(self, &replaced)
    }

    /// Like [`gather`](Self::gather), with 0 instead of NaN for an index past the end: the transpose of a
    /// scattered sum.
    #[track_caller]
    pub(super) fn gather_or_zero(&self, axis: usize, index: &Self) -> Self {
        let past = index.to_float().ge(&self.constant(self.shape()[axis] as f64));
        let gathered = self.record(Gather { axis, permutation: false }, &[self, index]);
        past.where_cond(&self.constant(0.0), &gathered)
    }

    /// The maximum of each element and the sources with its index. Shapes and errors are those of
    /// [`scatter`](Self::scatter).
    #[cfg(feature = "onnx")]
    #[must_use]
    #[track_caller]
    pub(crate) fn scatter_max(&self, axis: usize, index: &Self, source: &Self) -> Self {
        if let Some(poisoned) = self.misplaced(axis, index, "scatter_max") {
            return poisoned;
        }
        // Computed on positions in sorted order: the largest source has the largest position, and positions are at
        // least 0.
        let (sorted, order) = source.sort(axis, false);
        let places = order.to_float().argsort(axis, false).to_float() + self.constant(1.0);
        let last = self.scattered(axis, index, &places, Fold::Max);
        let is_kept = last.eq(&self.constant(0.0));
        let from = (&last - self.constant(1.0)).maximum(&self.constant(0.0)).to_index();
        let largest = source.record(Gather { axis, permutation: false }, &[&sorted, &from]);
        is_kept.where_cond(self, &self.maximum(&largest))
    }

    #[track_caller]
    fn scattered(&self, axis: usize, index: &Self, source: &Self, fold: Fold) -> Self {
        let rows = self.shape().dims().get(axis).copied().unwrap_or(0);
        self.record(ScatterAlong { axis, rows, fold }, &[index, source])
    }

    /// This value, poisoned, if the indices do not fit it, or if the host knows one that is past the end of the axis.
    #[track_caller]
    fn misplaced(&self, axis: usize, index: &Self, op: &'static str) -> Option<Self> {
        let rows = self.shape().dims().get(axis).copied().unwrap_or(0);
        if let Some(largest) = index.largest_index(None).filter(|&largest| rows > 0 && largest as usize >= rows) {
            let message = format!("index {largest} is past the end, axis {axis} has {rows} elements");
            let error = Error::new(ErrorKind::Argument, message).in_op(op).operand(self.ty(), self.path());
            return Some(self.fail(error.operand(index.ty(), None).at(std::panic::Location::caller())));
        }
        let fits = self.shape().rank() == index.shape().rank()
            && rows > 0
            && index.shape().with(axis, 1) == self.shape().with(axis, 1);
        if !fits && index.error().is_none() {
            let message = format!("{} and the indices' {} differ outside axis {axis}", self.shape(), index.shape());
            return Some(self.refuse(op, ErrorKind::Shape, message));
        }
        index.note_range(rows, None);
        None
    }
}
