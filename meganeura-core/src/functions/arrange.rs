//! Rearrangement of elements.

use std::borrow::Borrow;

use super::Ranges;
use super::axis::{Axis, axis};
use crate::{ErrorKind, MAX_RANK, Var};

impl Var {
    /// Stacks values, `&[&x, &y]` or a `Vec` of values, along a new axis: `k` of shape `[.., ..]` → `[.., k, ..]`.
    ///
    /// # Panics
    ///
    /// Panics if there are no values: then there is no tape to record on.
    #[must_use]
    #[track_caller]
    pub fn stack(values: &[impl Borrow<Self>], axis: impl Axis) -> Self {
        let values: Vec<&Self> = values.iter().map(Borrow::borrow).collect();
        let first = values.first().expect("`Var::stack` needs at least one value");
        let axis = axis!(first, "stack", axis, of first.shape().rank() + 1);
        if let Some(odd) = values.iter().find(|value| value.shape() != first.shape() && value.error().is_none()) {
            let message = format!("shapes {} and {}", first.shape(), odd.shape());
            return first.refuse("stack", ErrorKind::Shape, message);
        }
        let mut rows = Vec::with_capacity(values.len());
        for value in values {
            rows.push(value.unsqueeze(axis));
        }
        Self::concat(&rows, axis)
    }

    /// Splits an axis into parts of these extents, which must add up to its own.
    #[must_use]
    #[track_caller]
    pub fn split(&self, extents: &[usize], axis: impl Axis) -> Vec<Self> {
        let axis = axis!(self, "split", axis, |refused| vec![refused; extents.len().max(1)]);
        let extent = self.shape().dims().get(axis).copied();
        let sum = extents.iter().fold(0usize, |sum, &extent| sum.saturating_add(extent));
        if extent != Some(sum) || extents.contains(&0) {
            let message = format!("parts of {extents:?} elements do not make up axis {axis} of {}", self.shape());
            return vec![self.refuse("split", ErrorKind::Shape, message); extents.len().max(1)];
        }
        let mut parts = Vec::with_capacity(extents.len());
        let mut start = 0;
        for extent in extents {
            parts.push(self.slice(axis, start..start + extent));
            start += extent;
        }
        parts
    }

    /// Splits an axis into `parts` parts, like PyTorch's `chunk`: `⌈extent/parts⌉` elements each, fewer in the last.
    /// There are fewer parts if these use up the elements.
    #[must_use]
    #[track_caller]
    pub fn chunk(&self, parts: usize, axis: impl Axis) -> Vec<Self> {
        let axis = axis!(self, "chunk", axis, |refused| vec![refused]);
        if let Some(poisoned) = self.without_axis("chunk", axis) {
            return vec![poisoned];
        }
        let extent = self.shape()[axis];
        if parts == 0 {
            return vec![self.refuse("chunk", ErrorKind::Argument, "0 parts")];
        }
        let each = extent.div_ceil(parts);
        let mut chunks = Vec::new();
        for start in (0..extent).step_by(each) {
            chunks.push(self.slice(axis, start..extent.min(start + each)));
        }
        chunks
    }

    /// Removes an axis of extent 1.
    #[must_use]
    #[track_caller]
    pub fn squeeze(&self, axis: impl Axis) -> Self {
        let axis = axis!(self, "squeeze", axis);
        let shape = self.shape();
        if shape.dims().get(axis) != Some(&1) {
            let message = format!("axis {axis} of {shape}, which is not one of extent 1");
            return self.refuse("squeeze", ErrorKind::Shape, message);
        }
        self.reshape(&[&shape.dims()[..axis], &shape.dims()[axis + 1..]].concat()[..])
    }

    /// Adds a new axis of extent 1 before axis `axis`, or after the last one.
    #[must_use]
    #[track_caller]
    pub fn unsqueeze(&self, axis: impl Axis) -> Self {
        let shape = self.shape();
        let axis = axis!(self, "unsqueeze", axis, of shape.rank() + 1);
        if axis > shape.rank() || shape.rank() == MAX_RANK {
            let message = format!("a new axis {axis} in {shape}; there may be {MAX_RANK} axes");
            return self.refuse("unsqueeze", ErrorKind::Shape, message);
        }
        self.reshape(&[&shape.dims()[..axis], &[1], &shape.dims()[axis..]].concat()[..])
    }

    /// Swaps two axes. See [`Var::t`] for the last two, [`Var::permute`] for any order.
    #[must_use]
    #[track_caller]
    pub fn transpose(&self, a: impl Axis, b: impl Axis) -> Self {
        let (a, b) = (axis!(self, "transpose", a), axis!(self, "transpose", b));
        if let Some(poisoned) = self.without_axis("transpose", a.max(b)) {
            return poisoned;
        }
        let mut axes: Vec<_> = (0..self.shape().rank()).collect();
        axes.swap(a, b);
        self.permute(&axes)
    }

