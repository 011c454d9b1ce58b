//! Attention, with what it remembers of earlier calls, and the rotation of its queries and keys.

use super::call::{Call, Operators};
use super::element::Kind;
use super::value::{Value, sound};
use crate::error::bail;
use crate::ops::{AttentionOptions, Mask};
use crate::{Result, Var};

pub(super) const OPERATORS: Operators = &[("Attention", attention), ("RotaryEmbedding", rotary_embedding)];

/// `[N, L, H·D]` as heads `[N, H, L, D]`.
pub(super) fn heads(x: &Var, count: usize) -> Result<Var> {
    match *sound(x.clone())?.shape().dims() {
        [n, l, width] if count > 0 && width.is_multiple_of(count) => {
            Ok(x.reshape([n, l, count, width / count]).permute(&[0, 2, 1, 3]))
        }
        _ => bail!(Checkpoint, "{count} heads of {}, which should be [N, L, H·D]", x.shape()),
    }
}

/// Heads `[N, H, L, D]` as `[N, L, H·D]`.
pub(super) fn joined(x: &Var) -> Result<Var> {
    match *sound(x.clone())?.shape().dims() {
        [n, h, l, d] => Ok(x.permute(&[0, 2, 1, 3]).reshape([n, l, h * d])),
        _ => bail!(Checkpoint, "{} are no heads", x.shape()),
    }
}

/// A number of heads from an attribute.
fn head_count(call: &Call<'_>, name: &str) -> Result<Option<usize>> {
    match call.optional_int(name)? {
        None => Ok(None),
        Some(count) => match usize::try_from(count) {
            Ok(count) if count > 0 => Ok(Some(count)),
            _ => bail!(Checkpoint, "the attribute `{name}` is {count}"),
        },
    }
}

/// Keys at least `left` and at most `right` places beside a query. Queries count from `offset`: a number, or one for
/// each example, `[N, 1, 1, 1]`.
fn near(scores: [usize; 2], offset: &Var, left: Option<i64>, right: Option<i64>) -> Option<Var> {
    let one = offset.constant(1.0);
    let place = |axis: usize| one.tape().iota([scores[0], scores[1]], axis);
    // The place of the key beside that of the query.
    let apart = place(1) - (place(0) + offset);
    let right = right.map(|right| apart.le(one.constant(right as f64)));
    let left = left.map(|left| apart.ge(one.constant(-left as f64)));
    match (left, right) {
        (Some(left), Some(right)) => Some(left * right),
        (left, right) => left.or(right),
    }
}

/// A window on one side of a query; `None` if it is open.
fn window(call: &Call<'_>, name: &str) -> Result<Option<i64>> {
    match call.int(name, -1)? {
        -1 => Ok(None),
        width @ 0.. => Ok(Some(width)),
        other => bail!(Checkpoint, "the attribute `{name}` is {other}"),
    }
}

