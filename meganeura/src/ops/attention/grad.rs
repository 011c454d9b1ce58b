//! The gradient of attention with respect to queries, keys and values.

use super::{Attention, launch, native};
use crate::kernel::launch::{Argument, Caps, Variant};
use crate::kernel::native::{OutView, Real, Scratch, View};
use crate::ops::{Kernel, Primitive};
use crate::tape::Var;
use crate::{Result, Shape, TensorType};

/// `dq`, `dk` and `dv` of [`Attention`].
///
/// Shapes: `q`, `k`, `v`, `spread [B…, L, 2]`, `drift [B…, L]`, `dy [B…, L, E]`, and the bias if there is one → the
/// shapes of `q`, `k` and `v`. The drift is `Σ dy·y − dspread`.
/// Gradient: by operations on the scores, which are then in memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AttentionGrad {
    pub(super) forward: Attention,
}

impl Primitive for AttentionGrad {
    fn name(&self) -> &'static str {
        "attention_grad"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let [q, k, v, spread, drift, dy, bias @ ..] = x else {
            return Err(format!("takes six or seven operands, not {}", x.len()));
        };
        let forward = self.forward.check(&[&[*q, *k, *v], bias].concat())?;
        let queries = Shape::new(&q.shape.dims()[..q.shape.rank() - 1]);
        if forward != [*dy, *spread] || *drift != q.with_shape(queries) {
            return Err(format!(
                "needs results {} and {} and a drift {queries}, not {dy}, {spread} and {drift}",
                forward[0], forward[1]
            ));
        }
        Ok(vec![*q, *k, *v])
    }

    /// Let `w` be the weights, `p = dy·vᵀ − drift` and `ds = scale·w·p`, and let `a`, `b` and `c` be the cotangents of
    /// `dq = ds·k`, `dk = dsᵀ·q` and `dv = wᵀ·dy`. Then the cotangent of `ds` is `a·kᵀ + q·bᵀ`, that of `w` is `dy·cᵀ`
    /// plus the contribution through `ds`, and so on back to the scores.
    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let [q, k, v, spread, drift, dresult] = &x[..6] else { unreachable!("the type rule counted the operands") };
        let scale = self.forward.scale.0;
        let [weights, slopes] = self.forward.weights([q, k, v], x.get(6), [spread, drift, dresult]);
        let ds = (&weights * &slopes).scale(scale);
        let [a, b, c] = [0, 1, 2].map(|result| dy[result].as_ref());
        let sum = |terms: [Option<Var>; 3]| terms.into_iter().flatten().reduce(|a, b| a + b);
        let of_ds = sum([a.map(|a| a.matmul(&k.t())), b.map(|b| q.matmul(&b.t())), None]);
        let of_weights =
            sum([c.map(|c| dresult.matmul(&c.t())), of_ds.as_ref().map(|of_ds| (of_ds * &slopes).scale(scale)), None]);
        let Some(of_weights) = of_weights else { return Ok(vec![None; x.len()]) };
        let of_scores = of_weights * &weights;
        let of_slopes = of_ds.map(|of_ds| (of_ds * &weights).scale(scale));
        let last = weights.shape().rank() - 1;
        let scaled = of_scores.scale(scale);
        let mut gradients = vec![
            sum([Some(scaled.matmul(k)), b.map(|b| ds.matmul(b)), None]),
            sum([Some(scaled.t().matmul(q)), a.map(|a| ds.t().matmul(a)), None]),
            of_slopes.as_ref().map(|of_slopes| of_slopes.t().matmul(dresult)),
            Some(-of_scores.sum_keep(&[last]).expand(spread.shape())),
            of_slopes.as_ref().map(|of_slopes| -of_slopes.sum_over(&[last])),
            sum([of_slopes.map(|of_slopes| of_slopes.matmul(v)), c.map(|c| weights.matmul(c)), None]),
        ];
        gradients.extend(x.get(6).map(|_| Some(of_scores)));
        Ok(gradients)
    }

    fn multiply_adds(&self, x: &[TensorType], y: &[TensorType]) -> u64 {
        let _ = y;
        let (q, k, dy) = (x[0].shape, x[1].shape, x[5].shape);
        let keys = k[k.rank() - 2] as u64;
        // The scores, `dq` and `dk` have the width of the queries; `dy·vᵀ` and `dv` have that of the values.
        (3 * q.elements() as u64 + 2 * dy.elements() as u64) * keys
    }

    #[cfg(feature = "testing")]
    fn special() -> &'static [crate::ops::case::Special] {
        use crate::ops::case::Special::{AtBaseline, WithoutOnnx};
        &[AtBaseline, WithoutOnnx]
    }

    #[cfg(feature = "testing")]
    fn cases() -> Vec<crate::ops::case::Case> {
        use crate::graph::Exact;
        use crate::ops::case::Case;
        let of = |[l, s, d, e]: [usize; 4], causal, bias: bool| {
            let forward = Attention { scale: Exact(0.4), causal };
            // A spread above most scores, since the weights of any other would be large.
            let case = Case::new(Self { forward }).input(&[2, l, d]).input(&[2, s, d]).input(&[2, s, e]);
            let case = case.input(&[2, l, 2]).input(&[2, l]).input(&[2, l, e]).tolerance(2e-5).range(-0.5, 1.5);
            if bias { case.input(&[2, l, s]) } else { case }
        };
        vec![of([5, 7, 3, 4], false, true), of([4, 6, 3, 2], true, false), of([9, 5, 8, 8], true, false)]
    }
}

impl Kernel for AttentionGrad {
    /// True for `q`, `k`, `v` and the bias.
    fn reads_strided(&self, index: usize) -> bool {
        index < 3 || index == 6
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        native::backward(&self.forward, x, y, scratch);
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], caps: &Caps) -> Vec<Variant> {
        launch::backward(&self.forward, x, caps)
    }
}
