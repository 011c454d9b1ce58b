//! Scans: the type rule, the launches, and long axes.
//!
//! A long axis is scanned in parts: the scan of each part is joined with the scan of the parts' last elements. So
//! rounding errors grow with the length of a part, and no invocation of a GPU loops for long.

use super::softmax::around;
use crate::kernel::launch::{Launch, Variant, Workgroups, define, tree};
use crate::tape::Var;
use crate::{MAX_RANK, Shape, TensorType};

/// Elements of a part.
const PART: usize = 1 << 12;

/// The type rule of a scan along an axis of floats.
pub(super) fn outputs(x: &[TensorType], axis: usize) -> Result<Vec<TensorType>, String> {
    let [x] = x else { return Err(format!("takes one operand, not {}", x.len())) };
    if !x.dtype.is_float() {
        return Err(format!("needs floats, the operand holds {}", x.dtype));
    }
    if axis >= x.shape.rank() {
        return Err(format!("axis {axis} is out of range: the shape has {} axes", x.shape.rank()));
    }
    Ok(vec![*x])
}

/// The launches of a scan: an invocation or a workgroup for each line. The state of the scan has so many words.
pub(super) fn variants(
    (kernel, words): (&'static str, usize),
    x: TensorType,
    axis: usize,
    reverse: bool,
) -> Vec<Variant> {
    const GROUP: usize = 256;
    let (outer, len, inner) = around(x.shape, axis);
    let lines = outer * inner;
    let shared = define![REVERSE: u32::from(reverse), LINES: lines, LEN: len, INNER: inner];
    let launch = |by: &str, workgroups| {
        let defines = [define![BY: by], shared.clone()].concat();
        Launch::new(kernel, defines, (1, 1), workgroups).stores_through_epilogue()
    };
    let of_workgroups = Workgroups::new(lines, GROUP)
        .with_memory(&[4 * words * GROUP])
        .looping(len.div_ceil(GROUP).saturating_mul(1 + tree(GROUP)).saturating_add(1));
    let of_invocations = Workgroups::of_elements(lines).looping(len.saturating_add(1));
    let serial = Variant::simple("serial", launch("invocation", of_invocations));
    let tree = Variant::simple("shared", launch("workgroup", of_workgroups));
    if len <= 32 || lines >= 1 << 14 { vec![serial, tree] } else { vec![tree, serial] }
}

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
        let is_split = len > PART && shape.rank() < MAX_RANK && x.ty().dtype.is_float() && x.error().is_none();
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
