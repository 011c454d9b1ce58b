//! Operators of `com.microsoft`, which `onnxruntime`'s optimiser and quantiser write.

use super::attention::{heads, joined, rotated};
use super::call::{Call, Operators};
use super::element::{Element, Kind};
use super::images::{convolved, with_bias};
use super::matrices::product;
use super::quantize::{Factor, Quantised, Side, dynamic, floats, requantised, requantised_part, requantised_sums};
use super::value::{Value, sound};
use crate::error::bail;
use crate::host::reserve;
use crate::ops::{AttentionOptions, Mask};
use crate::{DType, Result, Shape, Tensor, Var};

/// The domain of these operators.
pub(super) const DOMAIN: &str = "com.microsoft";

pub(super) const OPERATORS: Operators = &[
    ("Attention", attention),
    ("BiasGelu", |call| call.floats((call.float(0)? + call.float(1)?).gelu())),
    ("DequantizeLinear", |call| {
        let x = Quantised { x: 0, scale: 1, zero: 2 }.float(call)?;
        Ok(vec![Value::Var(sound(x)?, call.value(1)?.element())])
    }),
    ("DynamicQuantizeLSTM", super::recurrent::dynamic_lstm),
    ("DynamicQuantizeMatMul", |call| {
        let x = call.float(0)?;
        let (bytes, scale, zero) = dynamic(&x);
        let weight = Factor::of(call, 1, 3, Side::Right)?;
        let y = Factor::computed(bytes, zero).times_float(&weight)? * (scale * per_column(&call.float(2)?));
        biased(call, y, 4)
    }),
    ("EmbedLayerNormalization", embed_layer_norm),
    ("FastGelu", |call| {
        let x = call.float(0)?;
        call.floats(match call.optional_float(1)? {
            Some(bias) => (x + bias).gelu_tanh(),
            None => x.gelu_tanh(),
        })
    }),
    ("FusedConv", |call| {
        let y = with_bias(call, 2, convolved(call, &call.float(0)?, &call.float(1)?)?)?;
        let y = match call.optional_float(3)? {
            Some(sum) => y + sum,
            None => y,
        };
        call.floats(activated(call, y, "activation", &Given::List("activation_params"))?)
    }),
    ("FusedGemm", |call| {
        let y = super::matrices::gemm_of_floats(call)?;
        call.floats(activated(call, y, "activation", &Given::Each("activation_"))?)
    }),
    ("FusedMatMul", |call| {
        for name in ["transBatchA", "transBatchB"] {
            call.only(name, 0, 0)?;
        }
        let of = |k: usize, name: &str| -> Result<Var> {
            let x = call.float(k)?;
            let rank = x.shape().rank();
            Ok(if call.flag(name, false)? && rank > 1 { x.transpose(rank - 2, rank - 1) } else { x })
        };
        let y = product(&of(0, "transA")?, &of(1, "transB")?)?;
        call.floats(y.scale(call.real("alpha", 1.0)?))
    }),
    ("Gelu", |call| call.floats(call.float(0)?.gelu())),
    ("MatMulIntegerToFloat", |call| {
        let (a, b) = (Factor::of(call, 0, 4, Side::Left)?, Factor::of(call, 1, 5, Side::Right)?);
        let scale = call.float(2)?.reshape([]) * per_column(&call.float(3)?);
        let y = a.times_float(&b)? * scale;
        let y = match call.optional_float(6)? {
            Some(bias) => y + bias,
            None => y,
        };
        Ok(vec![Value::Var(sound(y)?, call.value(2)?.element())])
    }),
    ("MatMulNBits", matmul_bits),
    ("MultiHeadAttention", multi_head_attention),
    ("QGemm", |call| {
        let (a, b) = (Factor::of(call, 0, 2, Side::Left)?, Factor::of(call, 3, 5, Side::Right)?);
        let a = if call.flag("transA", false)? { a.t() } else { a };
        let b = if call.flag("transB", false)? { b.t() } else { b };
        let sums = match call.optional(6) {
            Some(_) => floats(a.times(&b, DType::I32)? + call.own(6)?),
            None => a.times_float(&b)?,
        };
        let alpha = call.real("alpha", 1.0)?;
        let factor = (call.float(1)?.reshape([]) * per_column(&call.float(4)?)).scale(alpha);
        match call.optional(7) {
            Some(_) => requantised_sums(call, &sums, factor, 7, 8),
            None => Ok(vec![Value::Var(sound(sums * factor)?, call.value(1)?.element())]),
        }
    }),
    ("QLinearAdd", |call| quantised_pair(call, |a, b| a + b)),
    ("QLinearConcat", |call| {
        // Each part gets its numbers where it is computed: to join them is a copy.
        let groups = (call.inputs.len().saturating_sub(2)) / 3;
        let part = |k: usize| {
            let x = Quantised { x: 2 + 3 * k, scale: 3 + 3 * k, zero: 4 + 3 * k };
            requantised_part(call, &x, 0, 1)
        };
        let parts = (0..groups).map(part).collect::<Result<Vec<_>>>()?;
        let Some((first, element)) = parts.first() else { bail!(Checkpoint, "there are no operands") };
        let axis = call.axis(call.required("axis")?, first.shape().rank())?;
        let joined = Var::concat(&parts.iter().map(|(part, _)| part).collect::<Vec<_>>(), axis);
        Ok(vec![Value::Var(sound(joined)?, *element)])
    }),
    ("QLinearGlobalAveragePool", |call| {
        let x = Quantised { x: 0, scale: 1, zero: 2 }.float_alone(call)?;
        let rank = x.shape().rank();
        let first = if call.flag("channels_last", false)? { 1 } else { 2 };
        let axes: Vec<_> = (first..first + rank.saturating_sub(2)).collect();
        requantised(call, x.mean_keep(&axes), 3, 4)
    }),
    ("QLinearLeakyRelu", |call| {
        let alpha = call.real("alpha", 0.01)?;
        requantised(call, Quantised { x: 0, scale: 1, zero: 2 }.float_alone(call)?.leaky_relu(alpha), 3, 4)
    }),
    ("QLinearMul", |call| quantised_pair(call, |a, b| a * b)),
    ("QLinearSigmoid", |call| {
        requantised(call, Quantised { x: 0, scale: 1, zero: 2 }.float_alone(call)?.sigmoid(), 3, 4)
    }),
    ("QuantizeLinear", |call| super::quantize::quantize_linear(call)),
    ("QuickGelu", |call| {
        let (x, alpha) = (call.float(0)?, call.real("alpha", 1.702)?);
        call.floats(&x * x.scale(alpha).sigmoid())
    }),
    ("RotaryEmbedding", |call| {
        call.only("is_packed_batching", 0, 0)?;
        if call.real("scale", 1.0)? != 1.0 {
            bail!(Checkpoint, "the attribute `scale` is not supported");
        }
        let x = call.float(0)?;
        let count = usize::try_from(call.int("num_heads", 0)?).ok().filter(|&count| count > 0);
        // Without a number of heads, the angles are those of a whole head.
        let half = call.value(2)?.dims().last().copied().unwrap_or(0);
        let count = count.or_else(|| Some(x.shape().dims().last()? / (2 * half.max(1))));
        let y = rotated(call, &x, count, &[call.float(2)?, call.float(3)?], 1)?;
        call.floats(y)
    }),
    ("SkipLayerNormalization", |call| {
        let bias = call.optional_float(3)?;
        skip_norm(call, call.optional_float(4)?, |x, eps| normalised(x, eps, bias.as_ref(), call))
    }),
    ("SkipSimplifiedLayerNormalization", |call| {
        skip_norm(call, call.optional_float(3)?, |x, eps| {
            let axis = x.shape().rank() - 1;
            let scale = (x.square().mean_keep(&[axis]) + x.constant(eps)).rsqrt();
            Ok(x * scale * call.float(2)?)
        })
    }),
];

