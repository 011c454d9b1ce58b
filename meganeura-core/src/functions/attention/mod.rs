//! Scaled dot-product attention: in one pass over the keys, or as products of matrices where that is faster.

mod grad;
mod mask;
mod weights;

pub use mask::Mask;

use std::panic::Location;

use crate::functions::Vjp;
use crate::functions::attention::weights::MOST_SCORES;
use crate::graph::Exact;
use crate::ops::attention::{
    Attention, AttentionGrad, AttentionShape, AttentionWeights, COSTLY, FEW, fits_in_registers,
};
use crate::{Error, ErrorKind, Precision, Result, Shape, Tape, Var};

impl Var {
    /// Scaled dot-product attention with this value as the queries: `softmax(q·kᵀ/√d + mask)·v`, over the last two axes
    ///
    /// Shapes: `q [.., L, d]`, `key [.., S, d]`, `value [.., S, e]`, with leading axes as for [`Var::matmul`]; the mask
    /// broadcasts to `[.., L, S]` → `[.., L, e]`.
    ///
    /// A query that sees no key gets 0, and so do all gradients that flow through it, as in PyTorch's
    /// `scaled_dot_product_attention`. A key that a mask hides still has a weight of 0 in the sum of values, so a value
    /// that is NaN or infinite gives NaN, hidden or not. So does a score of NaN.
    #[doc(alias = "scaled_dot_product_attention")]
    #[must_use]
    #[track_caller]
    pub fn attention(&self, key: &Self, value: &Self, mask: Option<Mask<'_>>) -> Self {
        self.attention_with(key, value, AttentionOptions { mask, ..AttentionOptions::default() })
    }

    /// Like [`attention`](Self::attention), with options: causal, or with another scale.
    ///
    /// Scores are computed on the fly: a GPU stores none, the CPU those of 64 queries per thread. A GPU stores scores
    /// where that is faster: up to 2²⁷ at a time for the gradient, and without `causal` up to 2²⁴ if there are few
    /// queries, or when training with heads of more than 64 features. All scores are stored
    ///
    /// * for heads of more than 128 features;
    /// * on devices with [fast](crate::Precision::Fast) precision, unless their matrix units compute in registers, as
    ///   those of NVIDIA's GPUs do, and the features of a head are a multiple of 8;
    /// * for the gradient of a mask;
    /// * on SwiftShader, the software adapter of browsers.
    ///
    /// ```
    /// use meganeura::ops::AttentionOptions;
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let tape = Tape::new(&device);
    /// let x = tape.input(&Tensor::randn(&device, [2, 4, 10, 16], 1)?);
    /// let y = x.attention_with(&x, &x, AttentionOptions { causal: true, ..AttentionOptions::default() });
    /// // The first query sees the first key alone.
    /// assert_eq!(y.at((.., .., 0)).to_vec()?, x.at((.., .., 0)).to_vec()?);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    #[expect(clippy::cast_precision_loss, reason = "features are far below 2^53")]
    pub fn attention_with(&self, key: &Self, value: &Self, options: AttentionOptions<'_>) -> Self {
        let AttentionOptions { mask, causal, scale } = options;
        let mask = mask.map(Mask::scores);
        let mask = mask.as_ref();
        let others = [Some(key), Some(value), mask];
        if let Some(error) = others.into_iter().flatten().find_map(Self::error) {
            return self.fail(error);
        }
        let (q, k, v) = (self.shape(), key.shape(), value.shape());
        let ([batch @ .., l, d], [k_batch @ .., s, _], [v_batch @ .., _, e]) = (q.dims(), k.dims(), v.dims()) else {
            let message =
                format!("queries, keys and values need at least two axes, but their shapes are {q}, {k} and {v}");
            return self.refuse("attention", ErrorKind::Shape, message);
        };
        let scale = scale.unwrap_or_else(|| (*d as f64).sqrt().recip());
        let mut lead =
            Shape::new(batch).broadcast(&Shape::new(k_batch)).and_then(|lead| lead.broadcast(&Shape::new(v_batch)));
        if let (Some(mask), Some(known)) = (mask, lead) {
            let mask = mask.shape();
            lead = known.broadcast(&Shape::new(&mask.dims()[..mask.rank().saturating_sub(2)]));
        }
        let Some(lead) = lead else {
            let error = Error::new(ErrorKind::Shape, "the leading axes do not broadcast").in_op("attention");
            let operands = [Some(self), Some(key), Some(value), mask].into_iter().flatten();
            let error = operands.fold(error, |error, x| error.operand(x.ty(), x.path()));
            return self.fail(error.at(Location::caller()));
        };
        let scores = Shape::new(&[lead.dims(), &[*l, *s]].concat());
        let mut operands = vec![self.as_matrices(lead), key.as_matrices(lead), value.as_matrices(lead)];
        if let Some(mask) = mask {
            operands.push(mask.expand(scores));
        }
        let op = Attention { scale: Exact(scale), causal };
        let types: Vec<_> = operands.iter().map(Self::ty).collect();
        if let (Err(message), None) = (op.check(&types), operands.iter().find_map(Self::error)) {
            let error = Error::new(ErrorKind::Shape, message).in_op("attention");
            let error = operands.iter().fold(error, |error, x| error.operand(x.ty(), x.path()));
            return self.fail(error.at(Location::caller()));
        }
        let device = self.tape().device();
        let extents = AttentionShape::of(operands[0].shape().dims(), operands[2].shape().dims());
        if device.keeps_fragments() && fits_in_registers(extents) {
            let operands: Vec<_> = operands.iter().collect();
            let [y, _] = self.record_many(op, &operands);
            return y;
        }
        let features = (*d).max(*e);
        let queries = scores.elements() / (*s).max(1);
        let is_small = (*l).min(*s) > FEW && queries <= FEW_QUERIES;
        let is_costly = features > COSTLY && self.tape().is_training();
        let stores = !causal && scores.elements() <= FEW_SCORES && (is_small || is_costly);
        if device.precision() == Precision::Fast || features > WIDEST || !device.tiles() || (device.is_gpu() && stores)
        {
            return composed(&operands, causal, scale);
        }
        let operands: Vec<_> = operands.iter().collect();
        let [y, _] = self.record_many(op, &operands);
        y
    }

