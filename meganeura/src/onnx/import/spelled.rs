//! Attention that a file spells out: `softmax(scale·q·kᵀ + mask)·v` as products with a softmax in between. Its second
//! product is recorded as one operation; nothing then needs the scores and weights, unless other nodes read them.

use super::element::Kind;
use super::operators::is_own;
use super::value::Value;
use crate::onnx::proto;
use crate::ops::{AttentionOptions, Mask};
use crate::{Result, Tape, Var};

/// A value, as a part of an attention.
#[derive(Clone)]
pub(super) enum Spelled {
    /// `factor·x`.
    Scaled { x: Var, factor: f64 },
    /// `factor·q·k + mask`; `k` has a column for each key.
    Scores(Scores),
    /// The softmax of scores.
    Weights(Scores),
}

#[derive(Clone)]
pub(super) struct Scores {
    q: Var,
    k: Var,
    factor: f64,
    mask: Option<Value>,
}

impl Spelled {
    /// The result of a node with these operands, some of which are parts themselves; `None` for other values.
    pub(super) fn of(node: &proto::Node, inputs: &[Option<Value>], parts: &[Option<Self>], opset: i64) -> Option<Self> {
        if !is_own(&node.domain) || node.output.len() != 1 {
            return None;
        }
        match (&node.op_type[..], inputs) {
            ("MatMul", [Some(a), Some(b)]) => Scores::of([a, b], parts).map(Self::Scores),
            ("Mul", [Some(x), Some(factor)]) if number(factor).is_some() => scaled(x, parts.first()?, number(factor)?),
            ("Mul", [Some(factor), Some(x)]) => scaled(x, parts.get(1)?, number(factor)?),
            ("Div", [Some(x), Some(divisor)]) => scaled(x, parts.first()?, number(divisor)?.recip()),
            ("Add", [Some(a), Some(b)]) => match parts {
                [Some(Self::Scores(scores)), None] => scores.masked(b),
                [None, Some(Self::Scores(scores))] => scores.masked(a),
                _ => None,
            },
            ("Softmax", [Some(Value::Var(x, _))]) => {
                let axis = node.attribute.iter().find(|attribute| attribute.name == "axis").and_then(|axis| axis.i);
                let axis = axis.unwrap_or(if opset >= 13 { -1 } else { 1 });
                let is_last = axis == -1 || usize::try_from(axis) == Ok(x.shape().rank() - 1);
                match parts {
                    [Some(Self::Scores(scores))] if is_last => Some(Self::Weights(scores.clone())),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// The product of weights with values, as one operation. `None` if these are no weights, or while training, where
    /// the gradient would compute the scores once more.
    pub(super) fn attention(part: Option<&Self>, values: &Value, tape: &Tape) -> Option<Result<Var>> {
        let (Some(Self::Weights(Scores { q, k, factor, mask })), Value::Var(values, _)) = (part, values) else {
            return None;
        };
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

impl Scores {
    /// A product of two batches of matrices.
    fn of([a, b]: [&Value; 2], parts: &[Option<Spelled>]) -> Option<Self> {
        let factor = |x: &Value, part: Option<&Option<Spelled>>| match (x, part) {
            (_, Some(Some(Spelled::Scaled { x, factor }))) => Some((x.clone(), *factor)),
            (Value::Var(x, element), _) if element.kind() == Kind::Float => Some((x.clone(), 1.0)),
            _ => None,
        };
        let ((q, a), (k, b)) = (factor(a, parts.first())?, factor(b, parts.get(1))?);
        matches(&q, &k).then(|| Self { q, k, factor: a * b, mask: None })
    }

    /// With a number that is added to each score.
    fn masked(&self, mask: &Value) -> Option<Spelled> {
        let (q, k, dims) = (self.q.shape(), self.k.shape(), mask.dims());
        let last = q.rank() - 1;
        let scores = q.with(last, k[last]);
        let fits =
            dims.iter().rev().zip(scores.dims().iter().rev()).all(|(&mask, &extent)| mask == 1 || mask == extent);
        let is_mask = self.mask.is_none() && mask.kind() == Kind::Float && dims.len() <= scores.rank() && fits;
        is_mask.then(|| Spelled::Scores(Self { mask: Some(mask.clone()), ..self.clone() }))
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

fn scaled(x: &Value, part: &Option<Spelled>, by: f64) -> Option<Spelled> {
    match (part, x) {
        (Some(Spelled::Scaled { x, factor }), _) => Some(Spelled::Scaled { x: x.clone(), factor: factor * by }),
        (Some(Spelled::Scores(scores)), _) if scores.mask.is_none() => {
            Some(Spelled::Scores(Scores { factor: scores.factor * by, ..scores.clone() }))
        }
        (None, Value::Var(x, element)) if element.kind() == Kind::Float => {
            Some(Spelled::Scaled { x: x.clone(), factor: by })
        }
        _ => None,
    }
}