/// The operands of each operator, as in [`signature`](super::signature).
pub(super) const SIGNATURES: &[(&str, i64, &str)] = &[
    ("Attention", 1, "FF?FAFFI"),
    ("BiasGelu", 1, "FF"),
    ("DequantizeLinear", 1, "AG?A"),
    ("DynamicQuantizeLSTM", 1, "FAA?FIFFFFAFA"),
    ("DynamicQuantizeMatMul", 1, "FAG?AF"),
    ("EmbedLayerNormalization", 1, "I?IFFFFFII"),
    ("FastGelu", 1, "F?F"),
    ("FusedConv", 1, "FF?FF"),
    ("FusedGemm", 1, "FF?F"),
    ("FusedMatMul", 1, "FF"),
    ("Gelu", 1, "F"),
    ("MatMulIntegerToFloat", 1, "AAFF?AAF"),
    ("MatMulNBits", 1, "FAF?AAF"),
    ("MultiHeadAttention", 1, "F?FFFIFFF"),
    ("QGemm", 1, "AGAAGA?IGA"),
    ("QLinearAdd", 1, "AGAAGAG?A"),
    ("QLinearConcat", 1, "GAA*"),
    ("QLinearGlobalAveragePool", 1, "AGAG?A"),
    ("QLinearLeakyRelu", 1, "AGAG?A"),
    ("QLinearMul", 1, "AGAAGAG?A"),
    ("QLinearSigmoid", 1, "AGAG?A"),
    ("QuantizeLinear", 1, "UG?A"),
    ("QuickGelu", 1, "F"),
    ("RotaryEmbedding", 1, "FLFF"),
    ("SkipLayerNormalization", 1, "FFF?FF"),
    ("SkipSimplifiedLayerNormalization", 1, "FFF?F"),
];