    /// Slices several axes, starting with the first: `x.at((.., 1..3, 0))`.
    ///
    /// A number selects one element and removes its axis. Axes without a range stay whole. Numbers below 0 count from
    /// the end: `x.at((.., -1))` is the last column, `x.at(-3..)` the last three rows. Clippy takes `1..-1` for an
    /// empty range: write `x.at(1..).at(..-1)`, or allow its lint `reversed_empty_ranges`.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let tape = Tape::new(&device);
    /// let x = tape.input(&Tensor::from_slice(&device, [2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?);
    /// assert_eq!(x.at((.., 1..)).to_vec()?, [2.0, 3.0, 5.0, 6.0]);
    /// assert_eq!(x.at((1, ..2)).to_vec()?, [4.0, 5.0]);
    /// assert_eq!(x.at(0).shape(), Shape::from([3]));
    /// assert_eq!(x.at((.., -1)).to_vec()?, [3.0, 6.0]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// Errors: more ranges than axes, a range that is empty or past the end.
    #[doc(alias("select", "narrow"))]
    #[must_use]
    #[track_caller]
    pub fn at(&self, ranges: impl Ranges) -> Self {
        let (ranges, shape) = (ranges.ranges(), self.shape());
        if ranges.len() > shape.rank() {
            let message = format!("{} ranges for the {} axes of {shape}", ranges.len(), shape.rank());
            return self.refuse("at", ErrorKind::Shape, message);
        }
        let mut result = self.clone();
        let mut dims = Vec::new();
        for (axis, range) in ranges.iter().enumerate() {
            let range_of = match range.within(shape[axis]) {
                Ok(range_of) => range_of,
                Err(before) => {
                    let message = format!("{before} is not within axis {axis}, of extent {}", shape[axis]);
                    return self.refuse("at", ErrorKind::Shape, message);
                }
            };
            if range_of != (0..shape[axis]) {
                result = result.slice(axis, range_of.clone());
            }
            if !range.takes_one() {
                dims.push(range_of.len());
            }
        }
        if result.error().is_some() || ranges.iter().all(|range| !range.takes_one()) {
            return result;
        }
        dims.extend(&shape.dims()[ranges.len()..]);
        result.reshape(&dims[..])
    }

    /// Moves the elements of an axis by `places` towards its end, and the last ones to its start. A negative number
    /// moves them the other way.
    #[must_use]
    #[track_caller]
    pub fn roll(&self, places: isize, axis: impl Axis) -> Self {
        let axis = axis!(self, "roll", axis);
        if let Some(poisoned) = self.without_axis("roll", axis) {
            return poisoned;
        }
        let extent = self.shape()[axis];
        let towards = places.unsigned_abs() % extent;
        match if places < 0 { (extent - towards) % extent } else { towards } {
            0 => self.clone(),
            moved => {
                let cut = extent - moved;
                Self::concat(&[&self.slice(axis, cut..extent), &self.slice(axis, 0..cut)], axis)
            }
        }
    }

    /// Repeats the value along each axis: `[d₀, d₁, …]` → `[r₀·d₀, r₁·d₁, …]`, like NumPy's `tile` and PyTorch's
    /// `repeat`. More numbers than axes add axes before the first.
    #[doc(alias = "repeat")]
    #[must_use]
    #[track_caller]
    pub fn tile(&self, times: &[usize]) -> Self {
        let shape = self.shape();
        if times.len() < shape.rank() || times.len() > MAX_RANK || times.contains(&0) {
            let message = format!("{times:?} does not say how often to repeat each axis of {shape}");
            return self.refuse("tile", ErrorKind::Shape, message);
        }
        if self.error().is_some() {
            return self.clone();
        }
        let lead = times.len() - shape.rank();
        let mut result = self.reshape(&[&vec![1; lead][..], shape.dims()].concat()[..]);
        for (axis, &times) in times.iter().enumerate().filter(|(_, times)| **times > 1) {
            result = result.repeated("tile", axis, axis, times);
        }
        result
    }

    /// Repeats each element of an axis in a row: `[.., d, ..]` → `[.., times·d, ..]`, like NumPy's `repeat`.
    #[doc(alias = "repeat")]
    #[must_use]
    #[track_caller]
    pub fn repeat_interleave(&self, times: usize, axis: impl Axis) -> Self {
        let axis = axis!(self, "repeat_interleave", axis);
        if let Some(poisoned) = self.without_axis("repeat_interleave", axis) {
            return poisoned;
        }
        if times == 0 {
            return self.refuse("repeat_interleave", ErrorKind::Argument, "0 times");
        }
        self.repeated("repeat_interleave", axis, axis + 1, times)
    }

    /// The value with a new axis of `times` repetitions, which is then joined with axis `axis`.
    #[track_caller]
    fn repeated(&self, op: &'static str, axis: usize, new: usize, times: usize) -> Self {
        let shape = self.shape();
        let (outer, inner): (usize, usize) =
            (shape.dims()[..axis].iter().product(), shape.dims()[axis + 1..].iter().product());
        let (view, repeated) = match new == axis {
            true => ([outer, 1, shape[axis] * inner, 1], [outer, times, shape[axis] * inner, 1]),
            false => ([outer * shape[axis], 1, inner, 1], [outer * shape[axis], times, inner, 1]),
        };
        let Some(extent) = shape[axis].checked_mul(times) else {
            return self.refuse(
                op,
                ErrorKind::Argument,
                format!("{times} times the {} elements of an axis", shape[axis]),
            );
        };
        self.reshape(view).expand(repeated).reshape(shape.with(axis, extent))
    }

    /// The diagonal of the last two axes, which must have equal extents: `[.., n, n]` → `[.., n]`.
    #[must_use]
    #[track_caller]
    pub fn diagonal(&self) -> Self {
        let shape = self.shape();
        let [outer @ .., rows, columns] = shape.dims() else {
            return self.refuse("diagonal", ErrorKind::Shape, format!("needs at least two axes, the shape is {shape}"));
        };
        let (&n, outer) = (rows, outer.to_vec());
        if n != *columns {
            return self.refuse(
                "diagonal",
                ErrorKind::Shape,
                format!("the last two axes must be equal, the shape is {shape}"),
            );
        }
        // With n more elements, rows of n + 1 start on the diagonal.
        let flat = self.reshape([outer.iter().product(), n * n]).pad(&[(0, 0), (0, n)], 0.0);
        let on_it = flat.reshape([outer.iter().product(), n, n + 1]).slice(2, 0..1);
        on_it.reshape(&[&outer[..], &[n]].concat()[..])
    }
}
