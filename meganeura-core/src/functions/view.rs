//! Views: other ways to read the same memory.

use std::ops::Range;

use super::axis::{Axis, axes, axis};
use super::{Vjp, channels};
use crate::graph::Source;
use crate::ops::Op;
use crate::ops::view::{Rule, View};
use crate::{Error, ErrorKind, Result, Shape, Var};

impl Var {
    /// The same elements, in order, with another shape. One extent may be [`Shape::REST`], PyTorch's -1.
    #[doc(alias = "view")]
    #[must_use]
    #[track_caller]
    pub fn reshape(&self, shape: impl Into<Shape>) -> Self {
        let shape = match shape.into().resolved(self.shape()) {
            Ok(shape) => shape,
            Err(_) if self.error().is_some() => return self.clone(),
            Err(message) => return self.refuse("reshape", ErrorKind::Shape, message),
        };
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
    pub fn permute(&self, axes: &[impl Axis]) -> Self {
        let axes = &axes!(self, "permute", axes)[..];
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
    pub(crate) fn made_by<T>(&self, f: impl FnOnce(&Op) -> Option<T>) -> Option<(T, Vec<Self>)> {
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
    #[doc(alias = "broadcast_to")]
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
    pub fn slice(&self, axis: impl Axis, range: Range<usize>) -> Self {
        let axis = axis!(self, "slice", axis);
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

impl Vjp for View {
    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let (Some(dy), shape) = (&dy[0], x[0].shape()) else { return Ok(vec![None; x.len()]) };
        let dx = match self {
            Self::Ruled(Rule::ChannelAffine) => return Ok(channels::of_affine(x, dy)),
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
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::functions::case::{Case, Tested};

    impl Tested for View {
        fn cases() -> Vec<Case> {
            views().into_iter().chain(channels::cases::ruled()).collect()
        }
    }

    /// Every view with a gradient, compositions of views, and a reshape that must fail.
    pub(crate) fn views() -> Vec<Case> {
        let mut cases = vec![
            Case::new(View::Reshape(Shape::from([4, 3]))).input(&[2, 6]),
            Case::new(View::Permute(vec![2, 0, 1])).input(&[2, 3, 4]),
            Case::new(View::Expand(Shape::from([2, 3, 4]))).input(&[3, 1]),
            Case::new(View::Slice { axis: 1, start: 1, len: 2 }).input(&[2, 4, 3]),
            Case::new(View::After).input(&[2, 3]).input(&[4]),
            Case::recorded("reshape", &[&[3, 4]], |x| x[0].t().reshape([2, 6]).exp()),
            Case::recorded("slice", &[&[5, 4]], |x| x[0].slice(0, 1..4).t().slice(0, 0..2).reshape([6]).square()),
            Case::recorded("expand", &[&[4]], |x| x[0].expand([3, 4]).t().reshape([2, 6]).sin()),
            Case::recorded("reshape", &[&[3, 4]], |x| x[0].reshape([5])).expect_error(),
        ];
        for case in &mut cases {
            case.tolerance = 2e-6;
        }
        cases
    }
}
