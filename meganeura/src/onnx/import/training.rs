//! `ai.onnx.preview.training`: gradients as nodes, and the steps of optimizers.

use super::call::{Call, Operators};
use super::value::{Value, sound};
use crate::error::{bail, shortened};
use crate::onnx::proto::{self, attribute};
use crate::{Result, Var};

/// The domain of these operators.
pub(super) const DOMAIN: &str = "ai.onnx.preview.training";

pub(super) const OPERATORS: Operators =
    &[("Adagrad", adagrad), ("Adam", adam), ("Gradient", gradient), ("Momentum", momentum)];

/// Each is a rate, a count, and groups of tensors; or, of `Gradient`, the values that vary.
pub(super) const SIGNATURES: &[(&str, i64, &str)] =
    &[("Adagrad", 1, "GLG*"), ("Adam", 1, "GLG*"), ("Gradient", 1, "A*"), ("Momentum", 1, "GLG*")];

/// Makes the value that a node `Gradient` differentiates its last operand: the file only names it in an attribute.
pub(super) fn with_target(node: &mut proto::Node) -> Result<()> {
    if node.domain != DOMAIN || node.op_type != "Gradient" {
        return Ok(());
    }
    let found = |name: &str| node.attribute.iter().find(|attribute| attribute.name == name);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut names = Vec::new();
    for list in ["xs", "zs"] {
        names.extend(found(list).into_iter().flat_map(|found| &found.strings).map(|bytes| text(bytes)));
    }
    if let Some((given, name)) = node.input.iter().zip(&names).find(|(given, name)| given != name) {
        bail!(
            Checkpoint,
            "the gradient of `{}` where it is `{}` is not supported: they must be one value",
            shortened(name),
            shortened(given)
        );
    }
    let Some(target) = found("y").filter(|found| found.kind == attribute::STRING).and_then(|found| found.s.clone())
    else {
        bail!(Checkpoint, "the attribute `y` is missing");
    };
    node.input.push(text(&target));
    Ok(())
}

/// The gradients of the sum of a value, the last operand, with respect to the others.
fn gradient(call: &Call<'_>) -> Result<Vec<Value>> {
    let Some(of) = call.texts("xs")? else { bail!(Checkpoint, "the attribute `xs` is missing") };
    call.ignore(&["y", "zs"]);
    let last = call.inputs.len() - 1;
    if of.len() > last {
        bail!(Checkpoint, "the attribute `xs` names {} values, and it has {last} operands", of.len());
    }
    let y = call.float(last)?;
    let grads = call.tape.backward(&sound(y.sum())?)?;
    let each = |k: usize| {
        let x = call.float(k)?;
        let gradient = grads.of(&x).unwrap_or_else(|| x.constant(0.0).expand(x.shape()));
        Ok(Value::Var(gradient, call.value(k)?.element()))
    };
    (0..of.len()).map(each).collect()
}

/// The rate and the count of the steps before, then groups of as many tensors each.
fn groups<const N: usize>(call: &Call<'_>) -> Result<(Var, Var, Vec<[Var; N]>)> {
    let tensors = call.inputs.len().saturating_sub(2);
    let count = tensors / N;
    if count == 0 || !tensors.is_multiple_of(N) {
        bail!(Checkpoint, "{tensors} tensors, which are no {N} groups");
    }
    let mut all = Vec::new();
    for k in 0..count {
        let mut group = Vec::with_capacity(N);
        for part in 0..N {
            group.push(call.float(2 + part * count + k)?);
        }
        let Ok(group) = <[Var; N]>::try_from(group) else { unreachable!("there are {N}") };
        if let Some(other) = group.iter().find(|other| other.shape() != group[0].shape()) {
            bail!(Checkpoint, "tensors {} and {} of one parameter", group[0].shape(), other.shape());
        }
        all.push(group);
    }
    Ok((call.float(0)?.reshape([]), call.float(1)?.reshape([]), all))
}

