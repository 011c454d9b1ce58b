//! Scans along a long axis, in parts: the scan of each part is joined with the scan of the parts' last elements. So
//! rounding errors grow with the length of a part, and no invocation of a GPU loops for long.

use crate::{DType, MAX_RANK, Shape, Var};

/// Elements of a part.
const PART: usize = 1 << 12;

/// A long axis in parts. The last part is padded with zeros, which affect no result.
pub(super) struct Parts {
    shape: Shape,
    axis: usize,
    count: usize,
}

impl Parts {
    /// The parts of an axis that is long enough, unless the scan will refuse the operand.
    pub(super) fn of(x: &Var, axis: usize) -> Option<Self> {
        let shape = x.shape();
        let len = *shape.dims().get(axis)?;
        let is_split = len > PART && shape.rank() < MAX_RANK && x.ty().dtype != DType::U32 && x.error().is_none();
        is_split.then(|| Self { shape, axis, count: len.div_ceil(PART) })
    }

    /// The operand as `[…, parts, PART, …]`, for a scan along the second of these axes.
    #[track_caller]
    pub(super) fn split(&self, x: &Var) -> Var {
        let (dims, axis) = (self.shape.dims(), self.axis);
        let mut widths = vec![(0, 0); dims.len()];
        widths[axis] = (0, self.count * PART - dims[axis]);
        let split = [&dims[..axis], &[self.count, PART], &dims[axis + 1..]].concat();
        x.pad(&widths, 0.0).reshape(&split[..])
    }

    /// The last elements of all parts but the last one, `[…, parts − 1, 1, …]`, for a scan along the first of these
    /// axes. The result is what comes before each part but the first.
    #[track_caller]
    pub(super) fn totals(&self, within: &Var) -> Var {
        within.slice(self.axis + 1, PART - 1..PART).slice(self.axis, 0..self.count - 1)
    }

    /// The parts but for the first, before which nothing comes.
    #[track_caller]
    pub(super) fn rest(&self, within: &Var) -> Var {
        within.slice(self.axis, 1..self.count)
    }

    /// The result, in the operand's shape: the first part of the scans within parts, then the rest.
    #[track_caller]
    pub(super) fn join(&self, within: &Var, rest: &Var) -> Var {
        let whole = Var::concat(&[&within.slice(self.axis, 0..1), rest], self.axis);
        let len = self.shape[self.axis];
        whole.reshape(self.shape.with(self.axis, self.count * PART)).slice(self.axis, 0..len)
    }
}