    /// The last two axes as a batch of matrices, broadcast to these leading axes.
    #[track_caller]
    fn as_matrices(&self, lead: Shape) -> Self {
        let shape = self.shape();
        self.expand(&[lead.dims(), &shape.dims()[shape.rank() - 2..]].concat()[..])
    }
}

impl Vjp for Attention {
    fn vjp(&self, x: &[Var], y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let ([q, _, v], [result, lse]) = (&x[..3], y) else { unreachable!("the tape checked the operands") };
        let last = q.shape().rank() - 1;
        let rest = |x: &Var| x.slice(last, 1..2).sum_over(&[last]);
        let delta = match (&dy[0], &dy[1]) {
            (Some(dy), None) => (dy * result).sum_over(&[last]),
            (Some(dy), Some(dlse)) => (dy * result).sum_over(&[last]) - rest(dlse),
            (None, Some(dlse)) => -rest(dlse),
            (None, None) => return Ok(vec![None; x.len()]),
        };
        let dy = match &dy[0] {
            Some(dy) => dy.clone(),
            None => result.constant(0.0).expand(result.shape()),
        };
        let operands = [q, &x[1], v, lse, &delta, &dy].into_iter().chain(x.get(3));
        let operands: Vec<_> = operands.collect();
        let device = q.tape().device();
        let most = MOST_SCORES.min(device.largest_buffer() / size_of::<f32>());
        let g = AttentionShape::of(q.shape().dims(), v.shape().dims());
        let by_products = device.is_gpu() && !(device.keeps_fragments() && fits_in_registers(g));
        if by_products && self.differentiates_by_products(g, most) {
            return Ok(self.gradients_in_blocks(&operands, most).into_iter().map(Some).collect());
        }
        let [dq, dk, dv] = q.record_many(AttentionGrad { forward: self.clone() }, &operands);
        let mut gradients = vec![Some(dq), Some(dk), Some(dv)];
        if x.len() > 3 {
            // The gradient of the bias is as large as the scores, so these may as well be stored.
            let [_, of_bias] = q.record_many(AttentionWeights { forward: self.clone() }, &operands);
            gradients.push(Some(of_bias));
        }
        Ok(gradients)
    }
}