/// Numbers for the columns of a result.
fn per_column(x: &Var) -> Var {
    if x.shape().elements() == 1 { x.reshape([]) } else { x.clone() }
}

/// A result with the bias in operand `k`.
fn biased(call: &Call<'_>, y: Var, k: usize) -> Result<Vec<Value>> {
    call.floats(match call.optional_float(k)? {
        Some(bias) => y + bias,
        None => y,
    })
}

fn quantised_pair(call: &Call<'_>, f: fn(Var, Var) -> Var) -> Result<Vec<Value>> {
    let of = |k: usize| Quantised { x: k, scale: k + 1, zero: k + 2 }.float_alone(call);
    requantised(call, f(of(0)?, of(3)?), 6, 7)
}

/// Where the numbers of an activation are.
enum Given {
    /// In one attribute.
    List(&'static str),
    /// Each in an attribute of its own, behind this prefix.
    Each(&'static str),
}

/// The function that an attribute names, if it does.
fn activated(call: &Call<'_>, x: Var, name: &str, given: &Given) -> Result<Var> {
    let function = call.text(name, "")?;
    let list = match given {
        Given::List(name) => call.reals(name)?.unwrap_or_default(),
        Given::Each(_) => Vec::new(),
    };
    let number = |k: usize, name: &str, usual: f64| match given {
        Given::List(_) => Ok(list.get(k).copied().unwrap_or(usual)),
        Given::Each(prefix) => call.real(&format!("{prefix}{name}"), usual),
    };
    Ok(match function {
        "" => x,
        "Relu" => x.relu(),
        "Tanh" => x.tanh(),
        "Sigmoid" => x.sigmoid(),
        "Softplus" => x.softplus(),
        "LeakyRelu" => x.leaky_relu(number(0, "alpha", 0.01)?),
        "Clip" => x.clamp(number(0, "min", f64::from(f32::MIN))?, number(1, "max", f64::from(f32::MAX))?),
        "HardSigmoid" => {
            let (alpha, beta) = (number(0, "alpha", 0.2)?, number(1, "beta", 0.5)?);
            (x.scale(alpha) + x.constant(beta)).clamp(0.0, 1.0)
        }
        other => bail!(Checkpoint, "the attribute `{name}` is {other:?}, which is not supported"),
    })
}

/// Rows with a mean of 0 and a variance of 1, times operand 2; the mean and the reciprocal deviation are not results.
fn normalised(x: &Var, eps: f64, bias: Option<&Var>, call: &Call<'_>) -> Result<Var> {
    let y = rows_normalised(x, eps) * call.float(2)?;
    Ok(match bias {
        Some(bias) => y + bias,
        None => y,
    })
}

fn rows_normalised(x: &Var, eps: f64) -> Var {
    let shape = x.shape();
    let count = shape.dims().last().copied().unwrap_or(1);
    let [one, zero] = [1.0, 0.0].map(|number| x.constant(number).reshape([1]));
    x.reshape([shape.elements() / count.max(1), 1, count]).group_norm(1, eps, &one, &zero).reshape(shape)
}

/// The norm of a sum of operands 0 and 1 and a bias. Result 3 is the sum.
fn skip_norm(call: &Call<'_>, bias: Option<Var>, norm: impl FnOnce(&Var, f64) -> Result<Var>) -> Result<Vec<Value>> {
    if call.wants(1) || call.wants(2) {
        bail!(Checkpoint, "its results 1 and 2, the statistics, are not supported");
    }
    let sum = call.float(0)? + call.float(1)?;
    let sum = sound(match bias {
        Some(bias) => sum + bias,
        None => sum,
    })?;
    let y = norm(&sum, call.real("epsilon", 1e-12)?)?;
    let element = call.value(0)?.element();
    Ok([y.clone(), y.clone(), y, sum].map(|var| Value::Var(var, element)).to_vec())
}

fn embed_layer_norm(call: &Call<'_>) -> Result<Vec<Value>> {
    call.only("mask_index_type", 0, 0)?;
    let table = |k: usize, index: usize| -> Result<Var> {
        let rows = call.float(k)?;
        let Some(&count) = rows.shape().dims().first() else { bail!(Checkpoint, "operand {k} is no table") };
        sound(rows.embedding(&call.indices(index, count)?))
    };
    let mut sum = table(2, 0)?;
    let [n, l, _] = *sum.shape().dims() else { bail!(Checkpoint, "words of {}", sum.shape()) };
    sum = match call.optional(8) {
        Some(_) => sum + table(3, 8)?,
        None => sum + sound(call.float(3)?.slice(0, 0..l))?,
    };
    if call.optional(1).is_some() {
        sum += table(4, 1)?;
    }
    let sum = sound(sum)?;
    let y = rows_normalised(&sum, call.real("epsilon", 1e-12)?) * call.float(5)? + call.float(6)?;
    let element = call.value(2)?.element();
    let counts = match call.optional_float(7)? {
        Some(mask) => mask.sum_over(&[1]),
        None => sum.constant(0.0).expand([n]),
    };
    let counts = Value::Var(counts.cast(DType::I32), Element::I32);
    Ok(vec![Value::Var(y, element), counts, Value::Var(sum, element)])
}

/// Attention of heads, with what their scores get.
struct Heads {
    q: Var,
    k: Var,
    v: Var,
    /// Keys of earlier calls.
    past: usize,
    bias: Option<Var>,
}

impl Heads {
    fn attend(self, call: &Call<'_>) -> Result<Var> {
        let scale = match call.real("scale", 0.0)? {
            0.0 => None,
            scale => Some(scale),
        };
        let (l, s) = (self.q.shape()[2], self.k.shape()[2]);
        let mut bias = self.bias;
        if call.flag("unidirectional", false)? {
            let place = |axis: usize| call.tape.iota([l, s], axis);
            let visible = place(1).le(&(place(0) + self.q.constant(self.past as f64)));
            let part = visible.where_cond(&self.q.constant(0.0), &self.q.constant(f64::NEG_INFINITY));
            bias = Some(match bias {
                Some(bias) => bias + part,
                None => part,
            });
        }
        let bias = bias.map(sound).transpose()?;
        let options = AttentionOptions { mask: bias.as_ref().map(Mask::Bias), scale, ..AttentionOptions::default() };
        joined(&self.q.attention_with(&self.k, &self.v, options))
    }
}

/// The number of heads.
fn head_count(call: &Call<'_>) -> Result<usize> {
    match usize::try_from(call.required("num_heads")?) {
        Ok(count @ 1..) => Ok(count),
        _ => bail!(Checkpoint, "the attribute `num_heads` is not positive"),
    }
}

/// What a mask of keys in operand `k` adds to the scores `[N, H, L, S]`: a number where it is 0.
fn masked(call: &Call<'_>, k: usize, keys: [usize; 2]) -> Result<Option<Var>> {
    let Some(mask) = call.optional_float(k)? else { return Ok(None) };
    let [n, s] = keys;
    let visible = match *mask.shape().dims() {
        // The number of keys of each example.
        [count] if count == n => call.tape.iota([n, s], 1).lt(mask.reshape([n, 1])).reshape([n, 1, 1, s]),
        // Their ends, then their beginnings.
        [count] if count == 2 * n => {
            let place = call.tape.iota([n, s], 1);
            let [end, start] = [0, n].map(|first| mask.slice(0, first..first + n).reshape([n, 1]));
            (place.lt(&end) * place.ge(&start)).reshape([n, 1, 1, s])
        }
        [count, keys] if count == n && keys == s => mask.reshape([n, 1, 1, s]),
        [count, l, keys] if count == n && keys == s => mask.reshape([n, 1, l, s]),
        _ => bail!(Checkpoint, "a mask {} for {n} examples of {s} keys is not supported", mask.shape()),
    };
    let hidden = call.real("mask_filter_value", -10_000.0)?;
    Ok(Some(visible.ne(visible.constant(0.0)).where_cond(&visible.constant(0.0), &visible.constant(hidden))))
}

/// The sum of two optional values.
fn plus(a: Option<Var>, b: Option<Var>) -> Option<Var> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    }
}

