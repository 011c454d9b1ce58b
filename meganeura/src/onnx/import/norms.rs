//! Normalisations, reductions and softmax.

use super::call::{Call, Operators, known};
use super::element::Element;
use super::elementwise::ordered;
use super::numeric::named_type;
use super::value::{Array, Data, Value};
use crate::error::bail;
use crate::host::try_filled;
use crate::onnx::read;
use crate::{Result, Shape, Var};

pub(super) const OPERATORS: Operators = &[
    ("BatchNormalization", batch_norm),
    ("GroupNormalization", group_norm),
    ("InstanceNormalization", |call| {
        let x = call.float(0)?;
        let [_, c, ..] = *x.shape().dims() else { bail!(Checkpoint, "{} has no channels", x.shape()) };
        call.floats(x.group_norm(c, call.real("epsilon", 1e-5)?, &call.vector(1, c)?, &call.vector(2, c)?))
    }),
    ("LayerNormalization", layer_norm),
    ("LogSoftmax", |call| softmax(call, Var::log_softmax)),
    ("LpNormalization", |call| {
        let x = call.float(0)?;
        let axis = call.axis(call.int("axis", -1)?, x.shape().rank())?;
        let p = match call.int("p", 2)? {
            1 => 1.0,
            2 => 2.0,
            other => bail!(Checkpoint, "the attribute `p` is {other}, neither 1 nor 2"),
        };
        let norm = x.norm_over(&[axis], p);
        // Zeros stay zeros.
        let divisor = norm.eq(norm.constant(0.0)).where_cond(&norm.constant(1.0), &norm);
        call.floats(&x / divisor.reshape(x.shape().with(axis, 1)))
    }),
    ("ReduceL1", |call| reduce(call, |x, axes| sum(&x.abs(), axes))),
    ("ReduceL2", |call| {
        reduce_as_floats(call, |x, axes| if axes.is_empty() { x.abs() } else { x.root_of_squares(axes, 1.0) })
    }),
    ("ReduceLogSum", |call| reduce_as_floats(call, |x, axes| sum(x, axes).log())),
    ("ReduceLogSumExp", |call| {
        reduce_as_floats(call, |x, axes| {
            let shape = axes.iter().fold(x.shape(), |shape, &axis| shape.with(axis, 1));
            if axes.is_empty() { x.clone() } else { x.logsumexp(axes).reshape(shape) }
        })
    }),
    ("ReduceMax", |call| extremum(call, Var::max_keep)),
    ("ReduceMean", |call| reduce(call, mean)),
    ("ReduceMin", |call| extremum(call, Var::min_keep)),
    ("ReduceProd", |call| reduce(call, product)),
    ("ReduceSum", |call| reduce(call, sum)),
    ("ReduceSumSquare", |call| reduce(call, |x, axes| sum(&x.square(), axes))),
    ("RMSNormalization", rms_norm),
    // Of `onnxruntime`, which has put it into ONNX's own domain.
    ("SimplifiedLayerNormalization", rms_norm),
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

/// Normalises by running statistics, or by those of the batch, which then change the running ones.
fn batch_norm(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.float(0)?;
    if call.opset < 9 {
        call.only("spatial", 1, 1)?;
    }
    // Before operator set 14, statistics among the results said that it trains.
    let trains = if call.opset < 14 { call.wants(1) } else { call.flag("training_mode", false)? };
    if call.opset < 7 {
        call.ignore(&["is_test"]);
    }
    let [weight, bias, mut mean, mut variance] = [
        of_channels(call, 1, x.shape())?,
        of_channels(call, 2, x.shape())?,
        of_channels(call, 3, x.shape())?,
        of_channels(call, 4, x.shape())?,
    ];
    let (eps, momentum) = (x.constant(call.real("epsilon", 1e-5)?), call.real("momentum", 0.9)?);
    let mut running = Vec::new();
    if trains {
        let axes: Vec<_> = (0..x.shape().rank()).filter(|&axis| axis != 1).collect();
        let of_batch = x.mean_keep(&axes);
        let [before, spread] = [mean, variance];
        variance = (&x - &of_batch).square().mean_keep(&axes);
        mean = of_batch;
        let moved = |before: &Var, now: &Var| {
            let y = before.scale(momentum) + now.scale(1.0 - momentum);
            y.reshape([x.shape()[1]])
        };
        running = vec![moved(&before, &mean), moved(&spread, &variance)];
    }
    let mut results = call.floats((&x - mean) * ((variance + eps).rsqrt() * weight) + bias)?;
    let element = call.value(3)?.element();
    results.extend(running.into_iter().map(|var| Value::Var(var, element)));
    Ok(results)
}

fn group_norm(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.float(0)?;
    let groups = usize::try_from(call.int("num_groups", 0)?).unwrap_or(0);
    let [_, c, ..] = *x.shape().dims() else { bail!(Checkpoint, "{} has no channels", x.shape()) };
    if groups == 0 || c % groups != 0 {
        bail!(Checkpoint, "{groups} groups of {c} channels");
    }
    // Before operator set 21, there was one scale per group.
    let of_group = |k: usize| match call.opset {
        ..21 => Ok::<_, crate::Error>(call.vector(k, groups)?.repeat_interleave(c / groups, 0)),
        _ => call.vector(k, c),
    };
    // The precision of sums is that of the device.
    call.ignore(&["stash_type"]);
    let (scale, bias) = (of_group(1)?, of_group(2)?);
    call.floats(x.group_norm(groups, call.real("epsilon", 1e-5)?, &scale, &bias))
}

/// The extents before an axis, and from it on, as `[examples, numbers]`.
fn split(call: &Call<'_>, x: Shape) -> Result<[usize; 2]> {
    let axis = call.axis(call.int("axis", -1)?, x.rank())?;
    Ok([x.dims()[..axis].iter().product(), x.dims()[axis..].iter().product()])
}

fn layer_norm(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.float(0)?;
    // The precision of sums is that of the device.
    call.ignore(&["stash_type"]);
    call.narrow(1, x.shape())?;
    if call.optional(2).is_some() {
        call.narrow(2, x.shape())?;
    }
    let [examples, count] = split(call, x.shape())?;
    let [one, zero] = [1.0, 0.0].map(|number| x.constant(number).reshape([1]));
    let rows = x.reshape([examples, 1, count]);
    let y = rows.group_norm(1, call.real("epsilon", 1e-5)?, &one, &zero).reshape(x.shape());
    let y = y * call.float(1)?;
    let y = match call.optional_float(2)? {
        Some(bias) => y + bias,
        None => y,
    };
    let mut results = call.floats(y)?;
    if call.wants(1) || call.wants(2) {
        // Means and reciprocal deviations, which keep the axes. They have the type that sums have.
        let axis = call.axis(call.int("axis", -1)?, x.shape().rank())?;
        let kept = (axis..x.shape().rank()).fold(x.shape(), |shape, axis| shape.with(axis, 1));
        let rows = x.reshape([examples, count]);
        let mean = rows.mean_keep(&[1]);
        let variance = (rows - &mean).square().mean_keep(&[1]);
        let deviation = (variance + x.constant(call.real("epsilon", 1e-5)?)).rsqrt();
        let element = named_type(call, "stash_type", Element::F32)?;
        results.extend([mean, deviation].map(|x| Value::Var(x.reshape(kept), element)));
    }
    Ok(results)
}

fn rms_norm(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.float(0)?;
    call.ignore(&["stash_type"]);
    call.narrow(1, x.shape())?;
    let [examples, count] = split(call, x.shape())?;
    let rows = x.reshape([examples, count]);
    let scale = (rows.square().mean_keep(&[1]) + x.constant(call.real("epsilon", 1e-5)?)).rsqrt();
    call.floats((rows * scale).reshape(x.shape()) * call.float(1)?)
}

fn softmax(call: &Call<'_>, along: fn(&Var, usize) -> Var) -> Result<Vec<Value>> {
    let x = call.float(0)?;
    if call.opset >= 13 {
        return call.floats(along(&x, call.axis(call.int("axis", -1)?, x.shape().rank())?));
    }
    // Flattened from `axis` on.
    let axis = call.axis(call.int("axis", 1)?, x.shape().rank())?;
    let dims = x.shape();
    let rows = [dims.dims()[..axis].iter().product(), dims.dims()[axis..].iter().product()];
    call.floats(along(&x.reshape(rows), 1).reshape(x.shape()))
}

/// A product over axes that are kept.
fn product(x: &Var, axes: &[usize]) -> Var {
    if x.ty().dtype.is_float() {
        // The last of the cumulative products.
        let along = |x: Var, &axis: &usize| {
            let last = x.shape()[axis];
            x.cumprod(axis).slice(axis, last - 1..last)
        };
        return axes.iter().fold(x.clone(), along);
    }
    if axes.is_empty() {
        x.clone()
    } else {
        x.prod_over(axes).reshape(axes.iter().fold(x.shape(), |x, &k| x.with(k, 1)))
    }
}

/// A reduction over axes that are kept; over none, it is the identity.
fn over(x: &Var, axes: &[usize], keep: fn(&Var, &[usize]) -> Var) -> Var {
    if axes.is_empty() { x.clone() } else { keep(x, axes) }
}

fn sum(x: &Var, axes: &[usize]) -> Var {
    over(x, axes, Var::sum_keep)
}

/// Means. Those of integers are cut to integers.
fn mean(x: &Var, axes: &[usize]) -> Var {
    if x.ty().dtype.is_float() {
        return over(x, axes, Var::mean_keep);
    }
    #[expect(clippy::cast_precision_loss, reason = "extents are far below 2^53")]
    let count = axes.iter().map(|&axis| x.shape()[axis]).product::<usize>() as f64;
    let sum = sum(x, axes);
    &sum / sum.constant(count)
}

/// The axes of a reduction, in order; none if the node wants elementwise functions only.
fn reduced_axes(call: &Call<'_>, rank: usize) -> Result<Vec<usize>> {
    let is_identity = call.flag("noop_with_empty_axes", false)?;
    let mut axes = match call.optional_axes(1, rank)? {
        Some(axes) if !axes.is_empty() => axes,
        _ if is_identity => Vec::new(),
        _ => (0..rank).collect(),
    };
    axes.sort_unstable();
    Ok(axes)
}

/// A reduction that keeps its axes; they are removed afterwards unless the node keeps them. Integers wrap around.
fn reduce(call: &Call<'_>, keep: impl FnOnce(&Var, &[usize]) -> Var) -> Result<Vec<Value>> {
    if let Some(results) = of_nothing(call)? {
        return Ok(results);
    }
    let x = call.own(0)?;
    let axes = reduced_axes(call, x.shape().rank())?;
    call.computed(&without(call, &x, keep(&x, &axes), &axes)?)
}

/// The largest or the smallest elements along axes.
fn extremum(call: &Call<'_>, keep: fn(&Var, &[usize]) -> Var) -> Result<Vec<Value>> {
    if let Some(results) = of_nothing(call)? {
        return Ok(results);
    }
    let x = ordered(call, &call.own(0)?)?;
    let axes = reduced_axes(call, x.shape().rank())?;
    let y = without(call, &x, over(&x, &axes, keep), &axes)?;
    call.floats(ordered(call, &y)?)
}

/// A reduction that is computed in floats. Of integers, the result is cut to one.
fn reduce_as_floats(call: &Call<'_>, keep: impl FnOnce(&Var, &[usize]) -> Var) -> Result<Vec<Value>> {
    reduce(call, |x, axes| {
        let dtype = x.ty().dtype;
        if dtype.is_float() { keep(x, axes) } else { keep(&x.to_float(), axes).cast(dtype) }
    })
}

/// The reduction of a value without elements: what no number gives, for each element of the result.
#[expect(clippy::cast_possible_truncation, reason = "the bounds of an integer type")]
fn of_nothing(call: &Call<'_>) -> Result<Option<Vec<Value>>> {
    let Value::Known(array) = call.value(0)? else { return Ok(None) };
    if array.len() > 0 {
        return Ok(None);
    }
    let axes = reduced_axes(call, array.dims.len())?;
    let is_kept = call.flag("keepdims", true)?;
    let extent = |(axis, &extent): (usize, &usize)| match axes.contains(&axis) {
        true => is_kept.then_some(1),
        false => Some(extent),
    };
    let dims: Vec<_> = array.dims.iter().enumerate().filter_map(extent).collect();
    let Some(count @ 1..) = read::elements(&dims) else {
        return known(Array::empty(dims, array.element)).map(Some);
    };
    let [low, high] = array.element.bounds();
    let number = match call.op() {
        "ReduceProd" => 1.0,
        "ReduceMax" => low,
        "ReduceMin" if array.element == Element::U64 => bail!(Checkpoint, "the smallest of no integers"),
        "ReduceMin" => high,
        "ReduceLogSum" | "ReduceLogSumExp" => f64::NEG_INFINITY,
        "ReduceMean" => f64::NAN,
        _ => 0.0,
    };
    call.budget.charge(count)?;
    let data = match array.data {
        Data::Floats(_) => Data::Floats(try_filled(count, number)?),
        Data::Ints(_) => Data::Ints(try_filled(count, number as i64)?),
    };
    known(Array { dims, element: array.element, data }).map(Some)
}

/// A result whose reduced axes are removed unless the node keeps them.
fn without(call: &Call<'_>, x: &Var, y: Var, axes: &[usize]) -> Result<Var> {
    if call.flag("keepdims", true)? || y.error().is_some() {
        return Ok(y);
    }
    let rank = x.shape().rank();
    let dims: Vec<_> = (0..rank).filter(|axis| !axes.contains(axis)).map(|axis| x.shape()[axis]).collect();
    Ok(y.reshape(&dims[..]))
}