/// Scaled dot-product attention, see <https://onnx.ai/onnx/operators/onnx__Attention.html>.
fn attention(call: &Call<'_>) -> Result<Vec<Value>> {
    let [mut q, mut k, mut v] = [call.float(0)?, call.float(1)?, call.float(2)?];
    let is_flat = q.shape().rank() == 3;
    let counts = [head_count(call, "q_num_heads")?, head_count(call, "kv_num_heads")?];
    if is_flat {
        let [Some(of_q), Some(of_k)] = counts else {
            bail!(Checkpoint, "queries {} need the attributes `q_num_heads` and `kv_num_heads`", q.shape());
        };
        (q, k, v) = (heads(&q, of_q)?, heads(&k, of_k)?, heads(&v, of_k)?);
    }
    if [&q, &k, &v].iter().any(|x| x.shape().rank() != 4) {
        bail!(
            Checkpoint,
            "queries {}, keys {} and values {} are no heads [N, H, L, D]",
            q.shape(),
            k.shape(),
            v.shape()
        );
    }
    for (count, x) in counts.iter().zip([&q, &k]) {
        if count.is_some_and(|count| count != x.shape()[1]) {
            bail!(Checkpoint, "an attribute says {count:?} heads, and there are {}", x.shape()[1]);
        }
    }
    let past = match (call.optional_float(4)?, call.optional_float(5)?) {
        (Some(keys), Some(values)) => {
            let before = keys.shape().dims().get(2).copied().unwrap_or(0);
            (k, v) = (sound(Var::concat(&[&keys, &k], 2))?, sound(Var::concat(&[&values, &v], 2))?);
            Some(before)
        }
        (None, None) => None,
        _ => bail!(Checkpoint, "keys of earlier calls need values, and values keys"),
    };
    let (l, s) = (q.shape()[2], k.shape()[2]);
    let valid = match call.optional_float(6)? {
        Some(_) if past.is_some() => bail!(Checkpoint, "it has both keys of earlier calls and counts of valid keys"),
        Some(counts) => Some(sound(counts.reshape([q.shape()[0], 1, 1, 1]))?),
        None => None,
    };
    let causal = call.flag("is_causal", false)?;
    let (left, mut right) = (window(call, "left_window_size")?, window(call, "right_window_size")?);
    if causal {
        right = Some(right.map_or(0, |right| right.min(0)));
    }
    let is_plain = causal && l == s && left.is_none() && past.is_none() && valid.is_none();
    let zero = q.constant(0.0);
    let hidden = q.constant(f64::NEG_INFINITY);
    let mut bias = mask(call, s)?;
    let mut add = |visible: Var| {
        let part = visible.where_cond(&zero, &hidden);
        bias = Some(bias.take().map_or_else(|| part.clone(), |bias| bias + &part));
    };
    if !is_plain {
        let offset = match (&valid, past) {
            (Some(valid), _) => valid - &q.constant(l as f64),
            (None, past) => q.constant(past.unwrap_or(0) as f64),
        };
        near([l, s], &offset, left, right).map(&mut add);
    }
    if let Some(valid) = &valid {
        add(q.tape().iota([1, 1, 1, s], 3).lt(valid));
    }
    let bias = bias.map(sound).transpose()?;
    let scale = call.real("scale", f64::NAN)?;
    let scale = if scale.is_nan() { (q.shape()[3] as f64).sqrt().recip() } else { scale };
    let cap = call.real("softcap", 0.0)?;
    // Softmax has the precision of the device.
    call.ignore(&["softmax_precision"]);
    let mode = call.int("qk_matmul_output_mode", 0)?;
    let (y, scores) = if cap == 0.0 && !call.wants(3) {
        // Each head of keys may serve several heads of queries.
        let mask = bias.as_ref().map(Mask::Bias);
        (q.attention_with(&k, &v, AttentionOptions { mask, causal: is_plain, scale: Some(scale), grouped: true }), None)
    } else {
        let bias = match (bias, is_plain) {
            (None, true) => near([l, s], &zero, None, Some(0)).map(|visible| visible.where_cond(&zero, &hidden)),
            (Some(bias), true) => {
                near([l, s], &zero, None, Some(0)).map(|visible| bias + visible.where_cond(&zero, &hidden))
            }
            (bias, false) => bias,
        };
        let (y, scores) = stored(&q, &k, &v, bias.as_ref(), [scale, cap], mode)?;
        (y, Some(scores))
    };
    let y = if is_flat { joined(&y)? } else { sound(y)? };
    let element = call.value(0)?.element();
    let mut results = vec![y, k, v];
    results.extend(scores);
    Ok(results.into_iter().map(|var| Value::Var(var, element)).collect())
}

/// Operand 3 as numbers that are added to the scores of `s` keys. Further keys than it has are hidden.
fn mask(call: &Call<'_>, s: usize) -> Result<Option<Var>> {
    let Some(value) = call.optional(3) else { return Ok(None) };
    if value.kind() == Kind::Int {
        bail!(Checkpoint, "a mask of integers");
    }
    let mask = value.float(call.tape)?;
    let (zero, hidden) = (mask.constant(0.0), mask.constant(f64::NEG_INFINITY));
    let bias = if value.kind() == Kind::Bool { mask.where_cond(&zero, &hidden) } else { mask };
    let rank = bias.shape().rank();
    if rank == 0 {
        return Ok(Some(bias));
    }
    let mut widths = vec![(0, 0); rank];
    widths[rank - 1].1 = s.saturating_sub(bias.shape()[rank - 1]);
    Ok(Some(super::images::padded(&bias, &widths, f64::NEG_INFINITY)))
}

