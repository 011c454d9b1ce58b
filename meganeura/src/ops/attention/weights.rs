//! The gradient of attention as products of whole matrices, for a bounded number of scores.

use super::{Attention, launch, native};
use crate::kernel::launch::{Argument, Caps, Variant};
use crate::kernel::native::{OutView, Real, Scratch, View};
use crate::ops::{Kernel, Primitive};
use crate::tape::Var;
use crate::{Result, TensorType};

/// The weights `w` of [`Attention`], and `ds = w·(dy·vᵀ − drift)`, the gradients of its scores; both 0 for hidden keys.
///
/// Shapes: those of [`AttentionGrad`](super::AttentionGrad) → `w [B…, L, S]`, `ds [B…, L, S]`.
/// Gradient: by operations on the scores.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AttentionWeights {
    pub(super) forward: Attention,
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

    /// Let `a` and `b` be the cotangents of `w` and `ds = w·p`. Then the cotangent of `p` is `b·w`, and that of the
    /// scores is `w·(a + b·p)`.
    fn vjp(&self, x: &[Var], y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let ([weights, slopes], [a, b]) = (y, dy) else { unreachable!("two results") };
        let of_scores = match (a, b) {
            (Some(a), Some(b)) => a * weights + b * slopes,
            (Some(a), None) => a * weights,
            (None, Some(b)) => b * slopes,
            (None, None) => return Ok(vec![None; x.len()]),
        };
        let of_slopes = b.as_ref().map(|b| b * weights);
        Ok(self.forward.through_scores(x, of_scores, of_slopes.as_ref()))
    }

    fn multiply_adds(&self, x: &[TensorType], _: &[TensorType]) -> u64 {
        let (q, k, dy) = (x[0].shape, x[1].shape, x[5].shape);
        (q.elements() as u64 + dy.elements() as u64) * k[k.rank() - 2] as u64
    }

    #[cfg(feature = "testing")]
    fn special() -> &'static [crate::ops::case::Special] {
        use crate::ops::case::Special::{AtBaseline, WithoutOnnx};
        &[AtBaseline, WithoutOnnx]
    }

    #[cfg(feature = "testing")]
    fn cases() -> Vec<crate::ops::case::Case> {
        super::grad::gradient_cases(|forward| Self { forward })
    }
}

impl Kernel for AttentionWeights {
    /// True for `q`, `k`, `v` and the bias.
    fn reads_strided(&self, index: usize) -> bool {
        index < 3 || index == 6
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        native::weights(&self.forward, x, y, scratch);
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], caps: &Caps) -> Vec<Variant> {
        launch::weights(&self.forward, x, caps)
    }
}

/// The most scores that a gradient stores, with as many gradients of scores: two matrices of 512 MiB in single
/// precision.
pub(super) const MOST_SCORES: usize = 1 << 27;

impl Attention {
    /// `dq`, `dk`, `dv` and the gradient of the bias if there is one, by products of whole matrices.
    ///
    /// The operands are those of [`AttentionGrad`](super::AttentionGrad). All scores are in memory. This takes five
    /// products where the kernels of [`AttentionGrad`](super::AttentionGrad) take seven.
    pub(super) fn gradients_by_products(&self, x: &[&Var]) -> Vec<Var> {
        let [q, k, _, _, _, dy, bias @ ..] = x else { unreachable!("the caller has six operands or seven") };
        let [weights, slopes] = q.record_many(AttentionWeights { forward: self.clone() }, x);
        let [dq, dk] = [slopes.matmul(k), slopes.t().matmul(q)].map(|product| product.scale(self.scale.0));
        let mut gradients = vec![dq, dk, weights.t().matmul(dy)];
        gradients.extend(bias.first().map(|_| slopes));
        gradients
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Precision;
    use crate::graph::Exact;
    use crate::prelude::*;

    #[test]
    fn products_give_the_gradients_of_one_pass() -> Result<()> {
        let device = Device::cpu_with(Precision::Double);
        let tape = Tape::new(&device);
        let input =
            |shape: &[usize], seed: u64| Ok::<_, crate::Error>(tape.input(&Tensor::randn(&device, shape, seed)?));
        let (b, l, s, d, e) = ([3, 2], 7, 5, 4, 3);
        let of = |rows: usize, columns: usize| [b[0], b[1], rows, columns];
        let mut x = vec![input(&of(l, d), 1)?, input(&of(s, d), 2)?, input(&of(s, e), 3)?];
        // Spreads above most scores: smaller ones would make weights large.
        x.push(input(&of(l, 2), 4)? + 1.0);
        x.push(input(&[b[0], b[1], l], 5)?);
        x.push(input(&of(l, e), 6)?);
        x.push(input(&of(l, s), 7)?);
        for (operands, causal) in [(6, false), (7, false), (6, true)] {
            let x: Vec<_> = x[..operands].iter().collect();
            let forward = Attention { scale: Exact(0.4), causal };
            let whole: [Var; 3] = x[0].record_many(super::super::AttentionGrad { forward: forward.clone() }, &x);
            let products = forward.gradients_by_products(&x);
            assert_eq!(products.len(), operands - 3);
            for (product, whole) in products.iter().zip(&whole) {
                let (product, whole) = (product.to_tensor()?.to_f64_vec()?, whole.to_tensor()?.to_f64_vec()?);
                let differs = product.iter().zip(&whole).any(|(a, b)| (a - b).abs() > 1e-12 * (1.0 + b.abs()));
                assert!(!differs, "{causal}: {product:?} is not {whole:?}");
            }
        }
        Ok(())
    }
}
