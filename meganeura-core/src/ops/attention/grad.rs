//! The gradient of attention with respect to queries, keys and values.

use super::{Attention, AttentionWeights, launch, native};
use crate::kernel::launch::{Argument, Caps, Variant};
use crate::kernel::native::{OutView, Real, Scratch, View};
use crate::ops::{Kernel, Primitive};
use crate::tape::Var;
use crate::{Result, Shape, TensorType};

/// `dq`, `dk` and `dv` of [`Attention`].
///
/// Shapes: `q`, `k`, `v`, `lse [B…, L, 2]`, `delta [B…, L]`, `dy [B…, L, E]`, and the bias if there is one → the
/// shapes of `q`, `k` and `v`. Delta is `Σ dy·y − dlse`.
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
        self.forward.check_gradient(x)?;
        Ok(x[..3].to_vec())
    }

    /// Let `w` be the weights, `ds` the gradients of the scores, and `a`, `b` and `c` the cotangents of
    /// `dq = scale·ds·k`, `dk = scale·dsᵀ·q` and `dv = wᵀ·dy`. Then the cotangent of `w` is `dy·cᵀ`, that of `ds` is
    /// `scale·(a·kᵀ + q·bᵀ)`, and [`AttentionWeights`] has the rest.
    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let [q, k, _, _, _, dresult] = &x[..6] else { unreachable!("the type rule counted the operands") };
        let forward = AttentionWeights { forward: self.forward.clone() };
        let results: [Var; 2] = q.record_many(forward.clone(), &x.iter().collect::<Vec<_>>());
        let [weights, ds] = &results;
        let [a, b, c] = [0, 1, 2].map(|result| dy[result].as_ref());
        let sum = |terms: [Option<Var>; 2]| terms.into_iter().flatten().reduce(|a, b| a + b);
        let scale = |x: Var| x.scale(self.forward.scale.0);
        let of_ds = sum([a.map(|a| a.matmul(&k.t())), b.map(|b| q.matmul(&b.t()))]).map(scale);
        let of_weights = c.map(|c| dresult.matmul(&c.t()));
        let mut gradients = forward.vjp(x, &results, &[of_weights, of_ds])?;
        let direct = [
            (0, b.map(|b| scale(ds.matmul(b)))),
            (1, a.map(|a| scale(ds.t().matmul(a)))),
            (5, c.map(|c| weights.matmul(c))),
        ];
        for (operand, term) in direct {
            gradients[operand] = sum([gradients[operand].take(), term]);
        }
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
        gradient_cases(|forward| Self { forward })
    }
}

/// Cases of an operation that takes the operands of [`AttentionGrad`].
#[cfg(feature = "testing")]
pub(super) fn gradient_cases<P: Into<crate::ops::Op>>(op: impl Fn(Attention) -> P) -> Vec<crate::ops::case::Case> {
    use crate::graph::Exact;
    use crate::ops::case::Case;
    let of = |[l, s, d, e]: [usize; 4], causal, bias: bool| {
        // A log-sum-exp above most scores, since the weights of any other would be large.
        let case = Case::new(op(Attention { scale: Exact(0.4), causal }));
        let case = case.input(&[2, l, d]).input(&[2, s, d]).input(&[2, s, e]);
        let case = case.input(&[2, l, 2]).input(&[2, l]).input(&[2, l, e]).tolerance(2e-5).range(-0.5, 1.5);
        if bias { case.input(&[2, l, s]) } else { case }
    };
    // Some queries see no key.
    let hidden = |extents, causal| {
        let case = of(extents, causal, true);
        let build = case.build.clone();
        let build = move |x: &[Var]| build(&[&x[..6], &[super::hide(&x[6])]].concat());
        Case { build: std::sync::Arc::new(build), name: format!("{} hidden", case.name), recorded: true, ..case }
    };
    vec![
        of([5, 7, 3, 4], false, true),
        of([4, 6, 3, 2], true, false),
        of([9, 5, 8, 8], true, false),
        // More than a tile of queries and keys.
        of([70, 67, 12, 9], false, false),
        of([66, 68, 4, 8], true, true),
        hidden([5, 7, 3, 4], false),
        hidden([5, 4, 2, 3], true),
        hidden([70, 130, 4, 9], false),
        hidden([130, 67, 8, 5], true),
    ]
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

    /// The cotangents of the operands of [`AttentionGrad`], from those of the scores and of `dy·vᵀ − delta`.
    pub(super) fn through_scores(&self, x: &[Var], of_scores: Var, of_slopes: Option<&Var>) -> Vec<Option<Var>> {
        let [q, k, v, lse, _, dy] = &x[..6] else { unreachable!("the type rule counted the operands") };
        let last = of_scores.shape().rank() - 1;
        let scaled = of_scores.scale(self.scale.0);
        let mut gradients = vec![
            Some(scaled.matmul(k)),
            Some(scaled.t().matmul(q)),
            of_slopes.map(|of_slopes| of_slopes.t().matmul(dy)),
            Some(-of_scores.sum_keep(&[last]).expand(lse.shape())),
            of_slopes.map(|of_slopes| -of_slopes.sum_over(&[last])),
            of_slopes.map(|of_slopes| of_slopes.matmul(v)),
        ];
        gradients.extend(x.get(6).map(|_| Some(of_scores)));
        gradients
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
