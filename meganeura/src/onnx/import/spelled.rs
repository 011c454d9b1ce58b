//! Functions that a file spells out, each of which is recorded as one operation: attention, `softmax(scale·q·kᵀ +
//! mask)·v`, as products with a softmax in between, and GELU, `x·(1 + erf(x/√2))/2`. Nothing then needs what comes
//! before the last node, unless other nodes read it.

use std::f64::consts::SQRT_2;

use super::element::Kind;
use super::operators::is_own;
use super::value::Value;
use crate::onnx::proto;
use crate::ops::{AttentionOptions, Mask};
use crate::{Result, Tape, Var};

/// A value, as a part of such a function.
#[derive(Clone)]
pub(super) enum Spelled {
    /// `factor·x`.
    Scaled { x: Var, factor: f64 },
    /// `factor·q·k + mask`; `k` has a column for each key.
    Scores(Scores),
    /// The softmax of scores.
    Weights(Scores),
    /// `erf(x/√2)`.
    Erf(Var),
    /// `factor·(1 + erf(x/√2))`.
    Distribution { x: Var, factor: f64 },
    /// `factor·x·(1 + erf(x/√2))`.
    Gelu { x: Var, factor: f64 },
}

#[derive(Clone)]
pub(super) struct Scores {
    q: Var,
    k: Var,
    factor: f64,
    mask: Option<Value>,
}

/// What a node computes.
pub(super) enum Found {
    Part(Box<Spelled>),
    /// The whole function.
    Whole(Result<Var>),
}

impl Found {
    fn part(part: Spelled) -> Self {
        Self::Part(Box::new(part))
    }
}

impl Spelled {
    /// This value times a number.
    fn times(&self, by: f64) -> Option<Found> {
        Some(match self.clone() {
            Self::Scaled { x, factor } => Found::part(Self::Scaled { x, factor: factor * by }),
            Self::Scores(scores) if scores.mask.is_none() => {
                Found::part(Self::Scores(Scores { factor: scores.factor * by, ..scores }))
            }
            Self::Distribution { x, factor } => Found::part(Self::Distribution { x, factor: factor * by }),
            Self::Gelu { x, factor } => gelu(x, factor * by),
            Self::Scores(_) | Self::Weights(_) | Self::Erf(_) => return None,
        })
    }
}

/// What a node with these operands computes, if it is a part of a function or completes it. Some of the operands are
/// parts themselves.
pub(super) fn found(
    node: &proto::Node,
    inputs: &[Option<Value>],
    parts: &[Option<Spelled>],
    (opset, tape): (i64, &Tape),
) -> Option<Found> {
    let is_plain = node.attribute.is_empty() || node.op_type == "Softmax";
    if !is_own(&node.domain) || node.output.len() != 1 || !is_plain {
        return None;
    }
    let part = |k: usize| parts.get(k).and_then(Option::as_ref);
    match (&node.op_type[..], inputs) {
        ("MatMul", [Some(a), Some(b)]) => match part(0) {
            Some(Spelled::Weights(scores)) => scores.attention(b, tape).map(Found::Whole),
            _ => Scores::of([a, b], [part(0), part(1)]).map(|scores| Found::part(Spelled::Scores(scores))),
        },
        ("Mul", [Some(a), Some(b)]) => match (number(a), number(b)) {
            (_, Some(by)) => scaled(a, part(0), by),
            (Some(by), _) => scaled(b, part(1), by),
            _ => product([a, b], [part(0), part(1)]).or_else(|| product([b, a], [part(1), part(0)])),
        },
        ("Div", [Some(a), Some(b)]) => scaled(a, part(0), number(b)?.recip()),
        ("Add", [Some(a), Some(b)]) => match (part(0), part(1)) {
            (Some(Spelled::Scores(scores)), None) => scores.masked(b),
            (None, Some(Spelled::Scores(scores))) => scores.masked(a),
            (Some(Spelled::Erf(x)), None) if number(b) == Some(1.0) => distribution(x),
            (None, Some(Spelled::Erf(x))) if number(a) == Some(1.0) => distribution(x),
            _ => None,
        },
        ("Erf", [Some(_)]) => match part(0) {
            Some(Spelled::Scaled { x, factor }) if (factor * SQRT_2 - 1.0).abs() < 1e-6 => {
                Some(Found::part(Spelled::Erf(x.clone())))
            }
            _ => None,
        },
        ("Softmax", [Some(Value::Var(x, _))]) => {
            let axis = node.attribute.iter().find(|attribute| attribute.name == "axis").and_then(|axis| axis.i);
            let axis = axis.unwrap_or(if opset >= 13 { -1 } else { 1 });
            let is_last = axis == -1 || usize::try_from(axis) == Ok(x.shape().rank() - 1);
            match part(0) {
                Some(Spelled::Scores(scores)) if is_last => Some(Found::part(Spelled::Weights(scores.clone()))),
                _ => None,
            }
        }
        _ => None,
    }
}