/// Attention whose queries, keys and values are products of one operand with one weight.
fn attention(call: &Call<'_>) -> Result<Vec<Value>> {
    call.only("do_rotary", 0, 0)?;
    call.only("past_present_share_buffer", 0, 0)?;
    if call.optional(6).is_some() {
        bail!(Checkpoint, "buffers that keys of earlier calls share are not supported");
    }
    let (x, weight, count) = (call.float(0)?, call.float(1)?, head_count(call)?);
    let (shape, of_weight) = (sound(x.clone())?.shape(), weight.shape());
    let (&[n, l, features], &[rows, columns]) = (shape.dims(), of_weight.dims()) else {
        bail!(Checkpoint, "{} and a weight {}", x.shape(), weight.shape());
    };
    let sizes = match call.optional_list("qkv_hidden_sizes")? {
        Some(sizes) => super::shapes::sizes(&sizes)?,
        None => vec![columns / 3; 3],
    };
    if rows != features || sizes.len() != 3 || sizes.iter().sum::<usize>() != columns {
        bail!(Checkpoint, "{} and a weight {} with parts {sizes:?}", x.shape(), weight.shape());
    }
    let all = x.reshape([n * l, features]).matmul(&weight);
    let all = match call.optional(2) {
        Some(_) => all + call.vector(2, columns)?,
        None => all,
    };
    let all = sound(all.reshape([n, l, columns]))?;
    let mut parts = all.split(&sizes, 2).into_iter().map(|part| heads(&part, count)).collect::<Result<Vec<_>>>()?;
    let mut past = 0;
    if let Some(earlier) = call.optional_float(4)? {
        past = earlier.shape().dims().get(3).copied().unwrap_or(0);
        for (k, part) in parts[1..].iter_mut().enumerate() {
            let before = sound(earlier.slice(0, k..k + 1))?;
            let dims = before.shape().dims()[1..].to_vec();
            *part = sound(Var::concat(&[&before.reshape(&dims[..]), part], 2))?;
        }
    }
    let present = (call.wants(1)).then(|| Var::stack(&[&parts[1], &parts[2]], 0));
    let s = parts[1].shape()[2];
    let bias = plus(masked(call, 3, [n, s])?, call.optional_float(5)?);
    let [q, k, v] = [0, 1, 2].map(|k| parts[k].clone());
    let y = Heads { q, k, v, past, bias }.attend(call)?;
    let element = call.value(0)?.element();
    Ok([Some(y), present].into_iter().flatten().map(|var| Value::Var(var, element)).collect())
}

