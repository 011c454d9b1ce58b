//! The gradient of attention as products of whole matrices, in blocks of a bounded number of scores.

use super::{Attention, launch, native};
use crate::kernel::launch::{Argument, Caps, Variant};
use crate::kernel::native::{OutView, Real, Scratch, View};
use crate::ops::{Kernel, Primitive};
use crate::{Result, TensorType};

/// The weights `w` of [`Attention`], and `ds = w·(dy·vᵀ − delta)`, the gradients of its scores; both 0 for hidden keys.
///
/// Shapes: those of [`AttentionGrad`](super::AttentionGrad) → `w [B…, L, S]`, `ds [B…, L, S]`.
/// Gradient: by operations on the scores.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AttentionWeights {
    pub(crate) forward: Attention,
}

impl Primitive for AttentionWeights {
    fn name(&self) -> &'static str {
        "attention_weights"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        self.forward.check_gradient(x)?;
        let last = x[0].shape.rank() - 1;
        let scores = x[0].with_shape(x[0].shape.with(last, x[1].shape[last - 1]));
        Ok(vec![scores; 2])
    }

    fn multiply_adds(&self, x: &[TensorType], _: &[TensorType]) -> u64 {
        let (q, k, dy) = (x[0].shape, x[1].shape, x[5].shape);
        (q.elements() as u64 + dy.elements() as u64) * k[k.rank() - 2] as u64
    }
}

impl Kernel for AttentionWeights {
    /// True for `q`, `k`, `v`, `dy` and the bias.
    fn reads_strided(&self, index: usize) -> bool {
        !(3..=4).contains(&index)
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        native::weights(&self.forward, x, y, scratch);
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], caps: &Caps) -> Vec<Variant> {
        launch::weights(&self.forward, x, caps)
    }
}
