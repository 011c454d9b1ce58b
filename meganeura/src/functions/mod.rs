//! What people know from NumPy and PyTorch, as methods of [`Var`] written on the operations of [`ops`](crate::ops).
//!
//! Whatever takes an axis takes one that is there: an axis out of range is an error that names it and the shape. Axes are counted from
//! the first. What has a gradient has it from the operations below.
//!
//! | where | what |
//! |---|---|
//! | `arrange.rs` | `stack`, `split`, `chunk`, `squeeze`, `unsqueeze`, `transpose`, `at`, `roll`, `tile`, `repeat_interleave`, `diagonal` |
//! | `pick.rs` | `index_select`, `one_hot`, `masked_fill`, `tril`, `triu`, `argmax`, `argmin` |
//! | `numeric.rs` | `norm`, `norm_over`, `logsumexp`, `std`, `cumprod`, `all`, `any`, `random_normal` |
//! | `einsum.rs` | `einsum` |
//!
//! A [`Tensor`](crate::Tensor) has them all through [`Tensor::map`](crate::Tensor::map).

mod arrange;
mod einsum;
mod numeric;
mod pick;
mod ranges;

pub use ranges::{AxisRange, Ranges};

use crate::{ErrorKind, Var};

impl Var {
    /// This value poisoned, if it has no such axis.
    #[track_caller]
    fn without_axis(&self, op: &'static str, axis: usize) -> Option<Self> {
        let rank = self.shape().rank();
        (axis >= rank).then(|| self.refuse(op, ErrorKind::Shape, format!("axis {axis} of a shape of {rank} axes")))
    }
}
