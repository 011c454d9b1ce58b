//! Shapes of tensors, and layouts: the places of a shape's elements in a storage.
//!
//! It knows nothing of devices, operations or values.

use std::fmt;

/// The largest number of axes of a tensor.
pub const MAX_RANK: usize = 8;

/// The extents of a tensor, outermost axis first. A scalar has rank 0 and one element.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: [usize; MAX_RANK],
    rank: usize,
}

impl Shape {
    /// The shape of a single number.
    pub const SCALAR: Self = Self { dims: [0; MAX_RANK], rank: 0 };

    /// The extent that [`Var::reshape`](crate::Var::reshape) and [`Tensor::reshape`](crate::Tensor::reshape) compute
    /// from the others, for one axis: PyTorch's -1.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let x = Tensor::zeros(&Device::cpu(), [2, 3, 4])?;
    /// assert_eq!(x.reshape([Shape::REST, 4])?.shape(), [6, 4].into());
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    pub const REST: usize = usize::MAX;

    /// The shape with these extents.
    ///
    /// # Panics
    ///
    /// Panics if there are more than [`MAX_RANK`] extents; [`Shape::try_new`] returns `None` instead.
    #[must_use]
    #[track_caller]
    pub fn new(dims: &[usize]) -> Self {
        Self::try_new(dims).expect("a tensor has at most 8 axes")
    }

    /// The shape with these extents, or `None` if there are more than [`MAX_RANK`].
    #[must_use]
    pub fn try_new(dims: &[usize]) -> Option<Self> {
        let mut shape = Self::SCALAR;
        shape.dims.get_mut(..dims.len())?.copy_from_slice(dims);
        shape.rank = dims.len();
        Some(shape)
    }

    /// The extents, outermost first.
    #[must_use]
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank]
    }

    /// The number of axes.
    #[doc(alias("dim", "ndim"))]
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of elements: the product of the extents, 1 for a scalar. Saturates.
    #[doc(alias = "numel")]
    #[must_use]
    pub fn elements(&self) -> usize {
        self.dims().iter().fold(1, |n, &d| n.saturating_mul(d))
    }

    /// This shape for a value of another shape, with the extent of an axis of [`REST`](Self::REST).
    #[doc(hidden)]
    pub fn resolved(self, of: Self) -> Result<Self, String> {
        let mut rest = (0..self.rank).filter(|&axis| self.dims[axis] == Self::REST);
        let (Some(axis), more) = (rest.next(), rest.next()) else { return Ok(self) };
        let others = self.with(axis, 1).elements();
        if more.is_some() {
            return Err("`Shape::REST` stands for one axis only".to_owned());
        }
        if others == 0 || !of.elements().is_multiple_of(others) {
            return Err(format!("{of} has {} elements, no multiple of {others}, for `Shape::REST`", of.elements()));
        }
        Ok(self.with(axis, of.elements() / others))
    }

    /// The same shape, with extent `extent` along axis `axis`.
    #[must_use]
    #[doc(hidden)]
    pub fn with(mut self, axis: usize, extent: usize) -> Self {
        self.dims[..self.rank][axis] = extent;
        self
    }

    /// The shape of two operands after NumPy's broadcasting: aligned at the last axis, with extents that are equal or
    /// 1.
    #[must_use]
    pub fn broadcast(&self, other: &Self) -> Option<Self> {
        let rank = self.rank.max(other.rank);
        let extent = |shape: &Self, axis: usize| (axis + shape.rank).checked_sub(rank).map_or(1, |a| shape.dims[a]);
        let mut out = Self { dims: [0; MAX_RANK], rank };
        for axis in 0..rank {
            out.dims[axis] = match (extent(self, axis), extent(other, axis)) {
                (a, b) if a == b => a,
                (1, b) => b,
                (a, 1) => a,
                _ => return None,
            };
        }
        Some(out)
    }

    /// The strides, in elements, of a contiguous row-major layout.
    fn contiguous_strides(&self) -> [usize; MAX_RANK] {
        let mut strides = [0; MAX_RANK];
        let mut step = 1usize;
        for axis in (0..self.rank).rev() {
            strides[axis] = step;
            // Saturates like the number of elements: no memory can hold such a shape, as a later check finds.
            step = step.saturating_mul(self.dims[axis]);
        }
        strides
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        const { assert!(N <= MAX_RANK, "a tensor has at most 8 axes") };
        Self::new(&dims)
    }
}