fn multi_head_attention(call: &Call<'_>) -> Result<Vec<Value>> {
    let count = head_count(call)?;
    let q = call.float(0)?;
    let (Some(k), Some(v)) = (call.optional_float(1)?, call.optional_float(2)?) else {
        bail!(Checkpoint, "packed queries, keys and values are not supported");
    };
    let mut flat = [q, k, v];
    if flat.iter().any(|x| x.shape().rank() != 3) {
        bail!(Checkpoint, "queries, keys and values other than [N, L, H·D] are not supported");
    }
    if let Some(bias) = call.optional_float(3)? {
        let widths = flat.each_ref().map(|x| x.shape()[2]);
        if bias.shape().dims() != [widths.iter().sum::<usize>()] {
            bail!(Checkpoint, "a bias {} for {widths:?} features", bias.shape());
        }
        for (x, part) in flat.iter_mut().zip(bias.split(&widths, 0)) {
            *x = &*x + part;
        }
    }
    let [q, mut k, mut v] = [heads(&flat[0], count)?, heads(&flat[1], count)?, heads(&flat[2], count)?];
    let mut past = 0;
    if let (Some(keys), Some(values)) = (call.optional_float(6)?, call.optional_float(7)?) {
        past = keys.shape().dims().get(2).copied().unwrap_or(0);
        (k, v) = (sound(Var::concat(&[&keys, &k], 2))?, sound(Var::concat(&[&values, &v], 2))?);
    }
    let bias = plus(masked(call, 4, [q.shape()[0], k.shape()[2]])?, call.optional_float(5)?);
    let y = Heads { q, k: k.clone(), v: v.clone(), past, bias }.attend(call)?;
    let element = call.value(0)?.element();
    Ok([y, k, v].map(|var| Value::Var(var, element)).to_vec())
}