/// Options of [`Var::attention_with`].
#[derive(Clone, Copy, Debug, Default)]
pub struct AttentionOptions<'a> {
    /// The keys that a query sees, or numbers that are added to the scores. Broadcasts to `[.., L, S]`.
    pub mask: Option<Mask<'a>>,
    /// `true` to let query `i` of `L` see only the first `i + 1 + S − L` of `S` keys, so that the last query sees all.
    /// For `L = S` this is PyTorch's `is_causal`. With fewer queries than keys, the first keys are those of an earlier
    /// part of the sequence.
    pub causal: bool,
    /// The factor of the scores; the default is `1/√d`.
    pub scale: Option<f64>,
}

/// The most features of a head for attention in one pass. With wider heads, the pass would compute scores several
/// times.
const WIDEST: usize = 128;

/// The most scores that are worth their memory, 64 MiB, where they make an attention faster.
const FEW_SCORES: usize = 1 << 24;

/// The most queries that do not keep a GPU busy in one pass.
const FEW_QUERIES: usize = 1 << 11;

/// Attention as products of matrices.
#[track_caller]
fn composed(x: &[Var], causal: bool, scale: f64) -> Var {
    let mut scores = x[0].scale(scale).matmul(&x[1].t());
    if let Some(mask) = x.get(3) {
        scores = scores + mask;
    }
    let rank = scores.shape().rank();
    if causal {
        let (tape, hidden) = (scores.tape().clone(), scores.tape().scalar(f64::NEG_INFINITY));
        scores = sees(&tape, scores.shape()[rank - 2], scores.shape()[rank - 1]).where_cond(&scores, &hidden);
    }
    scores.weights().matmul(&x[2])
}

