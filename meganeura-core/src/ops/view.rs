//! Views: other ways to read the same memory. A plan turns them into layouts, so they cost nothing, except that a
//! reshape of a strided view may need a copy.

use std::fmt;

use super::Primitive;
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::{Layout, Result, Shape, TensorType};

/// Another way to read an operand's memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum View {
    /// The same elements in the same order with another shape. Gradient: the inverse reshape.
    Reshape(Shape),
    /// A permutation of axes: axis `a` of the result is axis `.0[a]` of the operand. Gradient: the inverse permutation.
    Permute(Vec<usize>),
    /// NumPy's broadcasting to this shape. Gradient: the sum over the repeated axes.
    Expand(Shape),
    /// Elements `start..start + len` along an axis. Gradient: padded with zeros.
    Slice {
        /// The axis to slice.
        axis: usize,
        /// The first element.
        start: usize,
        /// The number of elements.
        len: usize,
    },
    /// The same values, without a gradient.
    Detach,
    /// The same values, for readers that wait until the other operands are computed.
    /// Gradient: goes to the first operand.
    After,
    /// The same values, for a gradient rule of their own: how they were computed does not matter to it. The other
    /// operands get the gradient, and are not read.
    Ruled(Rule),
}

/// The gradient rule of values that several operations computed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rule {
    /// `(x − centre)·factor + shift`, with a centre, a factor and a shift of each channel: the operands, after the
    /// values, are `x [N,C,…]` and three of `[C]`. Gradient: `dx = dy·factor`; both sums of each channel in one pass.
    ChannelAffine,
}

/// The name, and the attributes if there are any: `slice { axis: 1, start: 0, len: 2 }`.
impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match self {
            Self::Reshape(shape) | Self::Expand(shape) => f.debug_tuple(name).field(shape).finish(),
            Self::Permute(axes) => f.debug_tuple(name).field(axes).finish(),
            Self::Slice { axis, start, len } => {
                f.debug_struct(name).field("axis", axis).field("start", start).field("len", len).finish()
            }
            Self::Ruled(rule) => f.debug_tuple(name).field(rule).finish(),
            Self::Detach | Self::After => f.write_str(name),
        }
    }
}

impl View {
    /// The layout of the result in the operand's memory; `None` if the operand must be made contiguous first.
    pub(crate) fn layout(&self, x: &Layout) -> Option<Layout> {
        match self {
            Self::Reshape(shape) => x.reshape(*shape),
            Self::Permute(axes) => Some(x.permute(axes)),
            Self::Expand(shape) => Some(x.expand(*shape)),
            Self::Slice { axis, start, len } => Some(x.slice(*axis, *start, *len)),
            Self::Detach | Self::After | Self::Ruled(_) => Some(*x),
        }
    }

    /// The type of the result.
    pub(super) fn output(&self, x: &[TensorType]) -> Result<TensorType, String> {
        let from = x[0].shape;
        let shape = match self {
            Self::Reshape(to) if to.elements() == from.elements() => *to,
            Self::Reshape(to) => {
                return Err(format!("{from} has {} elements, {to} has {}", from.elements(), to.elements()));
            }
            Self::Permute(axes) => {
                let mut sorted = axes.clone();
                sorted.sort_unstable();
                if !sorted.iter().copied().eq(0..from.rank()) {
                    return Err(format!("{axes:?} does not name each of the {} axes once", from.rank()));
                }
                Layout::contiguous(from).permute(axes).shape()
            }
            Self::Expand(to) if to.elements() == 0 => return Err(format!("{to} has no elements (an empty batch?)")),
            Self::Expand(to) if from.broadcast(to) == Some(*to) => *to,
            Self::Expand(to) => return Err(format!("{from} does not broadcast to {to}")),
            Self::Slice { axis, start, len } => {
                let Some(&extent) = from.dims().get(*axis) else {
                    return Err(format!("axis {axis} is out of range: the shape has {} axes", from.rank()));
                };
                if *len == 0 {
                    return Err(format!("the range of axis {axis} is empty"));
                }
                if start + len > extent {
                    return Err(format!("{start}..{} is not within axis {axis}, of extent {extent}", start + len));
                }
                from.with(*axis, *len)
            }
            Self::Detach | Self::After | Self::Ruled(_) => from,
        };
        Ok(x[0].with_shape(shape))
    }
}

impl Primitive for View {
    fn name(&self) -> &'static str {
        match self {
            Self::Reshape(_) => "reshape",
            Self::Permute(_) => "permute",
            Self::Expand(_) => "expand",
            Self::Slice { .. } => "slice",
            Self::Detach => "detach",
            Self::After => "after",
            Self::Ruled(_) => "ruled",
        }
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        self.output(x).map(|ty| vec![ty])
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], _: &[TensorType], to: &mut Form) -> Option<form::Results> {
        let value = x[0].value;
        form::only(match self {
            Self::Reshape(shape) => to.reshape(value, *shape),
            Self::Permute(axes) => {
                to.node("Transpose", &[value], vec![("perm", form::Attribute::Ints(form::ints(axes)))])
            }
            Self::Expand(shape) => {
                let shape = to.ints(form::ints(shape.dims()));
                to.node("Expand", &[value, shape], Vec::new())
            }
            Self::Slice { axis, start, len } => {
                let [start, end, axis] = [*start, start + len, *axis].map(|number| to.ints(vec![form::int(number)]));
                to.node("Slice", &[value, start, end, axis], Vec::new())
            }
            Self::Detach | Self::After | Self::Ruled(_) => value,
        })
    }
}
