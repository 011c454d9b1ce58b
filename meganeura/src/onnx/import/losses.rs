//! Losses of class scores against indices of classes.

use super::call::{Call, Operators};
use super::value::{Value, sound};
use crate::error::bail;
use crate::{Result, Var};

pub(super) const OPERATORS: Operators = &[
    ("NegativeLogLikelihoodLoss", |call| {
        let scores = call.float(0)?;
        call.floats(negative_log_likelihood(call, &scores)?)
    }),
    ("SoftmaxCrossEntropyLoss", |call| {
        let x = call.float(0)?;
        call.axis(1, x.shape().rank())?;
        let scores = sound(x.log_softmax(1))?;
        let element = call.value(0)?.element();
        let loss = negative_log_likelihood(call, &scores)?;
        Ok(vec![Value::Var(loss, element), Value::Var(scores, element)])
    }),
];

/// `−w[t]·x[n, t, …]` for scores `x [N, C, …]`, labels `t [N, …]` and weights `w [C]`, reduced as the node says. A mean
/// divides by the sum of the weights. Labels of `ignore_index` count nothing.
fn negative_log_likelihood(call: &Call<'_>, x: &Var) -> Result<Var> {
    let labels = call.float(1)?;
    let scores = x.shape();
    let [n, classes, rest @ ..] = scores.dims() else {
        bail!(Checkpoint, "scores {scores} have no axis of classes");
    };
    let (alone, column) = ([&[*n], rest].concat(), [&[*n, 1], rest].concat());
    if labels.shape().dims() != alone {
        bail!(Checkpoint, "labels {} of scores {scores}", labels.shape());
    }
    let (zero, one) = (x.constant(0.0), x.constant(1.0));
    let ignored = call.optional_int("ignore_index")?.map(|index| labels.eq(labels.constant(index as f64)));
    let without = |x: Var, other: &Var| match &ignored {
        Some(ignored) => ignored.where_cond(other, &x),
        None => x,
    };
    let index = without(labels.clone(), &zero).to_index();
    let losses = -sound(x.gather(1, &index.reshape(&column[..])))?.reshape(&alone[..]);
    let weights = match call.optional(2) {
        Some(_) => {
            let of_classes = call.vector(2, *classes)?.reshape([*classes, 1]);
            Some(sound(of_classes.embedding(&index))?.reshape(&alone[..]))
        }
        None => None,
    };
    let losses = without(weights.as_ref().map_or_else(|| losses.clone(), |weights| &losses * weights), &zero);
    match call.text("reduction", "mean")? {
        "none" => Ok(losses),
        "sum" => Ok(losses.sum()),
        "mean" if weights.is_none() && ignored.is_none() => Ok(losses.mean()),
        "mean" => {
            let weights = weights.unwrap_or_else(|| one.expand(losses.shape()));
            Ok(losses.sum() / without(weights, &zero).sum())
        }
        other => bail!(Checkpoint, "the attribute `reduction` is {other:?}"),
    }
}