/// 1 where one of `l` queries sees one of `s` keys in a causal attention, else 0: `[l, s]`.
#[track_caller]
#[expect(clippy::cast_precision_loss, reason = "extents are far below 2^53")]
fn sees(tape: &Tape, l: usize, s: usize) -> Var {
    let last = tape.iota([l, 1], 0) + tape.constant(s as f64 - l as f64);
    tape.iota([1, s], 1).le(&last)
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::functions::case::{Case, Special, Tested};

    /// A bias that hides all keys from some queries, and from others the keys of the first tile.
    pub(super) fn hide(bias: &Var) -> Var {
        let (tape, shape) = (bias.tape(), bias.shape());
        let (l, s) = (shape[shape.rank() - 2], shape[shape.rank() - 1]);
        let (row, column) = (tape.iota([l, 1], 0), tape.iota([1, s], 1));
        #[expect(clippy::cast_precision_loss, reason = "extents are far below 2^53")]
        let last = row.eq(&tape.scalar(l as f64 - 1.0));
        let first_tile = row.lt(&tape.scalar(10.0)) * column.lt(&tape.scalar(65.0)) * column.ge(&tape.scalar(1.0));
        (row.eq(&tape.scalar(1.0)) + last + first_tile).where_cond(&tape.scalar(f64::NEG_INFINITY), bias)
    }

    impl Tested for Attention {
        fn special() -> &'static [Special] {
            &[Special::AtBaseline]
        }

        fn cases() -> Vec<Case> {
            let of = |b: &[usize], [l, s, d, e]: [usize; 4], causal, bias: bool| {
                let shape = |rows, columns| [b, &[rows, columns]].concat();
                let shapes = [shape(l, d), shape(s, d), shape(s, e), shape(l, s)];
                let shapes: Vec<_> = shapes[..3 + usize::from(bias)].iter().map(Vec::as_slice).collect();
                let op = Self { scale: Exact(0.4), causal };
                // The log-sum-exp is tested through the gradients.
                let attend =
                    move |x: &[Var]| x[0].record_many::<2>(op.clone(), &x.iter().collect::<Vec<_>>())[0].clone();
                Case::recorded("attention", &shapes, attend).tolerance(2e-5)
            };
            // Queries without keys: hidden by the mask, or before the first key of a causal attention.
            let hidden = |b: &[usize], extents: [usize; 4], causal| {
                let case = of(b, extents, causal, true);
                let build = case.build.clone();
                let build = move |x: &[Var]| build(&[x[0].clone(), x[1].clone(), x[2].clone(), hide(&x[3])]);
                Case { build: std::sync::Arc::new(build), name: format!("{} hidden", case.name), ..case }
            };
            let attend_hidden = |shapes: &[&[usize]], causal| {
                Case::recorded("attention", shapes, move |x| {
                    let bias = hide(&x[3]);
                    let options =
                        AttentionOptions { mask: Some(Mask::Bias(&bias)), causal, ..AttentionOptions::default() };
                    x[0].attention_with(&x[1], &x[2], options)
                })
            };
            vec![
                hidden(&[2], [5, 7, 3, 4], false),
                hidden(&[2], [1, 6, 3, 3], false),
                hidden(&[1], [70, 130, 17, 33], false),
                hidden(&[2], [130, 70, 8, 20], true),
                hidden(&[1], [67, 140, 20, 70], true),
                of(&[2], [9, 5, 8, 8], true, false),
                of(&[1], [135, 66, 16, 20], true, false),
                // In the form that a device chooses.
                attend_hidden(&[&[2, 34, 20], &[2, 40, 20], &[2, 40, 9], &[34, 40]], false),
                attend_hidden(&[&[1, 5, 130], &[1, 3, 130], &[1, 3, 6], &[1, 5, 3]], true),
                of(&[], [1, 1, 1, 1], false, false),
                of(&[2], [5, 7, 3, 4], false, false),
                of(&[2, 3], [4, 4, 8, 8], true, true),
                // Fewer queries than keys, as for generation; and more than a tile of each.
                of(&[1], [3, 70, 5, 2], true, false),
                of(&[1], [67, 130, 17, 33], false, true),
                of(&[2], [130, 130, 16, 70], true, false),
                // Features in several chunks, read in fours and singly; results in several parts.
                of(&[1], [67, 70, 72, 20], true, true),
                of(&[2], [33, 90, 32, 24], false, false),
                of(&[1], [67, 65, 128, 128], false, false),
                of(&[1], [66, 34, 45, 128], false, true),
                // A finite number that masks all keys: then the weights are equal, and not 1 each.
                Case::recorded("attention", &[&[2, 5, 4], &[2, 8, 4], &[2, 8, 3], &[2, 5, 8]], |x| {
                    let (q, bias) = (&x[0] * 0.0, &x[3] * 0.0 - 1e9);
                    let attention = Self { scale: Exact(1.0), causal: false };
                    q.record_many::<2>(attention, &[&q, &x[1], &x[2], &bias])[0].clone()
                }),
                // Heads too wide for one pass.
                Case::recorded("attention", &[&[1, 5, 130], &[1, 7, 130], &[1, 7, 6]], |x| {
                    x[0].attention_with(&x[1], &x[2], AttentionOptions { causal: true, ..AttentionOptions::default() })
                }),
                // Heads read in place, and one bias for the whole batch.
                Case::recorded("attention", &[&[2, 9, 3, 8], &[9, 9]], |x| {
                    let heads = x[0].permute(&[0, 2, 1, 3]);
                    let (key, bias) = (&heads * 0.7, x[1].expand([2, 3, 9, 9]));
                    heads.record_many::<2>(
                        Self { scale: Exact(0.5), causal: true },
                        &[&heads, &key, &heads.tanh(), &bias],
                    )[0]
                    .clone()
                }),
            ]
        }
    }
}
