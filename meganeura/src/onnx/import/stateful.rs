//! Operators that take a state from the step before, and return the next: layers of models that decode.

use super::call::{Call, Operators};
use super::matrices::product;
use super::value::{Array, Value, sound};
use crate::error::bail;
use crate::ops::ConvOptions;
use crate::{Result, Var};

pub(super) const OPERATORS: Operators = &[("CausalConvWithState", causal_conv), ("LinearAttention", linear_attention)];

/// A convolution of each channel with a kernel that reads back in time.
fn causal_conv(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, weight) = (call.float(0)?, call.float(1)?);
    let (shape, taps) = (x.shape(), weight.shape());
    let (&[n, channels, _], &[own, 1, taps]) = (shape.dims(), taps.dims()) else {
        bail!(Checkpoint, "sequences {shape} and a kernel {taps}, not [N, C, L] and [C, 1, K]");
    };
    if own != channels {
        bail!(Checkpoint, "sequences {shape} and a kernel of {own} channels");
    }
    let kept = taps - 1;
    let past = match call.optional(3) {
        Some(state) if state.dims() != [n, channels, kept] => {
            bail!(Checkpoint, "a state of extents {:?}, not [{n}, {channels}, {kept}]", state.dims())
        }
        Some(_) if kept > 0 => Some(call.float(3)?),
        _ if kept > 0 => Some(x.constant(0.0).expand([n, channels, kept])),
        _ => None,
    };
    let all = past.map_or_else(|| x.clone(), |past| Var::concat(&[&past, &x], 2));
    let options = ConvOptions { stride: [1], padding: [0], dilation: [1], groups: channels };
    let y = all.convolve(&weight, options);
    let y = match call.optional(2) {
        Some(_) => y + call.vector(2, channels)?.reshape([channels, 1]),
        None => y,
    };
    let y = match call.text("activation", "none")? {
        "none" => y,
        "silu" | "swish" => y.silu(),
        other => bail!(Checkpoint, "the attribute `activation` is {other:?}"),
    };
    let element = call.value(0)?.element();
    let length = all.shape().dims().last().copied().unwrap_or(0);
    let state = match kept {
        0 => Value::Known(Array::empty(vec![n, channels, 0], element).into()),
        _ => Value::Var(sound(all.slice(2, length - kept..length))?, element),
    };
    Ok(vec![Value::Var(sound(y)?, element), state])
}

/// Attention without a softmax: a state `[B, heads, keys, values]` that each step decays, and to which it adds the
/// product of its key and its value.
fn linear_attention(call: &Call<'_>) -> Result<Vec<Value>> {
    // It does not change the result.
    call.ignore(&["chunk_size"]);
    let heads = |name| match usize::try_from(call.required(name)?) {
        Ok(heads) if heads > 0 => Ok(heads),
        _ => bail!(Checkpoint, "the attribute `{name}` must be at least 1"),
    };
    let (readers, heads) = (heads("q_num_heads")?, heads("kv_num_heads")?);
    let (decays, corrects) = match call.text("update_rule", "gated_delta")? {
        "linear" => (false, false),
        "gated" => (true, false),
        "delta" => (false, true),
        "gated_delta" => (true, true),
        other => bail!(Checkpoint, "the attribute `update_rule` is {other:?}"),
    };
    for (k, name, is_used) in [(4, "decay", decays), (5, "beta", corrects)] {
        if call.optional(k).is_some() != is_used {
            bail!(Checkpoint, "its rule {} operand {k}, `{name}`", if is_used { "needs" } else { "does not use" });
        }
    }
    let (query, key, value) = (call.float(0)?, call.float(1)?, call.float(2)?);
    let (q, k, v) = (query.shape(), key.shape(), value.shape());
    let (&[batch, steps, of_q], &[key_batch, key_steps, of_k], &[value_batch, value_steps, of_v]) =
        (q.dims(), k.dims(), v.dims())
    else {
        bail!(Checkpoint, "queries {q}, keys {k} and values {v}, not [B, T, heads·D]");
    };
    let (keys, values) = (of_k / heads, of_v / heads);
    let agree = [key_batch, value_batch] == [batch; 2] && [key_steps, value_steps] == [steps; 2];
    let fits = (of_q, of_k, of_v) == (keys * readers, keys * heads, values * heads);
    if !agree || !fits || !readers.is_multiple_of(heads) || keys == 0 || values == 0 {
        bail!(Checkpoint, "queries {q} of {readers} heads, keys {k} and values {v} of {heads}");
    }
    // The rest depends on the step before, so there are nodes for each.
    call.budget.charge(steps.saturating_mul(64))?;
    // [B, heads, T, width]
    let split = |x: &Var, heads: usize, width: usize| x.reshape([batch, steps, heads, width]).permute(&[0, 2, 1, 3]);
    // [B, heads, T, 1] or, for each key, [B, heads, T, keys]
    let gate = |k: usize, widths: [usize; 2]| {
        let x = call.float(k)?;
        match (x.shape().dims(), widths) {
            (&[b, t, width], [one, all]) if (b, t) == (batch, steps) && [one, all].contains(&width) => {
                let heads = if width == 1 { 1 } else { heads };
                sound(split(&x, heads, width / heads))
            }
            _ => bail!(
                Checkpoint,
                "operand {k} is {}, not [{batch}, {steps}, {} or {}]",
                x.shape(),
                widths[0],
                widths[1]
            ),
        }
    };
    let decay = if decays { Some(gate(4, [heads, heads * keys])?.exp()) } else { None };
    let rate = if corrects { Some(gate(5, [1, heads])?) } else { None };
    let group = readers / heads;
    let query = split(&query, readers, keys).reshape([batch, heads, group, steps, keys]);
    let (key, value) = (split(&key, heads, keys), split(&value, heads, values));
    let mut state = match call.optional(3) {
        Some(past) if past.dims() != [batch, heads, keys, values] => {
            bail!(Checkpoint, "a state of extents {:?}, not [{batch}, {heads}, {keys}, {values}]", past.dims())
        }
        Some(_) => call.float(3)?,
        None => query.constant(0.0).expand([batch, heads, keys, values]),
    };
    let scale = match call.real("scale", 0.0)? {
        0.0 => (keys as f64).sqrt().recip(),
        scale => scale,
    };
    let mut read = Vec::new();
    for step in 0..steps {
        let at = |x: &Var| x.slice(2, step..step + 1);
        if let Some(decay) = &decay {
            state *= at(decay).permute(&[0, 1, 3, 2]);
        }
        let (key, mut added) = (at(&key), at(&value));
        if let Some(rate) = &rate {
            added = (added - product(&key, &state)?) * at(rate);
        }
        state = sound(state + product(&key.permute(&[0, 1, 3, 2]), &added)?)?;
        let query = query.slice(3, step..step + 1).reshape([batch, heads, group, keys]);
        read.push(product(&query, &state)?.reshape([batch, 1, readers * values]));
    }
    let y = Var::concat(&read.iter().collect::<Vec<_>>(), 1).scale(scale);
    let element = call.value(0)?.element();
    let of_state = call.optional(3).map_or(element, Value::element);
    Ok(vec![Value::Var(sound(y)?, element), Value::Var(state, of_state)])
}
