//! Matrix products.

use super::call::{Call, Operators, float};
use super::value::Value;
use crate::error::bail;
use crate::ops::{AttentionOptions, Mask};
use crate::{Result, Var};

pub(super) const OPERATORS: Operators = &[
    ("Attention", attention),
    ("Einsum", |call| {
        let x = (0..call.inputs.len()).map(|k| call.float(k)).collect::<Result<Vec<_>>>()?;
        if x.is_empty() {
            bail!(Checkpoint, "there are no operands");
        }
        let equation = call.text("equation", "")?.replace(' ', "");
        float(Var::einsum(&equation, &x.iter().collect::<Vec<_>>()))
    }),
    ("Gemm", gemm),
    ("MatMul", |call| float(product(&call.float(0)?, &call.float(1)?))),
];

/// A product in which a vector is a row on the left or a column on the right.
fn product(a: &Var, b: &Var) -> Var {
    let (x, y) = (a.shape(), b.shape());
    let (row, column) = (x.rank() == 1, y.rank() == 1);
    let left = if row { a.reshape([1, x[0]]) } else { a.clone() };
    let right = if column { b.reshape([y[0], 1]) } else { b.clone() };
    let z = left.matmul(&right);
    if z.error().is_some() || !(row || column) {
        return z;
    }
    let mut dims = z.shape().dims().to_vec();
    if column {
        dims.pop();
    }
    if row {
        dims.remove(dims.len() - 1 - usize::from(!column));
    }
    z.reshape(&dims[..])
}

fn gemm(call: &Call<'_>) -> Result<Vec<Value>> {
    let (a, b) = (call.float(0)?, call.float(1)?);
    let a = if call.flag("transA", false)? { a.t() } else { a };
    let b = if call.flag("transB", false)? { b.t() } else { b };
    let (alpha, beta) = (call.real("alpha", 1.0)?, call.real("beta", 1.0)?);
    let scaled = |x: Var, factor: f64| if factor == 1.0 { x } else { x.scale(factor) };
    let y = scaled(a.matmul(&b), alpha);
    float(match call.optional_float(2)? {
        Some(c) => y + scaled(c, beta),
        None => y,
    })
}

/// Scaled dot-product attention with heads `[N, H, L, D]`, as exporters write it since operator set 23.
fn attention(call: &Call<'_>) -> Result<Vec<Value>> {
    let [q, k, v] = [call.float(0)?, call.float(1)?, call.float(2)?];
    if [&q, &k, &v].iter().any(|x| x.shape().rank() != 4) || call.inputs.iter().skip(4).any(Option::is_some) {
        bail!(
            Checkpoint,
            "only attention with heads [N, H, L, D], without keys and values of earlier calls, is supported"
        );
    }
    call.only("qk_matmul_output_mode", 0, 0)?;
    if call.real("softcap", 0.0)? != 0.0 {
        bail!(Checkpoint, "the attribute `softcap` is not supported");
    }
    let causal = call.flag("is_causal", false)?;
    if causal && q.shape()[2] != k.shape()[2] {
        bail!(Checkpoint, "causal attention of {} queries to {} keys is not supported", q.shape()[2], k.shape()[2]);
    }
    let mask = match call.optional(3) {
        Some(mask) => Some((mask.kind() == super::value::Kind::Bool, mask.float(call.tape)?)),
        None => None,
    };
    let mask = mask.as_ref().map(|(is_bool, mask)| if *is_bool { Mask::Visible(mask) } else { Mask::Bias(mask) });
    // Each head of keys may serve several heads of queries.
    let heads = q.shape()[1];
    let shared = |x: &Var| match x.shape()[1] {
        own if own != 0 && own < heads && heads % own == 0 => x.repeat_interleave(heads / own, 1),
        _ => x.clone(),
    };
    let scale = call.real("scale", f64::NAN)?;
    let scale = (!scale.is_nan()).then_some(scale);
    let options = AttentionOptions { mask, causal, scale };
    float(q.attention_with(&shared(&k), &shared(&v), options))
}