/// The results of each parameter, part by part.
fn stepped<const M: usize>(call: &Call<'_>, results: &[[Var; M]]) -> Result<Vec<Value>> {
    let element = call.value(2)?.element();
    let part = |part: usize| results.iter().map(move |result| Value::Var(result[part].clone(), element));
    Ok((0..M).flat_map(part).collect())
}

/// `g ← norm·x + g`; `h ← h + g²`; `x ← x − r·g / (√h + ε)`, with the rate `r` divided by `1 + decay·t`
fn adagrad(call: &Call<'_>) -> Result<Vec<Value>> {
    let (rate, count, groups) = groups::<3>(call)?;
    let (decay, epsilon, norm) =
        (call.real("decay_factor", 0.0)?, call.real("epsilon", 1e-6)?, call.real("norm_coefficient", 0.0)?);
    let rate = rate / (count * decay + 1.0);
    let step = |[x, g, h]: &[Var; 3]| {
        let g = x * norm + g;
        let h = h + g.square();
        [x - &rate * &g / (h.sqrt() + epsilon), h]
    };
    stepped(call, &groups.iter().map(step).collect::<Vec<_>>())
}

/// `g ← norm·x + g`; `v ← α·v + (1 − α)·g`; `h ← β·h + (1 − β)·g²`; `x ← x − r·v / (√h + ε)`, with the rate `r` times
/// `√(1 − βᵗ) / (1 − αᵗ)` after the first step; then `x ← (1 − norm_post)·x`
fn adam(call: &Call<'_>) -> Result<Vec<Value>> {
    let (rate, count, groups) = groups::<4>(call)?;
    let (alpha, beta, epsilon) = (call.real("alpha", 0.9)?, call.real("beta", 0.999)?, call.real("epsilon", 1e-6)?);
    let (norm, post) = (call.real("norm_coefficient", 0.0)?, call.real("norm_coefficient_post", 0.0)?);
    let one = rate.constant(1.0);
    let remains = |decay: f64| &one - (&count * decay.ln()).exp();
    let corrected = &rate * remains(beta).sqrt() / remains(alpha);
    let rate = count.gt(count.constant(0.0)).where_cond(&corrected, &rate);
    let step = |[x, g, v, h]: &[Var; 4]| {
        let g = x * norm + g;
        let v = v * alpha + &g * (1.0 - alpha);
        let h = h * beta + g.square() * (1.0 - beta);
        let x = x - &rate * &v / (h.sqrt() + epsilon);
        [x * (1.0 - post), v, h]
    };
    stepped(call, &groups.iter().map(step).collect::<Vec<_>>())
}

/// `g ← norm·x + g`; `v ← α·v + β·g`, with a `β` of 1 in the first step; `x ← x − r·v`, or `x ← x − r·(g + α·v)` as
/// Nesterov has it
fn momentum(call: &Call<'_>) -> Result<Vec<Value>> {
    let (rate, count, groups) = groups::<3>(call)?;
    let need = |name: &str| match call.attribute(name)? {
        Some(_) => call.real(name, 0.0),
        None => bail!(Checkpoint, "the attribute `{name}` is missing"),
    };
    let (alpha, beta, norm) = (need("alpha")?, need("beta")?, need("norm_coefficient")?);
    let is_nesterov = match call.text("mode", "")? {
        "standard" => false,
        "nesterov" => true,
        other => bail!(Checkpoint, "the attribute `mode` is {other:?}"),
    };
    let beta = count.gt(count.constant(0.0)).where_cond(&count.constant(beta), &count.constant(1.0));
    let step = |[x, g, v]: &[Var; 3]| {
        let g = x * norm + g;
        let v = v * alpha + &beta * &g;
        let by = if is_nesterov { g + &v * alpha } else { v.clone() };
        [x - &rate * by, v]
    };
    stepped(call, &groups.iter().map(step).collect::<Vec<_>>())
}
