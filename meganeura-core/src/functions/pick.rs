//! Selection of elements, by index and by condition.

use super::axis::{Axis, axis};
use crate::{ErrorKind, Var};

impl Var {
    /// Selects slices of an axis by index: `[.., R, ..]` and `index [K]` of integers → `[.., K, ..]`. For rows of a
    /// table, [`embedding`](Self::embedding) does this along the first axis.
    ///
    /// Errors: those of [`embedding`](Self::embedding).
    #[must_use]
    #[track_caller]
    pub fn index_select(&self, axis: impl Axis, index: &Self) -> Self {
        let axis = axis!(self, "index_select", axis);
        if let Some(poisoned) = self.without_axis("index_select", axis) {
            return poisoned;
        }
        if let Some(error) = index.error() {
            return self.fail(error);
        }
        if index.shape().rank() != 1 {
            let message = format!("takes one index for each slice, not {}", index.shape());
            return self.refuse("index_select", ErrorKind::Shape, message);
        }
        let mut axes: Vec<_> = (0..self.shape().rank()).collect();
        axes[..=axis].rotate_right(1);
        let selected = self.permute(&axes).embedding(index);
        axes = (0..self.shape().rank()).collect();
        axes[..=axis].rotate_left(1);
        selected.permute(&axes)
    }

    /// One row for each index, with 1 at that index and 0 elsewhere: integers `[I…]` → `[I…, classes]`. An index past
    /// the end gives a row of zeros. Has no gradient.
    #[must_use]
    #[track_caller]
    pub fn one_hot(&self, classes: usize) -> Self {
        let numbers = self.as_index().to_float().unsqueeze(self.shape().rank());
        numbers.eq(self.tape().iota([classes], 0))
    }

    /// Replaces elements by `value` where the mask is not 0, like PyTorch's `masked_fill`. The mask, the result of a
    /// comparison for example, broadcasts to this value's shape.
    ///
    /// So a mask says what is replaced. A mask of attention, [`Mask::Visible`](super::Mask::Visible), says the
    /// opposite: which keys stay visible.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let x = Tape::new(&device).input(&Tensor::from_slice(&device, [3], &[1.0, -2.0, 3.0])?);
    /// let is_negative = x.lt(&x.tape().scalar(0.0));
    /// assert_eq!(x.masked_fill(&is_negative, 9.0).to_vec()?, [1.0, 9.0, 3.0]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn masked_fill(&self, mask: &Self, value: f64) -> Self {
        if let Some(error) = mask.error() {
            return self.fail(error);
        }
        if self.shape().broadcast(&mask.shape()) != Some(self.shape()) {
            let message = format!("a mask {} does not broadcast to {}", mask.shape(), self.shape());
            return self.refuse("masked_fill", ErrorKind::Shape, message);
        }
        mask.where_cond(&self.scalar(value), self)
    }

    /// The lower triangle of the last two axes: 0 above the diagonal. `diagonal` moves the diagonal to the right, or to
    /// the left if it is negative.
    #[must_use]
    #[track_caller]
    pub fn tril(&self, diagonal: isize) -> Self {
        self.triangle("tril", diagonal, |a, b| a.le(b))
    }

    /// The upper triangle of the last two axes: 0 below the diagonal. `diagonal` moves the diagonal to the right, or to
    /// the left if it is negative.
    #[must_use]
    #[track_caller]
    pub fn triu(&self, diagonal: isize) -> Self {
        self.triangle("triu", diagonal, |a, b| a.ge(b))
    }

    /// Keeps the elements whose column compares so with the diagonal's.
    #[track_caller]
    #[expect(clippy::cast_precision_loss, reason = "extents are far below 2^53")]
    fn triangle(&self, op: &'static str, diagonal: isize, keeps: fn(&Self, &Self) -> Self) -> Self {
        let shape = self.shape();
        let &[.., rows, columns] = shape.dims() else {
            return self.refuse(op, ErrorKind::Shape, format!("needs at least two axes, the shape is {shape}"));
        };
        let tape = self.tape();
        let diagonal = tape.iota([rows, 1], 0) + self.constant(diagonal as f64);
        let place = tape.iota([1, columns], 1);
        keeps(&place, &diagonal).where_cond(self, &self.constant(0.0))
    }
}
