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
    Attention, AttentionGrad, AttentionShape, AttentionWeights, COSTLY, FEW, fits_in_registers, group,
};
use crate::{Error, ErrorKind, Precision, Result, Shape, Tape, Var};

impl Var {
    /// Scaled dot-product attention with this value as the queries: `softmax(q·kᵀ/√d + mask)·v`, over the last two axes
    ///
    /// Shapes: `q [.., L, d]`, `key [.., S, d]`, `value [.., S, e]`, with leading axes as for [`Var::matmul`]; the mask
    /// broadcasts to `[.., L, S]` → `[.., L, e]`. Several heads of queries may share one of keys and values: see
    /// [`AttentionOptions::grouped`].
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
    /// * for heads of more than 128 features, or more than 256 on matrix units that compute in registers;
    /// * on devices with [fast](crate::Precision::Fast) precision, unless their matrix units compute in registers, as
    ///   those of NVIDIA's GPUs do;
    /// * for the gradient of a mask;
    /// * on SwiftShader, the software adapter of browsers.
    ///
    /// Matrix units that compute in registers take heads of a multiple of 8 features. Others are copied with zeros
    /// behind them.
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
        let AttentionOptions { mask, causal, scale, grouped } = options;
        let here = Location::caller();
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
        let fail = |message: &str, operands: &mut dyn Iterator<Item = &Self>| {
            let error = Error::new(ErrorKind::Shape, message).in_op("attention");
            let error = operands.fold(error, |error, x| error.operand(x.ty(), x.path()));
            self.fail(error.at(here))
        };
        let given = [Some(self), Some(key), Some(value), mask];
        let scale = scale.unwrap_or_else(|| (*d as f64).sqrt().recip());
        let masks = mask.map(|mask| Shape::new(&mask.shape().dims()[..mask.shape().rank().saturating_sub(2)]));
        let Some((lead, of_keys)) = lead_of([batch, k_batch, v_batch], masks, grouped) else {
            let message = match grouped {
                true => {
                    "the heads of queries are no multiple of those of keys and values, or other axes do not broadcast"
                }
                false => "the leading axes do not broadcast",
            };
            return fail(message, &mut given.into_iter().flatten());
        };
        let scores = Shape::new(&[lead.dims(), &[*l, *s]].concat());
        let mut operands = vec![self.as_matrices(lead), key.as_matrices(of_keys), value.as_matrices(of_keys)];
        if let Some(mask) = mask {
            operands.push(mask.expand(scores));
        }
        let op = Attention { scale: Exact(scale), causal };
        let types: Vec<_> = operands.iter().map(Self::ty).collect();
        if let (Err(message), None) = (op.check(&types), operands.iter().find_map(Self::error)) {
            return fail(&message, &mut operands.iter());
        }
        let device = self.tape().device();
        let extents = AttentionShape::of(operands[0].shape().dims(), operands[2].shape().dims());
        let lines = extents.in_lines();
        if device.keeps_fragments() && fits_in_registers(lines) {
            let [q, k, v] = [(0, lines.d), (1, lines.d), (2, lines.e)].map(|(x, features)| operands[x].wide(features));
            let operands: Vec<_> = [&q, &k, &v].into_iter().chain(operands.get(3)).collect();
            let [y, _] = self.record_many(op, &operands);
            return if lines.e == extents.e { y } else { y.slice(y.shape().rank() - 1, 0..extents.e) };
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

    /// With zeros behind the last axis, up to this length.
    #[track_caller]
    fn wide(&self, len: usize) -> Self {
        let shape = self.shape();
        let last = shape.rank() - 1;
        if shape[last] == len {
            return self.clone();
        }
        let mut widths = vec![(0, 0); shape.rank()];
        widths[last].1 = len - shape[last];
        self.pad(&widths, 0.0)
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
    /// `true` to let several heads of queries share one of keys and values: of `q [.., H, L, d]`, `key [.., Hₖ, S, d]`
    /// and `value [.., Hₖ, S, e]`, where `H` is a multiple of `Hₖ`, query head `h` sees head `h / (H / Hₖ)`. This is
    /// PyTorch's `enable_gqa`. One head of keys for all, `Hₖ = 1`, broadcasts without it. Keys and values are read in
    /// place, and their gradients add up the group's heads one after the other.
    ///
    /// ```
    /// use meganeura::ops::AttentionOptions;
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let tape = Tape::new(&device);
    /// let q = tape.input(&Tensor::randn(&device, [2, 8, 10, 16], 1)?);
    /// let k = tape.input(&Tensor::randn(&device, [2, 2, 10, 16], 2)?);
    /// let y = q.attention_with(&k, &k, AttentionOptions { grouped: true, ..AttentionOptions::default() });
    /// // Heads 4 to 7 see the second head of keys.
    /// assert_eq!(y.at((.., 4)).to_vec()?, q.at((.., 4)).attention(&k.at((.., 1)), &k.at((.., 1)), None).to_vec()?);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    pub grouped: bool,
}

/// The leading axes of an attention's result, and those that its keys and values broadcast to. The latter have a
/// shorter last axis where heads of queries share them: `grouped`, or keys and values with one head.
fn lead_of([q, k, v]: [&[usize]; 3], mask: Option<Shape>, grouped: bool) -> Option<(Shape, Shape)> {
    let [k, v] = [k, v].map(|lead| if lead.is_empty() && !q.is_empty() { &[1] } else { lead });
    let own = match (q, k, v) {
        ([.., heads], [.., own], [.., also]) if own == also => {
            let divides = *own > 0 && *heads > 0 && heads.is_multiple_of(*own);
            (divides && own < heads && (grouped || *own == 1)).then_some((*heads, *own))
        }
        _ => None,
    };
    let as_heads = |lead: &[usize]| match own {
        Some((heads, _)) => Shape::new(lead).with(lead.len() - 1, heads),
        None => Shape::new(lead),
    };
    let mut lead = Shape::new(q).broadcast(&as_heads(k))?.broadcast(&as_heads(v))?;
    if let Some(mask) = mask {
        lead = lead.broadcast(&mask)?;
    }
    let of_keys = own.filter(|&(heads, _)| lead.dims().last() == Some(&heads));
    Some((lead, of_keys.map_or(lead, |(_, own)| lead.with(lead.rank() - 1, own))))
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
    let mut scores = product_of_heads(&x[0].scale(scale), &x[1].t());
    if let Some(mask) = x.get(3) {
        scores += mask;
    }
    let rank = scores.shape().rank();
    if causal {
        let (tape, hidden) = (scores.tape().clone(), scores.tape().scalar(f64::NEG_INFINITY));
        scores = sees(&tape, scores.shape()[rank - 2], scores.shape()[rank - 1]).where_cond(&scores, &hidden);
    }
    product_of_heads(&scores.weights(), &x[2])
}

/// The number of matrices `x [.., H, _, _]` for each of `y [.., Hₖ, _, _]`.
fn group_of(x: &Var, y: &Var) -> usize {
    let [x, y] = [x.shape(), y.shape()];
    group(&x.dims()[..x.rank() - 2], &y.dims()[..y.rank() - 2]).expect("the type rule checked the heads")
}

/// The matrices of each group on top of each other: `[.., H, L, D]` → `[.., H/group, group·L, D]`.
#[track_caller]
fn stacked(x: &Var, group: usize) -> Var {
    if group == 1 {
        return x.clone();
    }
    let shape = x.shape();
    let heads = shape.rank() - 3;
    x.reshape(shape.with(heads, shape[heads] / group).with(heads + 1, shape[heads + 1] * group))
}

/// `x·y` for matrices `x [.., H, L, D]` of which groups share one of `y [.., Hₖ, D, S]` → `[.., H, L, S]`.
#[track_caller]
fn product_of_heads(x: &Var, y: &Var) -> Var {
    let group = group_of(x, y);
    let result = stacked(x, group).matmul(y);
    if group == 1 {
        result
    } else {
        result.reshape(x.shape().with(x.shape().rank() - 1, y.shape()[y.shape().rank() - 1]))
    }
}

/// `xᵀ·y` for matrices `x [.., H, L, S]` and `y [.., H, L, D]`, summed over groups of heads → `[.., H/group, S, D]`.
#[track_caller]
fn product_across_heads(x: &Var, y: &Var, group: usize) -> Var {
    stacked(x, group).t().matmul(&stacked(y, group))
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
        let last = row.eq(tape.scalar(l as f64 - 1.0));
        let first_tile = row.lt(tape.scalar(10.0)) * column.lt(tape.scalar(65.0)) * column.ge(tape.scalar(1.0));
        (row.eq(tape.scalar(1.0)) + last + first_tile).where_cond(&tape.scalar(f64::NEG_INFINITY), bias)
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
            // Heads of queries that share one of keys and values.
            let grouped = |[heads, own]: [usize; 2], [l, s, d, e]: [usize; 4], causal, bias: bool| {
                let shapes = [[2, heads, l, d], [2, own, s, d], [2, own, s, e], [2, heads, l, s]];
                let shapes: Vec<_> = shapes[..3 + usize::from(bias)].iter().map(<[usize; 4]>::as_slice).collect();
                let op = Self { scale: Exact(0.4), causal };
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
                // Features that matrix units share.
                of(&[1], [19, 21, 136, 160], true, false),
                grouped([4, 2], [17, 20, 256, 192], false, true),
                grouped([4, 2], [5, 7, 3, 4], false, false),
                grouped([6, 2], [9, 5, 8, 8], true, true),
                grouped([2, 1], [67, 70, 16, 20], true, false),
                grouped([4, 1], [3, 40, 20, 8], false, true),
                // In the form that a device chooses, and in products of matrices.
                Case::recorded("attention", &[&[2, 6, 34, 20], &[2, 3, 40, 20], &[2, 3, 40, 9], &[34, 40]], |x| {
                    let options = AttentionOptions {
                        mask: Some(Mask::Bias(&x[3])),
                        grouped: true,
                        ..AttentionOptions::default()
                    };
                    x[0].attention_with(&x[1], &x[2], options)
                }),
                Case::recorded("attention", &[&[4, 5, 130], &[2, 7, 130], &[2, 7, 6]], |x| {
                    let options = AttentionOptions { causal: true, grouped: true, ..AttentionOptions::default() };
                    x[0].attention_with(&x[1], &x[2], options)
                }),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Result, Tensor};

    #[test]
    fn heads_that_share_keys_do_not_copy_them() {
        let of = |q: &[usize], k: &[usize], mask: Option<&[usize]>, grouped| {
            let lead = lead_of([q, k, k], mask.map(Shape::new), grouped)?;
            Some([lead.0, lead.1].map(|lead| lead.dims().to_vec()))
        };
        let found = |lead: &[usize], keys: &[usize]| Some([lead.to_vec(), keys.to_vec()]);
        assert_eq!(of(&[2, 8], &[2, 2], None, true), found(&[2, 8], &[2, 2]));
        assert_eq!(of(&[2, 8], &[1, 4], Some(&[3, 1, 8]), true), found(&[3, 2, 8], &[3, 2, 4]));
        // One head for all, also as the heads of a group.
        assert_eq!(of(&[2, 8], &[2, 1], None, false), found(&[2, 8], &[2, 1]));
        assert_eq!(of(&[2, 4, 2], &[2, 4, 1], None, false), found(&[2, 4, 2], &[2, 4, 1]));
        assert_eq!(of(&[2, 8], &[], None, false), found(&[2, 8], &[2, 1]));
        // All other axes broadcast.
        assert_eq!(of(&[2, 8], &[2, 8], None, true), found(&[2, 8], &[2, 8]));
        assert_eq!(of(&[1], &[1], Some(&[5]), false), found(&[5], &[5]));
        assert_eq!(of(&[], &[], None, false), found(&[], &[]));
        let misfits: [(&[usize], &[usize], bool); 4] =
            [(&[2, 8], &[2, 2], false), (&[2, 8], &[2, 3], true), (&[2, 2], &[2, 8], true), (&[0, 8], &[3, 2], true)];
        for (q, k, grouped) in misfits {
            assert_eq!(of(q, k, None, grouped), None, "{q:?} {k:?}");
        }
    }

    #[test]
    fn heads_that_do_not_divide_are_refused() -> Result<()> {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let input = |heads: usize| Ok::<_, Error>(tape.input(&Tensor::zeros(&device, [2, heads, 5, 4])?));
        let (q, k) = (input(8)?, input(3)?);
        let options = AttentionOptions { grouped: true, ..AttentionOptions::default() };
        let (y, line) = (q.attention_with(&k, &k, options), line!());
        let error = y.error().expect("3 heads do not divide 8");
        assert_eq!((error.kind(), error.location().expect("a line").line()), (ErrorKind::Shape, line));
        assert!(error.to_string().contains("the heads of queries are no multiple of those of keys"), "{error}");
        assert!(error.to_string().contains("[2, 3, 5, 4]"), "{error}");
        Ok(())
    }
}
