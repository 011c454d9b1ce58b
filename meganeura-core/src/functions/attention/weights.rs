//! The gradient of attention as products of whole matrices, in blocks of a bounded number of scores.

use super::{group_of, product_across_heads, product_of_heads};
use crate::functions::Vjp;
use crate::ops::attention::{Attention, AttentionWeights};
use crate::{Result, Var};

impl Vjp for AttentionWeights {
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
}

/// The most scores of a block of [`Attention::gradients_in_blocks`], with as many gradients of scores: two matrices of
/// 512 MiB in single precision.
pub(super) const MOST_SCORES: usize = 1 << 27;

impl Attention {
    /// `dq`, `dk`, `dv` and the gradient of the bias if there is one, by products of whole matrices.
    ///
    /// The operands are those of [`AttentionGrad`](super::AttentionGrad). Blocks of heads and queries run one after the
    /// other, so at most `most` scores are in memory at a time, and at least those of one query. The queries of a
    /// causal head are not split, because the mask depends on their positions; there the minimum is one head. Heads
    /// that share keys are not split either. This takes five products where the kernels of
    /// [`AttentionGrad`](super::AttentionGrad) take seven.
    pub(super) fn gradients_in_blocks(&self, x: &[&Var], most: usize) -> Vec<Var> {
        self.gradients_after(x, most, &mut Vec::new())
    }

