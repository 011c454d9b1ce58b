//! Sorting along an axis.

use super::softmax::around;
use super::{Kernel, Primitive};
use crate::host::reserve;
use crate::kernel::launch::{Argument, Binding, Caps, Launch, Variant, Workgroups, define, tree};
use crate::kernel::native::{self, Element, OutView, Real, Scratch, Slice, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::{DType, Result, TensorType};

/// The number of elements that a workgroup sorts at once.
const BLOCK: usize = 256;

/// The indices that sort each line along an axis: `x[order[0]] ≤ x[order[1]] ≤ …`, or ≥. The sort is stable; NaN counts
/// as the largest.
///
/// Shapes: `x […]` → `order u32 […]`. Has no gradient.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ArgSort {
    pub(crate) axis: usize,
    pub(crate) descending: bool,
}

impl Primitive for ArgSort {
    fn name(&self) -> &'static str {
        "argsort"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let [x] = x else { return Err(format!("takes one operand, not {}", x.len())) };
        if self.axis >= x.shape.rank() {
            return Err(format!("axis {} is out of range: the shape has {} axes", self.axis, x.shape.rank()));
        }
        Ok(vec![TensorType::new(DType::U32, x.shape)])
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
}

impl Kernel for ArgSort {
    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        let (_, len, inner) = around(x[0].layout().shape(), self.axis);
        match x[0].slice() {
            Slice::Float(x) => self.order([len, inner], x, y[0].indices(), scratch),
            Slice::Index(x) => self.order([len, inner], x, y[0].indices(), scratch),
            Slice::Int(x) => self.order([len, inner], x, y[0].indices(), scratch),
            Slice::Long(x) => self.order([len, inner], x, y[0].indices(), scratch),
        }
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        let ty = x[0].ty;
        vec![sort(ty.dtype, around(ty.shape, self.axis), self.descending, Some(Binding::Output(0)))]
    }
}

impl ArgSort {
    /// The order of lines of `len` elements, `inner` of which are interleaved.
    fn order<E: Element>(&self, [len, inner]: [usize; 2], x: &[E], y: &mut [u32], scratch: &Scratch) {
        native::parallel(y, len * inner, &|first, y| {
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
}

/// The launches that write the order of operand 0 along an axis of `len` elements to the binding `to`, or else to the
/// last scratch buffer. The operand has elements of this type.
///
/// They sort blocks in workgroup memory, then merge runs, whose length doubles in each pass. The blocks have a buffer
/// of their own, so that other steps can share it; the passes take turns with two others.
pub(super) fn sort(
    dtype: DType,
    (outer, len, inner): (usize, usize, usize),
    descending: bool,
    to: Option<Binding>,
) -> Variant {
    let lines = outer * inner;
    let elements = lines * len;
    let blocks = len.div_ceil(BLOCK);
    let passes = blocks.next_power_of_two().ilog2() as usize;
    let own = passes.min(3);
    let to = to.unwrap_or(Binding::Scratch(own));
    let written = |pass| match pass {
        pass if pass == passes => to,
        0 => Binding::Scratch(0),
        pass => Binding::Scratch(2 - pass % 2),
    };
    let shape = define![ELEMENT: dtype, LEN: len, INNER: inner, DESCENDING: u32::from(descending)];
    let defines = [define![LINES: lines, BLOCKS: blocks], shape.clone()].concat();
    let workgroups =
        Workgroups::new(lines.saturating_mul(blocks), BLOCK).with_memory(&[dtype.bytes() * BLOCK]).looping(BLOCK + 1);
    let sorted = Launch::new("sort_blocks", defines, (1, 1), workgroups);
    let mut launches = vec![Launch { bindings: vec![Binding::Input(0), written(0)], ..sorted }];
    for pass in 0..passes {
        let run = BLOCK << pass;
        let workgroups = Workgroups::of_elements(elements).looping(tree(run) + 1);
        let merge =
            Launch::new("sort_merge", [define![N: elements, RUN: run], shape.clone()].concat(), (1, 1), workgroups);
        let bindings = vec![Binding::Input(0), written(pass), written(pass + 1)];
        launches.push(Launch { bindings, ..merge });
    }
    let scratch = vec![elements; own + usize::from(matches!(to, Binding::Scratch(_)))];
    Variant { name: "merge", launches, scratch }
}