/// Attention whose scores are a result, in the form that the mode says, or are capped.
fn stored(q: &Var, k: &Var, v: &Var, bias: Option<&Var>, [scale, cap]: [f64; 2], mode: i64) -> Result<(Var, Var)> {
    let (of_q, of_k) = (q.shape()[1], k.shape()[1]);
    if !of_q.is_multiple_of(of_k) {
        bail!(Checkpoint, "{of_q} heads of queries, {of_k} of keys");
    }
    let repeated = |x: &Var| if of_q == of_k { x.clone() } else { x.repeat_interleave(of_q / of_k, 1) };
    let raw = sound(q.matmul(&repeated(k).transpose(2, 3)))?.scale(scale);
    let capped = if cap == 0.0 { raw.clone() } else { raw.scale(cap.recip()).tanh().scale(cap) };
    let (zero, hidden) = (q.constant(0.0), q.constant(f64::NEG_INFINITY));
    let biased = match bias {
        Some(bias) => sound(&capped + bias)?,
        None => capped.clone(),
    };
    let weights = match bias {
        Some(bias) => {
            // A query that sees no key gets 0, and a gradient of 0.
            let bias = bias.expand(biased.shape());
            let blind = bias.max_keep(&[3]).eq(&hidden);
            blind.where_cond(&zero, &blind.where_cond(&zero, &biased).softmax(3))
        }
        None => biased.softmax(3),
    };
    let y = weights.matmul(&repeated(v));
    let scores = match mode {
        0 => raw,
        1 => capped,
        2 => biased,
        3 => weights,
        other => bail!(Checkpoint, "the attribute `qk_matmul_output_mode` is {other}"),
    };
    Ok((y, scores))
}

fn rotary_embedding(call: &Call<'_>) -> Result<Vec<Value>> {
    let count = match call.int("num_heads", 0)? {
        0 => None,
        _ => head_count(call, "num_heads")?,
    };
    let x = call.float(0)?;
    let y = rotated(call, &x, count, &[call.float(1)?, call.float(2)?], 3)?;
    call.floats(y)
}

/// `x`, heads or `[N, L, H·D]`, whose first features are rotated in pairs by the angles of their positions. The cosines
/// and sines are `[N, L, R/2]`, or `[P, R/2]` for all positions, which operand `positions` then names.
pub(super) fn rotated(
    call: &Call<'_>,
    x: &Var,
    count: Option<usize>,
    angles: &[Var; 2],
    positions: usize,
) -> Result<Var> {
    let is_flat = x.shape().rank() == 3;
    let x = match (is_flat, count) {
        (true, Some(count)) => heads(x, count)?,
        (true, None) => bail!(Checkpoint, "{} needs the attribute `num_heads`", x.shape()),
        (false, _) => x.clone(),
    };
    let [n, h, l, d] = *x.shape().dims() else { bail!(Checkpoint, "{} are no heads [N, H, L, D]", x.shape()) };
    let part = match usize::try_from(call.int("rotary_embedding_dim", 0)?) {
        Ok(0) => d,
        Ok(part) if part <= d && part.is_multiple_of(2) => part,
        _ => bail!(Checkpoint, "the attribute `rotary_embedding_dim` does not fit {d} features"),
    };
    let interleaved = call.flag("interleaved", false)?;
    let angle = |table: &Var| -> Result<Var> {
        let at = match (call.optional(positions), table.shape().dims()) {
            (Some(_), &[rows, _]) => sound(table.embedding(&call.indices(positions, rows)?))?,
            _ => table.clone(),
        };
        let [n_or_1, l_of, half] = *at.shape().dims() else { bail!(Checkpoint, "angles {}", at.shape()) };
        if !(n_or_1 == n || n_or_1 == 1) || l_of != l || half * 2 != part {
            bail!(Checkpoint, "angles {} for {} and {part} rotated features", at.shape(), x.shape());
        }
        Ok(at.reshape([n_or_1, 1, l, half]))
    };
    let [cos, sin] = [angle(&angles[0])?, angle(&angles[1])?];
    let turning = if part == d { x.clone() } else { x.slice(3, 0..part) };
    let pairs = if interleaved { turning.reshape([n, h, l, part / 2, 2]) } else { turning.clone() };
    let half = |k: usize| match interleaved {
        true => pairs.slice(4, k..k + 1).reshape([n, h, l, part / 2]),
        false => pairs.slice(3, k * part / 2..(k + 1) * part / 2),
    };
    let (a, b) = (half(0), half(1));
    let (first, second) = (&a * &cos - &b * &sin, &a * &sin + &b * &cos);
    let turned = match interleaved {
        true => Var::stack(&[&first, &second], 4).reshape([n, h, l, part]),
        false => Var::concat(&[&first, &second], 3),
    };
    let y = if part == d { turned } else { Var::concat(&[&turned, &x.slice(3, part..d)], 3) };
    if is_flat { joined(&y) } else { sound(y) }
}