/// A product with a weight of 2, 4 or 8 bits in blocks, each with a scale and a zero point: `[N, blocks, bytes]`.
fn matmul_bits(call: &Call<'_>) -> Result<Vec<Value>> {
    // How exact `onnxruntime` computes.
    call.ignore(&["accuracy_level"]);
    if call.optional(4).is_some() {
        bail!(Checkpoint, "the operand `g_idx` is not supported");
    }
    let size = |name: &str| match usize::try_from(call.required(name)?) {
        Ok(size @ 1..=0xff_ffff) => Ok(size),
        _ => bail!(Checkpoint, "the attribute `{name}` is out of range"),
    };
    let (inner, columns, block) = (size("K")?, size("N")?, size("block_size")?);
    let bits = match call.int("bits", 4)? {
        bits @ (2 | 4 | 8) => usize::try_from(bits).unwrap_or(8),
        other => bail!(Checkpoint, "{other} bits are not supported"),
    };
    let blocks = inner.div_ceil(block);
    if !(block * bits).is_multiple_of(8) {
        bail!(Checkpoint, "blocks of {block} numbers of {bits} bits");
    }
    let (bytes, scales) = (call.known(1)?, call.known(2)?.as_floats());
    let Some(bytes) = bytes.as_ints() else { bail!(Checkpoint, "operand 1 holds floats") };
    let (of_block, of_zeros) = (block * bits / 8, (blocks * bits).div_ceil(8));
    if bytes.len() != columns * blocks * of_block || scales.len() != columns * blocks {
        bail!(Checkpoint, "{} bytes and {} scales for {columns}×{inner} numbers", bytes.len(), scales.len());
    }
    let zeros = call.optional(3).map(|_| call.known(3)).transpose()?;
    let packed = match &zeros {
        Some(zeros) if zeros.kind() == Kind::Float => None,
        Some(zeros) => zeros.as_ints(),
        None => None,
    };
    let given = packed.map_or_else(|| zeros.as_ref().map_or(0, |zeros| zeros.len()), <[i64]>::len);
    let wanted = match (&zeros, packed) {
        (None, _) => 0,
        (_, Some(_)) => columns * of_zeros,
        _ => columns * blocks,
    };
    if given != wanted {
        bail!(Checkpoint, "{given} zero points for {columns}×{blocks} blocks");
    }
    let floats = zeros.as_ref().filter(|_| packed.is_none()).map(|zeros| zeros.as_floats());
    let number = |bytes: &[i64], at: usize| (bytes[at * bits / 8] >> (at * bits % 8)) & ((1 << bits) - 1);
    let mut weight = Vec::new();
    reserve(&mut weight, columns * inner)?;
    for column in 0..columns {
        for k in 0..inner {
            let at = column * blocks + k / block;
            let zero = match (packed, &floats) {
                (Some(zeros), _) => number(&zeros[column * of_zeros..], k / block) as f64,
                (_, Some(zeros)) => zeros[at],
                _ => f64::from(1u32 << (bits - 1)),
            };
            weight.push((number(&bytes[at * of_block..], k % block) as f64 - zero) * scales[at]);
        }
    }
    let device = call.tape.device();
    let weight = call.tape.input(&Tensor::from_f64(&device, Shape::from([columns, inner]), &weight)?);
    biased(call, product(&call.float(0)?, &weight.t())?, 5)
}
