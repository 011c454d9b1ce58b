//! The gradient rule of the gradient of attention.

use super::{group_of, product_across_heads, product_of_heads};
use crate::functions::Vjp;
use crate::ops::attention::{Attention, AttentionGrad, AttentionWeights};
use crate::{Result, Var};

impl Vjp for AttentionGrad {
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
        let group = group_of(q, k);
        let of_ds = sum([a.map(|a| product_of_heads(a, &k.t())), b.map(|b| product_of_heads(q, &b.t()))]).map(scale);
        let of_weights = c.map(|c| product_of_heads(dresult, &c.t()));
        let mut gradients = forward.vjp(x, &results, &[of_weights, of_ds])?;
        let direct = [
            (0, b.map(|b| scale(product_of_heads(ds, b)))),
            (1, a.map(|a| scale(product_across_heads(ds, a, group)))),
            (5, c.map(|c| product_of_heads(weights, c))),
        ];
        for (operand, term) in direct {
            gradients[operand] = sum([gradients[operand].take(), term]);
        }
        Ok(gradients)
    }
}

impl Attention {
    /// The cotangents of the operands of [`AttentionGrad`], from those of the scores and of `dy·vᵀ − delta`.
    pub(crate) fn through_scores(&self, x: &[Var], of_scores: Var, of_slopes: Option<&Var>) -> Vec<Option<Var>> {
        let [q, k, v, lse, _, dy] = &x[..6] else { unreachable!("the type rule counted the operands") };
        let last = of_scores.shape().rank() - 1;
        let scaled = of_scores.scale(self.scale.0);
        let group = group_of(q, k);
        let mut gradients = vec![
            Some(product_of_heads(&scaled, k)),
            Some(product_across_heads(&scaled, q, group)),
            of_slopes.map(|of_slopes| product_across_heads(of_slopes, dy, group)),
            Some(-of_scores.sum_keep(&[last]).expand(lse.shape())),
            of_slopes.map(|of_slopes| -of_slopes.sum_over(&[last])),
            of_slopes.map(|of_slopes| product_of_heads(of_slopes, v)),
        ];
        gradients.extend(x.get(6).map(|_| Some(of_scores)));
        gradients
    }
}

#[cfg(feature = "testing")]
pub(super) mod cases {
    use super::*;
    use crate::functions::case::{Case, Special, Tested};

    /// Cases of an operation that takes the operands of [`AttentionGrad`].
    pub(in crate::functions::attention) fn gradient_cases<P: Into<crate::ops::Op>>(
        op: impl Fn(Attention) -> P,
    ) -> Vec<Case> {
        use crate::graph::Exact;
        let of = |[l, s, d, e]: [usize; 4], causal, bias: bool| {
            // A log-sum-exp above most scores, since the weights of any other would be large.
            let case = Case::new(op(Attention { scale: Exact(0.4), causal }));
            let case = case.input(&[2, l, d]).input(&[2, s, d]).input(&[2, s, e]);
            let case = case.input(&[2, l, 2]).input(&[2, l]).input(&[2, l, e]).tolerance(2e-5).range(-0.5, 1.5);
            if bias { case.input(&[2, l, s]) } else { case }
        };
        // Heads of queries that share one of keys and values.
        let grouped = |[heads, own]: [usize; 2], [l, s, d, e]: [usize; 4], causal, bias: bool| {
            let case = Case::new(op(Attention { scale: Exact(0.4), causal }));
            let case = case.input(&[heads, l, d]).input(&[own, s, d]).input(&[own, s, e]);
            let case = case.input(&[heads, l, 2]).input(&[heads, l]).input(&[heads, l, e]);
            let case = case.tolerance(2e-5).range(-0.5, 1.5);
            if bias { case.input(&[heads, l, s]) } else { case }
        };
        // Some queries see no key.
        let hidden = |extents, causal| {
            let case = of(extents, causal, true);
            let build = case.build.clone();
            let build = move |x: &[Var]| build(&[&x[..6], &[super::super::cases::hide(&x[6])]].concat());
            Case { build: std::sync::Arc::new(build), name: format!("{} hidden", case.name), recorded: true, ..case }
        };
        vec![
            of([5, 7, 3, 4], false, true),
            of([4, 6, 3, 2], true, false),
            of([9, 5, 8, 8], true, false),
            // More than a tile of queries and keys.
            of([70, 67, 12, 9], false, false),
            of([66, 68, 4, 8], true, true),
            grouped([4, 2], [5, 7, 3, 4], false, true),
            grouped([3, 1], [9, 5, 8, 8], true, false),
            grouped([2, 1], [66, 70, 4, 12], true, false),
            hidden([5, 7, 3, 4], false),
            hidden([5, 4, 2, 3], true),
            hidden([70, 130, 4, 9], false),
            hidden([130, 67, 8, 5], true),
        ]
    }

    impl Tested for AttentionGrad {
        fn special() -> &'static [Special] {
            &[Special::AtBaseline, Special::WithoutOnnx]
        }

        fn cases() -> Vec<Case> {
            gradient_cases(|forward| Self { forward })
        }
    }
}
