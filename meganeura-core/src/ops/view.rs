//! Views: other ways to read the same memory. A plan turns them into layouts, so they cost nothing, except that a
//! reshape of a strided view may need a copy.

use std::fmt;
use std::ops::Range;

use super::{Op, Primitive};
use crate::graph::Source;
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::tape::Var;
use crate::{Error, ErrorKind, Layout, Result, Shape, TensorType};

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
            Self::Detach | Self::After => Some(*x),
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
            Self::Detach | Self::After => from,
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
        }
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        self.output(x).map(|ty| vec![ty])
    }

    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let (Some(dy), shape) = (&dy[0], x[0].shape()) else { return Ok(vec![None; x.len()]) };
        let dx = match self {
            Self::Reshape(_) => Some(dy.reshape(shape)),
            Self::Permute(axes) => {
                let mut back = vec![0; axes.len()];
                axes.iter().enumerate().for_each(|(to, &from)| back[from] = to);
                Some(dy.permute(&back))
            }
            Self::Expand(to) => {
                let lead = to.rank() - shape.rank();
                let repeated = |axis: &usize| *axis < lead || shape[axis - lead] != to[*axis];
                let axes: Vec<_> = (0..to.rank()).filter(repeated).collect();
                Some(dy.sum_over(&axes).reshape(shape))
            }
            Self::Slice { axis, start, len } => {
                let mut widths = vec![(0, 0); shape.rank()];
                widths[*axis] = (*start, shape[*axis] - start - len);
                Some(dy.pad(&widths, 0.0))
            }
            Self::Detach => None,
            Self::After => Some(dy.clone()),
        };
        // Only `After` has other operands, which it does not read.
        Ok(std::iter::once(dx).chain(x[1..].iter().map(|_| None)).collect())
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
            Self::Detach | Self::After => value,
        })
    }

    #[cfg(feature = "testing")]
    fn cases() -> Vec<super::case::Case> {
        super::case::views()
    }
}

impl Var {
    /// The same elements, in order, with another shape.
    #[must_use]
    #[track_caller]
    pub fn reshape(&self, shape: impl Into<Shape>) -> Self {
        let shape = shape.into();
        if self.shape() == shape { self.clone() } else { self.record(View::Reshape(shape), &[self]) }
    }

    /// Flattens all axes from the second on: `[N, C, H, W]` becomes `[N, C·H·W]`.
    #[must_use]
    #[track_caller]
    pub fn flatten(&self) -> Self {
        let dims = self.shape();
        let Some((&batch, rest)) = dims.dims().split_first() else { return self.reshape([1, 1]) };
        self.reshape([batch, rest.iter().product()])
    }

    /// Permutes the axes: axis `a` of the result is axis `axes[a]` of this value.
    #[must_use]
    #[track_caller]
    pub fn permute(&self, axes: &[usize]) -> Self {
        self.record(View::Permute(axes.to_vec()), &[self])
    }

    /// The transpose of the last two axes. Costs nothing, also as an operand of [`Var::matmul`].
    #[doc(alias = "mT")]
    #[must_use]
    #[track_caller]
    pub fn t(&self) -> Self {
        let rank = self.shape().rank();
        let mut axes: Vec<_> = (0..rank).collect();
        if rank < 2 {
            let message = format!("a transposition needs at least 2 axes, but the shape is {}", self.shape());
            let error = Error::new(ErrorKind::Shape, message).in_op("t").operand(self.ty(), self.path());
            return self.fail(error.at(std::panic::Location::caller()));
        }
        axes.swap(rank - 2, rank - 1);
        self.permute(&axes)
    }

    /// `true` if this value was made by [`Var::t`].
    pub(crate) fn is_transposed(&self) -> bool {
        let Ok(id) = self.id() else { return false };
        self.tape().with_graph(|graph| match &graph.maker(id).source {
            Source::Op(Op::View(View::Permute(axes))) => {
                let rank = axes.len();
                rank >= 2
                    && axes[rank - 2..] == [rank - 1, rank - 2]
                    && axes[..rank - 2].iter().copied().eq(0..rank - 2)
            }
            _ => false,
        })
    }

    /// The result of `f` for the operation that computed this value, and that operation's operands.
    pub(super) fn made_by<T>(&self, f: impl FnOnce(&Op) -> Option<T>) -> Option<(T, Vec<Self>)> {
        let id = self.id().ok()?;
        let (found, inputs) = self.tape().with_graph(|graph| {
            let node = graph.maker(id);
            match &node.source {
                Source::Op(op) => Some((f(op)?, node.inputs.clone())),
                _ => None,
            }
        })?;
        Some((found, inputs.iter().map(|&input| self.tape().var(input)).collect()))
    }

    /// Broadcasts to a shape, like NumPy.
    #[must_use]
    #[track_caller]
    pub fn expand(&self, shape: impl Into<Shape>) -> Self {
        let shape = shape.into();
        if self.shape() == shape { self.clone() } else { self.record(View::Expand(shape), &[self]) }
    }

    /// The elements of a range along an axis.
    #[doc(alias = "narrow")]
    #[must_use]
    #[track_caller]
    pub fn slice(&self, axis: usize, range: Range<usize>) -> Self {
        let len = range.end.saturating_sub(range.start);
        self.record(View::Slice { axis, start: range.start, len }, &[self])
    }

    /// The same values, without a gradient.
    #[must_use]
    #[track_caller]
    pub fn detach(&self) -> Self {
        self.record(View::Detach, &[self])
    }

    /// The same values, for readers that wait until `others` are computed.
    #[track_caller]
    pub(super) fn after(&self, others: &[Self]) -> Self {
        self.record(View::After, &[self].into_iter().chain(others).collect::<Vec<_>>())
    }
}
