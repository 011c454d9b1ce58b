//! Sorting along an axis.

use super::gather::Gather;
use super::softmax::around;
use super::{Kernel, Primitive};
use crate::host::reserve;
use crate::kernel::launch::{Argument, Binding, Caps, Launch, Variant, Workgroups, define, tree};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::tape::Var;
use crate::{DType, ErrorKind, Result, TensorType};

/// The number of elements that a workgroup sorts at once.
const BLOCK: usize = 256;

/// The indices that sort each line along an axis: `x[order[0]] ≤ x[order[1]] ≤ …`, or ≥. The sort is stable; NaN counts
/// as the largest.
///
/// Shapes: `x […]` → `order u32 […]`. Has no gradient.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ArgSort {
    axis: usize,
    descending: bool,
}

impl Primitive for ArgSort {
    fn name(&self) -> &'static str {
        "argsort"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let [x] = x else { return Err(format!("takes one operand, not {}", x.len())) };
        if !x.dtype.is_float() {
            return Err(format!("needs floats, the operand holds {}", x.dtype));
        }
        if self.axis >= x.shape.rank() {
            return Err(format!("axis {} is out of range: the shape has {} axes", self.axis, x.shape.rank()));
        }
        Ok(vec![TensorType::new(DType::U32, x.shape)])
    }

    fn vjp(&self, _x: &[Var], _y: &[Var], _dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        Ok(vec![None])
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], _: &[TensorType], to: &mut Form) -> Option<form::Results> {
        let count = to.ints(vec![form::int(x[0].ty.shape[self.axis])]);
        let attributes = vec![
            ("axis", form::Attribute::Int(form::int(self.axis))),
            ("largest", form::Attribute::Int(i64::from(self.descending))),
            ("sorted", form::Attribute::Int(1)),
        ];
        form::only(to.optional("TopK", vec![Some(x[0].value), Some(count)], 2, attributes)[1])
    }

    #[cfg(feature = "testing")]
    fn cases() -> Vec<super::case::Case> {
        use super::case::Case;
        let case = |shape: &[usize], axis, descending| {
            Case::recorded("argsort", &[shape], move |x| x[0].sort(axis, descending).0)
        };
        let mut cases = vec![
            case(&[1], 0, false),
            case(&[3, 5], 1, true),
            case(&[67, 4], 0, false),
            // Several blocks, the last one short; runs without a partner to merge with.
            case(&[2, 300, 3], 1, false),
            case(&[2, 515], 1, true),
            case(&[1, 1030], 1, false),
        ];
        // Equal numbers stay in order: their indices are compared.
        for descending in [false, true] {
            cases.push(Case::recorded("argsort", &[&[2, 700]], move |x| {
                let order = (&x[0] * 2.0).floor().argsort(1, descending);
                order.to_float() + &x[0] * 0.0
            }));
        }
        cases
    }
}

impl Kernel for ArgSort {
    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        let (_, len, inner) = around(x[0].layout().shape(), self.axis);
        let x = x[0].floats();
        native::parallel(y[0].indices(), len * inner, &|first, y| {
            let mut order: Vec<u32> = Vec::new();
            if let Err(error) = reserve(&mut order, len) {
                return scratch.refuse(error);
            }
            for column in 0..inner {
                let number = |place: u32| x[first + place as usize * inner + column];
                order.clear();
                order.extend((0u32..).take(len));
                order.sort_by(|&a, &b| {
                    let (a, b) = (number(a), number(b));
                    let by_number = a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()));
                    if self.descending { by_number.reverse() } else { by_number }
                });
                y[column..].iter_mut().step_by(inner).zip(&order).for_each(|(y, &place)| *y = place);
            }
        });
    }

    /// Sorts blocks in workgroup memory, then merges runs, whose length doubles in each pass. Each pass writes to a
    /// buffer of its own.
    fn variants(&self, x: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        let (outer, len, inner) = around(x[0].ty.shape, self.axis);
        let (lines, elements) = (outer * inner, x[0].ty.shape.elements());
        let blocks = len.div_ceil(BLOCK);
        let passes = blocks.next_power_of_two().ilog2() as usize;
        let written = |pass| if pass == passes { Binding::Output(0) } else { Binding::Scratch(pass) };
        let descending = u32::from(self.descending);
        let defines = define![LINES: lines, BLOCKS: blocks, LEN: len, INNER: inner, DESCENDING: descending];
        let workgroups =
            Workgroups::new(lines.saturating_mul(blocks), BLOCK).with_memory(&[4 * BLOCK]).looping(BLOCK + 1);
        let sorted = Launch::new("sort_blocks", defines, (1, 1), workgroups);
        let mut launches = vec![Launch { bindings: vec![Binding::Input(0), written(0)], ..sorted }];
        for pass in 0..passes {
            let run = BLOCK << pass;
            let defines = define![N: elements, RUN: run, LEN: len, INNER: inner, DESCENDING: descending];
            let workgroups = Workgroups::of_elements(elements).looping(tree(run) + 1);
            let merge = Launch::new("sort_merge", defines, (1, 1), workgroups);
            let bindings = vec![Binding::Input(0), written(pass), written(pass + 1)];
            launches.push(Launch { bindings, ..merge });
        }
        vec![Variant { name: "merge", launches, scratch: vec![elements; passes] }]
    }
}

impl Var {
    /// The indices that sort this value along an axis, ascending or descending: `u32`, with the same shape.
    ///
    /// The sort is stable; NaN counts as the largest. Has no gradient.
    #[must_use]
    #[track_caller]
    pub fn argsort(&self, axis: usize, descending: bool) -> Self {
        self.record(ArgSort { axis, descending }, &[self])
    }

    /// The sorted numbers along an axis, and their original indices: see [`argsort`](Self::argsort). The gradient goes
    /// back to these positions.
    #[must_use]
    #[track_caller]
    pub fn sort(&self, axis: usize, descending: bool) -> (Self, Self) {
        let order = self.argsort(axis, descending);
        (self.record(Gather { axis, permutation: true }, &[self, &order]), order)
    }

    /// The `k` largest numbers along an axis in descending order, and their indices: `x [.., R, ..]` → `[.., k, ..]` of
    /// both.
    ///
    /// The order of equal numbers is kept; NaN counts as the largest. For the smallest numbers, negate. It is an error
    /// if `k` is 0 or exceeds the extent.
    #[must_use]
    #[track_caller]
    pub fn topk(&self, k: usize, axis: usize) -> (Self, Self) {
        if let Some(&extent) = self.shape().dims().get(axis)
            && !(1..=extent).contains(&k)
        {
            let message = format!("the {k} largest of axis {axis}, which has {extent} elements");
            let refused = self.refuse("topk", ErrorKind::Argument, message);
            return (refused.clone(), refused);
        }
        let order = self.argsort(axis, true).slice(axis, 0..k);
        (self.record(Gather { axis, permutation: false }, &[self, &order]), order)
    }
}