/// # Panics
///
/// Panics like [`Shape::new`], if there are more than [`MAX_RANK`] extents.
impl From<&[usize]> for Shape {
    #[track_caller]
    fn from(dims: &[usize]) -> Self {
        Self::new(dims)
    }
}

impl std::ops::Index<usize> for Shape {
    type Output = usize;

    fn index(&self, axis: usize) -> &usize {
        &self.dims()[axis]
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.dims(), f)
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The places of a shape's elements in a storage: element `i` is at `offset + Σ i[a]·strides[a]`.
///
/// A stride of 0 repeats an element, so broadcasting costs nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Layout {
    shape: Shape,
    strides: [usize; MAX_RANK],
    offset: usize,
}

impl Layout {
    /// The contiguous row-major layout from the start of the storage.
    #[must_use]
    pub fn contiguous(shape: Shape) -> Self {
        Self { shape, strides: shape.contiguous_strides(), offset: 0 }
    }

    /// The extents along each axis.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    pub(crate) fn shape_ref(&self) -> &Shape {
        &self.shape
    }

    /// The distance in elements between neighbours along each axis.
    #[must_use]
    pub fn strides(&self) -> &[usize] {
        &self.strides[..self.shape.rank]
    }

    /// The place of the first element.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// `true` if the elements are the storage's first, in order. Strides of axes with extent 1 do not matter.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        let dense = self.shape.contiguous_strides();
        self.offset == 0 && (0..self.shape.rank).all(|a| self.shape.dims[a] == 1 || self.strides[a] == dense[a])
    }

    /// Permutes the axes: axis `a` of the result is axis `axes[a]` of this layout.
    #[must_use]
    pub fn permute(&self, axes: &[usize]) -> Self {
        let mut out = *self;
        for (to, &from) in axes.iter().enumerate() {
            out.shape.dims[to] = self.shape.dims[from];
            out.strides[to] = self.strides[from];
        }
        out
    }

    /// Repeats axes of extent 1 (and adds leading ones) to fill `shape`.
    #[must_use]
    pub fn expand(&self, shape: Shape) -> Self {
        let lead = shape.rank - self.shape.rank;
        let mut out = Self { shape, strides: [0; MAX_RANK], offset: self.offset };
        for axis in 0..self.shape.rank {
            if self.shape.dims[axis] == shape.dims[axis + lead] {
                out.strides[axis + lead] = self.strides[axis];
            }
        }
        out
    }

    /// The elements `start..start + len` along an axis.
    #[must_use]
    pub fn slice(&self, axis: usize, start: usize, len: usize) -> Self {
        let mut out = *self;
        out.offset += start * self.strides[axis];
        out.shape = out.shape.with(axis, len);
        out
    }

    /// The same places, counted from element `begin` of the storage, which must not be behind the first of them.
    pub(crate) fn counted_from(&self, begin: usize) -> Self {
        Self { offset: self.offset - begin, ..*self }
    }

    /// The layout with these strides, from the start of the storage.
    pub(crate) fn strided(shape: Shape, strides: &[usize]) -> Self {
        let mut out = Self { shape, strides: [0; MAX_RANK], offset: 0 };
        out.strides[..strides.len()].copy_from_slice(strides);
        out
    }

    /// The same elements in another shape of the same size; `None` if strides cannot express it, so it takes a copy.
    #[must_use]
    pub fn reshape(&self, shape: Shape) -> Option<Self> {
        let dense = Self::contiguous(shape);
        let shifted = Self { offset: 0, ..*self };
        if shifted.is_contiguous() {
            return Some(Self { offset: self.offset, ..dense });
        }
        // From the last axis on, each must divide the rest of an axis of the collapsed layout.
        let from = self.collapse();
        let mut parts = from.shape.dims().iter().zip(&from.strides).rev();
        let (mut left, mut stride) = (1, 0);
        let mut out = Self { offset: self.offset, ..dense };
        for (axis, &extent) in shape.dims().iter().enumerate().rev().filter(|(_, extent)| **extent > 1) {
            if left == 1 {
                (left, stride) = parts.next().map(|(&extent, &stride)| (extent, stride))?;
            }
            out.strides[axis] = stride;
            left = left.is_multiple_of(extent).then_some(left / extent)?;
            stride = stride.saturating_mul(extent);
        }
        Some(out)
    }

    /// The same elements in the same order, with as few axes as the strides allow, so that kernels decode fewer
    /// indices.
    #[must_use]
    pub fn collapse(&self) -> Self {
        let mut dims: Vec<(usize, usize)> = Vec::with_capacity(self.shape.rank);
        for axis in 0..self.shape.rank {
            let (extent, stride) = (self.shape.dims[axis], self.strides[axis]);
            match dims.last_mut() {
                _ if extent == 1 => {}
                Some((outer, step)) if *step == stride.saturating_mul(extent) => {
                    (*outer, *step) = (outer.saturating_mul(extent), stride);
                }
                _ => dims.push((extent, stride)),
            }
        }
        let mut out = Self { shape: Shape::SCALAR, strides: [0; MAX_RANK], offset: self.offset };
        for (axis, (extent, stride)) in dims.into_iter().enumerate() {
            out.shape.rank = axis + 1;
            out.shape.dims[axis] = extent;
            out.strides[axis] = stride;
        }
        out
    }

    /// The place in the storage of the element with row-major number `index`.
    #[must_use]
    pub fn at(&self, mut index: usize) -> usize {
        let mut place = self.offset;
        for axis in (0..self.shape.rank).rev() {
            place += index % self.shape.dims[axis] * self.strides[axis];
            index /= self.shape.dims[axis];
        }
        place
    }

    /// Splits the layout in two: the other axes, and `axes`, each in order. The first keeps the offset.
    #[must_use]
    pub(crate) fn split(&self, axes: &[usize]) -> (Self, Self) {
        let pick = |wanted: bool, offset: usize| {
            let mut out = Self { shape: Shape::SCALAR, strides: [0; MAX_RANK], offset };
            for axis in (0..self.shape.rank).filter(|axis| axes.contains(axis) == wanted) {
                out.shape.dims[out.shape.rank] = self.shape.dims[axis];
                out.strides[out.shape.rank] = self.strides[axis];
                out.shape.rank += 1;
            }
            out
        };
        (pick(false, self.offset), pick(true, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcast_follows_numpy() {
        let of = |a: &[usize], b: &[usize]| Shape::new(a).broadcast(&Shape::new(b)).map(|s| s.dims().to_vec());
        assert_eq!(of(&[4, 1, 3], &[2, 1]), Some(vec![4, 2, 3]));
        assert_eq!(of(&[], &[5]), Some(vec![5]));
        assert_eq!(of(&[2, 3], &[2]), None);
    }

    #[test]
    fn layouts_compose() {
        let x = Layout::contiguous(Shape::from([2, 3, 4]));
        let y = x.permute(&[2, 0, 1]).slice(0, 1, 2);
        assert_eq!(y.shape(), Shape::from([2, 2, 3]));
        assert_eq!((0..12).map(|i| y.at(i)).collect::<Vec<_>>(), [1, 5, 9, 13, 17, 21, 2, 6, 10, 14, 18, 22]);
        assert!(!y.is_contiguous());
        assert!(y.reshape(Shape::from([12])).is_none());
    }

    #[test]
    fn reshape_splits_and_joins_strided_axes() {
        let same = |x: Layout, dims: &[usize]| {
            let y = x.reshape(Shape::new(dims))?;
            assert!((0..x.shape().elements()).all(|i| x.at(i) == y.at(i)), "{x:?}, {y:?}");
            Some(y.strides().to_vec())
        };
        let heads = Layout::contiguous(Shape::from([2, 5, 24])).slice(2, 8, 8);
        assert_eq!(same(heads, &[2, 5, 2, 4]), Some(vec![120, 24, 4, 1]));
        assert_eq!(same(heads, &[10, 1, 8]), Some(vec![24, 8, 1]));
        assert_eq!(same(heads.permute(&[2, 0, 1]), &[2, 4, 10]), Some(vec![4, 1, 24]));
        assert_eq!(same(heads, &[2, 40]), None);
        let repeated = Layout::contiguous(Shape::from([3, 1])).expand(Shape::from([3, 4]));
        assert_eq!(same(repeated, &[3, 2, 2]), Some(vec![1, 0, 0]));
        assert_eq!(same(repeated, &[12]), None);
    }

    #[test]
    fn collapse_keeps_the_order() {
        let x = Layout::contiguous(Shape::from([2, 3, 1, 4]));
        assert_eq!(x.collapse().shape(), Shape::from([24]));
        let bias = Layout::contiguous(Shape::from([3, 1, 1])).expand(Shape::from([2, 3, 4, 5]));
        let collapsed = bias.collapse();
        assert_eq!(collapsed.shape(), Shape::from([2, 3, 20]));
        assert!((0..120).all(|i| bias.at(i) == collapsed.at(i)));
    }

    #[test]
    fn too_many_axes_are_refused() {
        assert!(Shape::try_new(&[1; 9]).is_none());
    }
}