impl Scores {
    /// A product of two batches of matrices.
    fn of([a, b]: [&Value; 2], [of_a, of_b]: [Option<&Spelled>; 2]) -> Option<Self> {
        let factor = |x: &Value, part: Option<&Spelled>| match (x, part) {
            (_, Some(Spelled::Scaled { x, factor })) => Some((x.clone(), *factor)),
            (Value::Var(x, element), _) if element.kind() == Kind::Float => Some((x.clone(), 1.0)),
            _ => None,
        };
        let ((q, a), (k, b)) = (factor(a, of_a)?, factor(b, of_b)?);
        matches(&q, &k).then(|| Self { q, k, factor: a * b, mask: None })
    }

    /// With a number that is added to each score.
    fn masked(&self, mask: &Value) -> Option<Found> {
        let (q, k, dims) = (self.q.shape(), self.k.shape(), mask.dims());
        let last = q.rank() - 1;
        let scores = q.with(last, k[last]);
        let mut extents = dims.iter().rev().zip(scores.dims().iter().rev());
        let fits = dims.len() <= scores.rank() && extents.all(|(&mask, &extent)| mask == 1 || mask == extent);
        let is_mask = self.mask.is_none() && mask.kind() == Kind::Float && fits;
        is_mask.then(|| Found::part(Spelled::Scores(Self { mask: Some(mask.clone()), ..self.clone() })))
    }

    /// The product of the weights with values. `None` while training, where the gradient would compute the scores once
    /// more.
    fn attention(&self, values: &Value, tape: &Tape) -> Option<Result<Var>> {
        let (Self { q, k, factor, mask }, Value::Var(values, _)) = (self, values) else { return None };
        if tape.is_training() || !matches(k, values) {
            return None;
        }
        let mask = match mask.as_ref().map(|mask| mask.float(tape)).transpose() {
            Ok(mask) => mask,
            Err(error) => return Some(Err(error)),
        };
        let mask = mask.as_ref().map(Mask::Bias);
        let options = AttentionOptions { mask, scale: Some(*factor), ..AttentionOptions::default() };
        Some(Ok(q.attention_with(&k.t(), values, options)))
    }
}

/// `true` for two batches of as many matrices, whose products exist.
fn matches(a: &Var, b: &Var) -> bool {
    let (a, b) = (a.shape(), b.shape());
    let rank = a.rank();
    rank >= 3 && b.rank() == rank && a.dims()[..rank - 2] == b.dims()[..rank - 2] && a[rank - 1] == b[rank - 2]
}

/// A known number other than 0.
fn number(value: &Value) -> Option<f64> {
    let Value::Known(array) = value else { return None };
    match (array.kind(), &array.as_floats()[..]) {
        (Kind::Float, &[number]) if number.is_normal() && array.dims.len() <= 1 => Some(number),
        _ => None,
    }
}

/// A value times a number.
fn scaled(x: &Value, part: Option<&Spelled>, by: f64) -> Option<Found> {
    match (part, x) {
        (Some(part), _) => part.times(by),
        (None, Value::Var(x, element)) if element.kind() == Kind::Float && x.shape().rank() > 0 => {
            Some(Found::part(Spelled::Scaled { x: x.clone(), factor: by }))
        }
        _ => None,
    }
}

fn distribution(x: &Var) -> Option<Found> {
    Some(Found::part(Spelled::Distribution { x: x.clone(), factor: 1.0 }))
}

/// A value, or a number times it, times the distribution of the same value.
fn product([a, _]: [&Value; 2], [of_a, of_b]: [Option<&Spelled>; 2]) -> Option<Found> {
    let Some(Spelled::Distribution { x, factor }) = of_b else { return None };
    let (y, by) = match (of_a, a) {
        (Some(Spelled::Scaled { x, factor }), _) => (x, *factor),
        (_, Value::Var(y, _)) => (y, 1.0),
        _ => return None,
    };
    (x.id().ok()? == y.id().ok()?).then(|| gelu(x.clone(), factor * by))
}

/// `factor·x·(1 + erf(x/√2))`, which is GELU with a factor of a half.
fn gelu(x: Var, factor: f64) -> Found {
    if (factor - 0.5).abs() < 1e-6 { Found::Whole(Ok(x.gelu())) } else { Found::part(Spelled::Gelu { x, factor }) }
}
