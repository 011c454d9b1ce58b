//! Normalisations, reductions and softmax.

use super::call::{Call, Operators, float};
use super::value::Value;
use crate::error::bail;
use crate::{Result, Shape, Var};

pub(super) const OPERATORS: Operators = &[
    ("BatchNormalization", batch_norm),
    ("GroupNormalization", group_norm),
    ("InstanceNormalization", |call| {
        let x = call.float(0)?;
        let [_, c, ..] = *x.shape().dims() else { bail!(Checkpoint, "{} has no channels", x.shape()) };
        float(x.group_norm(c, call.real("epsilon", 1e-5)?, &call.float(1)?, &call.float(2)?))
    }),
    ("LayerNormalization", layer_norm),
    ("LogSoftmax", |call| softmax(call, Var::log_softmax)),
    ("LpNormalization", |call| {
        let x = call.float(0)?;
        let axis = call.axis(call.int("axis", -1)?, x.shape().rank())?;
        #[expect(clippy::cast_precision_loss, reason = "1 or 2")]
        let norm = x.norm_over(&[axis], call.int("p", 2)? as f64);
        float(&x / norm.reshape(x.shape().with(axis, 1)))
    }),
    ("ReduceL1", |call| reduce(call, |x, axes| x.abs().sum_keep(axes))),
    ("ReduceL2", |call| reduce(call, |x, axes| x.root_of_squares(axes, 1.0))),
    ("ReduceLogSum", |call| reduce(call, |x, axes| x.sum_keep(axes).log())),
    ("ReduceLogSumExp", |call| {
        reduce(call, |x, axes| {
            let shape = axes.iter().fold(x.shape(), |shape, &axis| shape.with(axis, 1));
            x.logsumexp(axes).reshape(shape)
        })
    }),
    ("ReduceMax", |call| reduce(call, Var::max_keep)),
    ("ReduceMean", |call| reduce(call, Var::mean_keep)),
    ("ReduceMin", |call| reduce(call, Var::min_keep)),
    ("ReduceProd", |call| reduce(call, product)),
    ("ReduceSum", |call| reduce(call, Var::sum_keep)),
    ("ReduceSumSquare", |call| reduce(call, |x, axes| x.square().sum_keep(axes))),
    ("RMSNormalization", rms_norm),
    ("Softmax", |call| softmax(call, Var::softmax)),
];

/// A vector with a number for each channel, shaped to broadcast along axis 1 of `x`.
fn of_channels(call: &Call<'_>, k: usize, x: Shape) -> Result<Var> {
    let Some(&channels) = x.dims().get(1) else { bail!(Checkpoint, "{x} has no channels") };
    let vector = call.float(k)?;
    if vector.shape().dims() != [channels] {
        bail!(Checkpoint, "operand {k} is {}, for {channels} channels", vector.shape());
    }
    let mut dims = vec![1; x.rank()];
    dims[1] = channels;
    Ok(vector.reshape(&dims[..]))
}

/// Normalises by running statistics.
fn batch_norm(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.float(0)?;
    call.only("training_mode", 0, 0)?;
    let [weight, bias, mean, variance] = [
        of_channels(call, 1, x.shape())?,
        of_channels(call, 2, x.shape())?,
        of_channels(call, 3, x.shape())?,
        of_channels(call, 4, x.shape())?,
    ];
    let eps = x.constant(call.real("epsilon", 1e-5)?);
    float((x - mean) * ((variance + eps).rsqrt() * weight) + bias)
}

fn group_norm(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.float(0)?;
    let groups = usize::try_from(call.int("num_groups", 0)?).unwrap_or(0);
    let [_, c, ..] = *x.shape().dims() else { bail!(Checkpoint, "{} has no channels", x.shape()) };
    if groups == 0 || c % groups != 0 {
        bail!(Checkpoint, "{groups} groups of {c} channels");
    }
    // Before operator set 21, there was one scale per group.
    let of_group = |scale: Var| match call.opset {
        ..21 => scale.repeat_interleave(c / groups, 0),
        _ => scale,
    };
    let (scale, bias) = (of_group(call.float(1)?), of_group(call.float(2)?));
    float(x.group_norm(groups, call.real("epsilon", 1e-5)?, &scale, &bias))
}

/// The extents before an axis, and from it on, as `[examples, numbers]`.
fn split(call: &Call<'_>, x: Shape) -> Result<[usize; 2]> {
    let axis = call.axis(call.int("axis", -1)?, x.rank())?;
    Ok([x.dims()[..axis].iter().product(), x.dims()[axis..].iter().product()])
}

fn layer_norm(call: &Call<'_>) -> Result<Vec<Value>> {
    if call.wants(1) || call.wants(2) {
        bail!(Checkpoint, "its further results, the statistics, are not supported");
    }
    let x = call.float(0)?;
    let [examples, count] = split(call, x.shape())?;
    let [one, zero] = [1.0, 0.0].map(|number| x.constant(number).reshape([1]));
    let rows = x.reshape([examples, 1, count]);
    let y = rows.group_norm(1, call.real("epsilon", 1e-5)?, &one, &zero).reshape(x.shape());
    let y = y * call.float(1)?;
    float(match call.optional_float(2)? {
        Some(bias) => y + bias,
        None => y,
    })
}

fn rms_norm(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.float(0)?;
    let [examples, count] = split(call, x.shape())?;
    let rows = x.reshape([examples, count]);
    let scale = (rows.square().mean_keep(&[1]) + x.constant(call.real("epsilon", 1e-5)?)).rsqrt();
    float((rows * scale).reshape(x.shape()) * call.float(1)?)
}

fn softmax(call: &Call<'_>, along: fn(&Var, usize) -> Var) -> Result<Vec<Value>> {
    let x = call.float(0)?;
    if call.opset >= 13 {
        return float(along(&x, call.axis(call.int("axis", -1)?, x.shape().rank())?));
    }
    // Flattened from `axis` on.
    let axis = call.axis(call.int("axis", 1)?, x.shape().rank())?;
    let dims = x.shape();
    let rows = [dims.dims()[..axis].iter().product(), dims.dims()[axis..].iter().product()];
    float(along(&x.reshape(rows), 1).reshape(x.shape()))
}

/// A product over axes: the last of the cumulative products.
fn product(x: &Var, axes: &[usize]) -> Var {
    let along = |x: Var, &axis: &usize| {
        let last = x.shape()[axis];
        x.cumprod(axis).slice(axis, last - 1..last)
    };
    axes.iter().fold(x.clone(), along)
}

/// A reduction that keeps its axes; they are removed afterwards unless the node keeps them.
fn reduce(call: &Call<'_>, keep: impl FnOnce(&Var, &[usize]) -> Var) -> Result<Vec<Value>> {
    let x = call.float(0)?;
    let rank = x.shape().rank();
    let mut axes = match call.optional_axes(1, rank)? {
        Some(axes) if !axes.is_empty() => axes,
        _ if call.flag("noop_with_empty_axes", false)? => return call.like(0, x),
        _ => (0..rank).collect(),
    };
    axes.sort_unstable();
    let y = keep(&x, &axes);
    if y.error().is_some() || call.flag("keepdims", true)? {
        return call.like(0, y);
    }
    let dims: Vec<_> = (0..rank).filter(|axis| !axes.contains(axis)).map(|axis| x.shape()[axis]).collect();
    call.like(0, y.reshape(&dims[..]))
}
