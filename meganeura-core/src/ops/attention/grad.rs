//! The gradient of attention with respect to queries, keys and values.

use super::{Attention, AttentionShape, launch, native, units};
use crate::kernel::launch::{Argument, Caps, Variant};
use crate::kernel::native::{OutView, Real, Scratch, View};
use crate::ops::{Bf16, Kernel, Primitive};
use crate::{Result, Shape, TensorType};

/// `dq`, `dk` and `dv` of [`Attention`].
///
/// Shapes: `q`, `k`, `v`, `lse [B…, L, 2]`, `delta [B…, L]`, `dy [B…, L, E]`, and the bias if there is one → the
/// shapes of `q`, `k` and `v`. Delta is `Σ dy·y − dlse`.
/// Gradient: by operations on the scores, which are then in memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AttentionGrad {
    pub(crate) forward: Attention,
}

impl Primitive for AttentionGrad {
    fn name(&self) -> &'static str {
        "attention_grad"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        self.forward.check_gradient(x)?;
        Ok(x[..3].to_vec())
    }

    fn multiply_adds(&self, x: &[TensorType], y: &[TensorType]) -> u64 {
        let _ = y;
        let (q, k, dy) = (x[0].shape, x[1].shape, x[5].shape);
        let keys = k[k.rank() - 2] as u64;
        // The scores, `dq` and `dk` have the width of the queries; `dy·vᵀ` and `dv` have that of the values.
        (3 * q.elements() as u64 + 2 * dy.elements() as u64) * keys
    }
}

impl Attention {
    /// Checks the operands of [`AttentionGrad`].
    pub(super) fn check_gradient(&self, x: &[TensorType]) -> Result<(), String> {
        let [q, k, v, lse, delta, dy, bias @ ..] = x else {
            return Err(format!("takes six or seven operands, not {}", x.len()));
        };
        let forward = self.check(&[&[*q, *k, *v], bias].concat())?;
        let queries = Shape::new(&q.shape.dims()[..q.shape.rank() - 1]);
        if forward != [*dy, *lse] || *delta != q.with_shape(queries) {
            return Err(format!(
                "needs results {} and {} and a delta {queries}, not {dy}, {lse} and {delta}",
                forward[0], forward[1]
            ));
        }
        Ok(())
    }
}

impl Kernel for AttentionGrad {
    /// True for `q`, `k`, `v`, `dy` and the bias.
    fn reads_strided(&self, index: usize) -> bool {
        !(3..=4).contains(&index)
    }

    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        native::backward(&self.forward, x, y, scratch);
    }

    fn bf16(&self, x: &[TensorType], _: &[TensorType], caps: &Caps) -> Option<Bf16> {
        units::bf16(AttentionShape::of(x[0].shape.dims(), x[2].shape.dims()), &[0, 1, 2, 5], true, caps)
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], caps: &Caps) -> Vec<Variant> {
        if [0, 1, 2, 5].iter().any(|&k: &usize| x[k].format.is_bf16()) {
            return units::backward(&self.forward, x, caps);
        }
        launch::backward(&self.forward, x, caps)
    }
}