    /// The gradients of one block, or of several. They wait for `done`, the gradients of the block before, and become
    /// what the next block waits for. Otherwise the planner would run the products of all blocks last.
    fn gradients_after(&self, x: &[&Var], most: usize, done: &mut Vec<Var>) -> Vec<Var> {
        let [q, k, _, _, _, dy, bias @ ..] = x else { unreachable!("the caller has six operands or seven") };
        let shape = q.shape();
        let (queries, keys) = (shape.rank() - 2, k.shape()[shape.rank() - 2]);
        let extents = &shape.dims()[..=queries];
        let splits = if self.causal { &extents[..queries] } else { extents };
        let scores = extents.iter().product::<usize>().saturating_mul(keys);
        // A group of heads stays together.
        let group = group_of(q, k);
        let least = |axis: usize| if axis + 1 == queries { group } else { 1 };
        let mut splits = splits.iter().enumerate();
        let axis = if scores > most { splits.position(|(axis, &extent)| extent > least(axis)) } else { None };
        let Some(axis) = axis else {
            let waiting = q.after(done);
            let operands: Vec<_> = [&waiting].into_iter().chain(x[1..].iter().copied()).collect();
            let [weights, slopes] = q.record_many(AttentionWeights { forward: self.clone() }, &operands);
            let of_keys = product_across_heads(&slopes, q, group);
            let [dq, dk] = [product_of_heads(&slopes, k), of_keys].map(|product| product.scale(self.scale.0));
            *done = vec![dq, dk, product_across_heads(&weights, dy, group)];
            done.extend(bias.first().map(|_| slopes));
            return done.clone();
        };
        // Operands and gradients 1 and 2 are those of keys and values, which all queries share.
        let is_split = |index: usize| axis < queries || ![1, 2].contains(&index);
        let step = extents[axis].div_ceil(scores.div_ceil(most)).next_multiple_of(least(axis));
        let mut joined = vec![Vec::new(); x.len() - 3];
        for first in (0..extents[axis]).step_by(step) {
            let range = first..extents[axis].min(first + step);
            let part = |(index, x): (usize, &&Var)| match is_split(index) {
                true if [1, 2].contains(&index) => x.slice(axis, range.start / least(axis)..range.end / least(axis)),
                true => x.slice(axis, range.clone()),
                false => (*x).clone(),
            };
            let parts: Vec<_> = x.iter().enumerate().map(part).collect();
            let block = self.gradients_after(&parts.iter().collect::<Vec<_>>(), most, done);
            for (result, (parts, gradient)) in joined.iter_mut().zip(block).enumerate() {
                let sum = if is_split(result) { None } else { parts.pop() };
                parts.push(sum.map_or_else(|| gradient.clone(), |sum: Var| sum + &gradient));
                done[result] = parts.last().expect("just pushed").clone();
            }
        }
        let join = |parts: Vec<Var>| match &parts[..] {
            [whole] => whole.clone(),
            parts => Var::concat(&parts.iter().collect::<Vec<_>>(), axis),
        };
        joined.into_iter().map(join).collect()
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::functions::case::{Case, Special, Tested};

    impl Tested for AttentionWeights {
        fn special() -> &'static [Special] {
            &[Special::AtBaseline, Special::WithoutOnnx]
        }

        fn cases() -> Vec<Case> {
            crate::functions::attention::grad::cases::gradient_cases(|forward| Self { forward })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Precision;
    use crate::graph::Exact;
    use crate::kernel::launch::Caps;
    use crate::plan::{Plan, Preferences, Request, Target};
    use crate::{Device, Result, Tape, Tensor, Var};

    /// The operands of a gradient, for an attention of `[b…, l, d]` to `[b…, s, d]`, with values of `e` features.
    fn operands(device: &Device, b: &[usize], [l, s, d, e]: [usize; 4]) -> Result<Vec<Var>> {
        grouped(device, b, b, [l, s, d, e])
    }

    /// Likewise, with keys and values of other leading axes.
    fn grouped(device: &Device, b: &[usize], keys: &[usize], [l, s, d, e]: [usize; 4]) -> Result<Vec<Var>> {
        let tape = Tape::new(device);
        let input =
            |shape: &[usize], seed: u64| Ok::<_, crate::Error>(tape.input(&Tensor::randn(device, shape, seed)?));
        let of = |shape: &[usize]| [b, shape].concat();
        let of_keys = |shape: &[usize]| [keys, shape].concat();
        let [q, k, v] = [input(&of(&[l, d]), 1)?, input(&of_keys(&[s, d]), 2)?, input(&of_keys(&[s, e]), 3)?];
        // A log-sum-exp above most scores: a smaller one would make weights large.
        let lse = input(&of(&[l, 2]), 4)? + 1.0;
        Ok(vec![q, k, v, lse, input(&of(&[l]), 5)?, input(&of(&[l, e]), 6)?, input(&of(&[l, s]), 7)?])
    }

    #[test]
    fn blocks_of_heads_and_queries_give_the_gradients_of_one_pass() -> Result<()> {
        let device = Device::cpu_with(Precision::Double);
        let (l, s) = (7, 5);
        let own = operands(&device, &[3, 2], [l, s, 4, 3])?;
        let shared = grouped(&device, &[3, 4], &[3, 2], [l, s, 4, 3])?;
        let cases = [(&own, 6, false), (&own, 7, false), (&own, 6, true), (&shared, 7, false), (&shared, 6, true)];
        for (x, operands, causal) in cases {
            let group = x[0].shape()[1] / x[1].shape()[1];
            let x: Vec<_> = x[..operands].iter().collect();
            let forward = Attention { scale: Exact(0.4), causal };
            let whole: [Var; 3] = x[0].record_many(super::super::AttentionGrad { forward: forward.clone() }, &x);
            // All at once; some heads; one head; some queries of it, the last fewer; one query.
            for most in [1000, 70, 35, 15, 1].into_iter().filter(|most| !causal || *most >= group * l * s) {
                let blocks = forward.gradients_in_blocks(&x, most);
                assert_eq!(blocks.len(), operands - 3);
                for (block, whole) in blocks.iter().zip(&whole) {
                    let (block, whole) = (block.to_tensor()?.to_f64_vec()?, whole.to_tensor()?.to_f64_vec()?);
                    let differs = block.iter().zip(&whole).any(|(a, b)| (a - b).abs() > 1e-12 * (1.0 + b.abs()));
                    assert!(!differs, "{causal} {most}: {block:?} is not {whole:?}");
                }
            }
        }
        Ok(())
    }

    #[test]
    fn one_block_of_scores_is_in_memory_at_a_time() -> Result<()> {
        let [l, s, d] = [256, 128, 16];
        let x = operands(&Device::cpu(), &[2, 2], [l, s, d, d])?;
        let forward = Attention { scale: Exact(0.4), causal: false };
        let preferences = Preferences::default();
        // Bytes of memory for intermediate values: with all scores, a head's, an eighth of a head's.
        let [all, head, eighth] = [4 * l * s, l * s, l * s / 8].map(|most| {
            let gradients = forward.gradients_in_blocks(&x[..6].iter().collect::<Vec<_>>(), most);
            let outputs = gradients.iter().map(Var::id).collect::<Result<Vec<_>>>()?;
            let target = Target::Gpu { caps: Caps::DISCRETE, preferences: &preferences };
            let plan = x[0]
                .tape()
                .with_graph(|graph| Plan::new(&Request { graph, outputs: &outputs, assigns: &[] }, target))?;
            Ok::<_, crate::Error>(plan.memory().slots.iter().sum::<usize>())
        });
        let (scores, others) = (2 * 4 * l * s, 4 * d * (4 * l + 2 * 4 * s) * 2);
        let (all, head, eighth) = (all?, head?, eighth?);
        assert!(all >= 4 * scores, "{all}");
        assert!((scores..scores + others).contains(&head), "{head} of {all}");
        assert!(eighth < scores / 8 + others, "{eighth} of {all}");
        Ok(())
    }
}
