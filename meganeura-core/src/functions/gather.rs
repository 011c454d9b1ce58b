//! Gathering elements along an axis by index, and scattering them back.

use super::axis::{Axis, axis};
use super::{Vjp, named};
use crate::ops::gather::{Fold, Gather, ScatterAlong};
use crate::{Error, ErrorKind, Result, Var};

impl Var {
    /// Gathers elements along an axis by index: `y[o…, k, i…] = x[o…, index[o…, k, i…], i…]`, like PyTorch's `gather`
    ///
    /// Shapes: `x [O…, R, I…]`, `index [O…, K, I…]` of integers → `y [O…, K, I…]`. For rows of a table, see
    /// [`embedding`](Self::embedding); for the same indices in every line, [`index_select`](Self::index_select).
    ///
    /// Shapes that differ outside the axis are an error. So is an index past the end, if the host knows the indices;
    /// otherwise that element of the result is NaN.
    #[must_use]
    #[track_caller]
    pub fn gather(&self, axis: impl Axis, index: &Self) -> Self {
        let axis = axis!(self, "gather", axis);
        let index = &index.as_index();
        if let Some(poisoned) = self.misplaced(axis, index, "gather") {
            return poisoned;
        }
        self.record(Gather { axis, permutation: false }, &[self, index])
    }

    /// Adds elements to this value at given positions: `y[o…, index[o…, k, i…], i…] += source[o…, k, i…]`, in a fixed
    /// order
    ///
    /// Shapes: `x [O…, R, I…]`, `index [O…, K, I…]` of integers, `source [O…, K, I…]` → `y [O…, R, I…]`.
    ///
    /// Fails like [`gather`](Self::gather); an index past the end that the host does not know is ignored.
    #[must_use]
    #[track_caller]
    pub fn scatter_add(&self, axis: impl Axis, index: &Self, source: &Self) -> Self {
        let axis = axis!(self, "scatter_add", axis);
        let index = &index.as_index();
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
    pub fn scatter(&self, axis: impl Axis, index: &Self, source: &Self) -> Self {
        let axis = axis!(self, "scatter", axis);
        let index = &index.as_index();
        if let Some(poisoned) = self.misplaced(axis, index, "scatter") {
            return poisoned;
        }
        if source.shape() != index.shape() {
            return self.record(ScatterAlong { axis, rows: 1, fold: Fold::Sum }, &[index, source]);
        }
        // For each position, one more than the number of its last source, 0 if there is none.
        let numbers = self.tape().iota(source.shape(), axis) + self.constant(1.0);
        let last = self.scattered(axis, index, &numbers, Fold::Max);
        let is_kept = last.eq(self.constant(0.0));
        let from = (&last - self.constant(1.0)).maximum(self.constant(0.0)).to_index();
        let replaced = source.record(Gather { axis, permutation: false }, &[source, &from]);
        is_kept.where_cond(self, &replaced)
    }

    /// Like [`gather`](Self::gather), with 0 instead of NaN for an index past the end: the transpose of a
    /// scattered sum.
    #[track_caller]
    pub(super) fn gather_or_zero(&self, axis: usize, index: &Self) -> Self {
        let past = index.to_float().ge(self.constant(self.shape()[axis] as f64));
        let gathered = self.record(Gather { axis, permutation: false }, &[self, index]);
        past.where_cond(&self.constant(0.0), &gathered)
    }

    /// The maximum of each element and the sources with its index. Shapes and errors are those of
    /// [`scatter`](Self::scatter).
    #[cfg(feature = "onnx")]
    #[must_use]
    #[track_caller]
    #[doc(hidden)]
    pub fn scatter_max(&self, axis: impl Axis, index: &Self, source: &Self) -> Self {
        let axis = axis!(self, "scatter_max", axis);
        let index = &index.as_index();
        if let Some(poisoned) = self.misplaced(axis, index, "scatter_max") {
            return poisoned;
        }
        // Computed on positions in sorted order: the largest source has the largest position, and positions are at
        // least 0.
        let (sorted, order) = source.sort(axis, false);
        let places = order.to_float().argsort(axis, false).to_float() + self.constant(1.0);
        let last = self.scattered(axis, index, &places, Fold::Max);
        let is_kept = last.eq(self.constant(0.0));
        let from = (&last - self.constant(1.0)).maximum(self.constant(0.0)).to_index();
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
            let message = format!("{} is past the end, axis {axis} has {rows} elements", named("index", largest));
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
        index.note_range(op, rows, None);
        None
    }
}

impl Vjp for Gather {
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
}

impl Vjp for ScatterAlong {
    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let (Some(dy), Fold::Sum) = (&dy[0], self.fold) else { return Ok(vec![None, None]) };
        // Indices past the end do not affect the result.
        Ok(vec![None, Some(dy.gather_or_zero(self.axis, &x[0]))])
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::functions::case::{Case, Tested};

    impl Tested for Gather {
        fn cases() -> Vec<Case> {
            let case = |x: &[usize], axis, count| {
                let index = crate::Shape::new(x).with(axis, count);
                Case::new(Self { axis, permutation: false }).input(x).labels(index.dims(), x[axis]).tolerance(1e-5)
            };
            vec![
                case(&[1], 0, 1),
                case(&[5], 0, 70),
                case(&[3, 4], 1, 6),
                case(&[2, 7, 3], 1, 5),
                case(&[6, 67], 0, 300),
            ]
        }
    }

    impl Tested for ScatterAlong {
        fn cases() -> Vec<Case> {
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
}
