//! `ai.onnx.ml`: linear models, ensembles of trees, and what scales their inputs, as `scikit-learn`, `LightGBM` and
//! `XGBoost` are exported.

use super::call::{Call, Operators};
use super::element::Element;
use super::trees;
use super::value::{Value, sound};
use crate::error::{bail, shortened};
use crate::{Result, Tensor, Var};

/// The domain of these operators.
pub(super) const DOMAIN: &str = "ai.onnx.ml";

pub(super) const OPERATORS: Operators = &[
    ("LinearClassifier", linear_classifier),
    ("LinearRegressor", |call| {
        let y = linear(call, call.int("targets", 1)?)?;
        let transform = Transform::of(call)?;
        result(transform.apply(y)?)
    }),
    ("Normalizer", normalizer),
    ("Scaler", |call| {
        let x = call.float(0)?;
        let row = |name: &str, default: f64| -> Result<Var> {
            let numbers = call.reals(name)?.unwrap_or_else(|| vec![default]);
            match numbers.len() {
                1 => Ok(x.constant(numbers[0])),
                count if Some(&count) == x.shape().dims().last() => constant(call, &[count], &numbers),
                count => bail!(Checkpoint, "the attribute `{name}` has {count} numbers, for {}", x.shape()),
            }
        };
        result((&x - row("offset", 0.0)?) * row("scale", 1.0)?)
    }),
    ("TreeEnsemble", trees::ensemble),
    ("TreeEnsembleClassifier", trees::classifier),
    ("TreeEnsembleRegressor", trees::regressor),
];

/// Each takes a tensor of numbers.
pub(super) const SIGNATURES: &[(&str, i64, &str)] = &[
    ("LinearClassifier", 1, "N"),
    ("LinearRegressor", 1, "N"),
    ("Normalizer", 1, "N"),
    ("Scaler", 1, "N"),
    ("TreeEnsemble", 5, "F"),
    ("TreeEnsembleClassifier", 1, "N"),
    ("TreeEnsembleRegressor", 1, "N"),
];

/// Floats, as the only result.
fn result(y: Var) -> Result<Vec<Value>> {
    Ok(vec![Value::Var(sound(y)?, Element::F32)])
}

/// Numbers of a file on the tape.
pub(super) fn constant(call: &Call<'_>, dims: &[usize], numbers: &[f64]) -> Result<Var> {
    sound(call.tape.input(&Tensor::from_f64(&call.tape.device(), call.shape(dims)?, numbers)?))
}

/// The numbers of rows and of columns of operand 0; a vector is one row.
pub(super) fn rows(call: &Call<'_>) -> Result<Var> {
    let x = call.float(0)?;
    match *x.shape().dims() {
        [columns] => Ok(x.reshape([1, columns])),
        [_, _] => Ok(x),
        _ => bail!(Checkpoint, "operand 0 is {}, not a matrix of examples by rows", x.shape()),
    }
}

/// `x·Cᵀ + b`, with the rows of `C` in `coefficients` and `b` in `intercepts`: `[N, count]`.
fn linear(call: &Call<'_>, count: i64) -> Result<Var> {
    let x = rows(call)?;
    let (Some(coefficients), columns) = (call.reals("coefficients")?, x.shape()[1]) else {
        bail!(Checkpoint, "the attribute `coefficients` is missing");
    };
    let count = usize::try_from(count).unwrap_or(0);
    if count == 0 || count.checked_mul(columns) != Some(coefficients.len()) {
        bail!(Checkpoint, "{} coefficients for {count} results of {columns} numbers", coefficients.len());
    }
    let y = x.matmul(&constant(call, &[count, columns], &coefficients)?.t());
    match call.reals("intercepts")?.unwrap_or_default() {
        none if none.is_empty() => Ok(y),
        some if some.len() == count => Ok(y + constant(call, &[count], &some)?),
        some => bail!(Checkpoint, "{} intercepts for {count} results", some.len()),
    }
}

fn linear_classifier(call: &Call<'_>) -> Result<Vec<Value>> {
    let classes = Classes::of(call, "classlabels_ints")?;
    // Intercepts tell the number of rows; two classes may have one.
    let count = call.reals("intercepts")?.map_or(classes.count, |intercepts| intercepts.len());
    call.ignore(&["multi_class"]);
    let (y, transform) = (linear(call, i64::try_from(count).unwrap_or(0))?, Transform::of(call)?);
    if (count, classes.count) == (1, 2) {
        let label = y.gt(y.constant(0.0)).reshape([y.shape()[0]]);
        let y = if transform == Transform::Logistic { y.sigmoid() } else { y };
        let scores = Var::concat(&[&(y.constant(1.0) - &y), &y], 1);
        return classes.results(call, &label, scores);
    }
    if count != classes.count {
        bail!(Checkpoint, "{count} rows of coefficients for {} classes", classes.count);
    }
    classes.results(call, &y.argmax(1).to_float(), transform.apply(y)?)
}

fn normalizer(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = rows(call)?;
    let norm = match call.text("norm", "MAX")? {
        "L1" => x.abs().sum_keep(&[1]),
        "L2" => x.square().sum_keep(&[1]).sqrt(),
        // Of the numbers, not of their sizes.
        "MAX" => x.max_keep(&[1]),
        other => bail!(Checkpoint, "the attribute `norm` is {:?}", shortened(other)),
    };
    let zero = norm.constant(0.0);
    result(&x / norm.eq(&zero).where_cond(&norm.constant(1.0), &norm))
}

/// What becomes of the scores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Transform {
    Nothing,
    Softmax,
    Logistic,
}

impl Transform {
    /// The attribute `post_transform` of all operators but `TreeEnsemble`.
    pub(super) fn of(call: &Call<'_>) -> Result<Self> {
        Ok(match call.text("post_transform", "NONE")? {
            "NONE" => Self::Nothing,
            "SOFTMAX" => Self::Softmax,
            "LOGISTIC" => Self::Logistic,
            other => {
                bail!(Checkpoint, "the attribute `post_transform` is {:?}, which is not supported", shortened(other))
            }
        })
    }

    /// Of scores `[N, C]`.
    pub(super) fn apply(self, y: Var) -> Result<Var> {
        sound(match self {
            Self::Nothing => y,
            Self::Softmax => y.softmax(1),
            Self::Logistic => y.sigmoid(),
        })
    }
}

/// The labels of a classifier.
pub(super) struct Classes {
    pub(super) count: usize,
    /// Integers, or the numbers of texts.
    labels: Vec<i64>,
    element: Element,
}

impl Classes {
    /// The labels in an attribute of integers, or in `classlabels_strings`.
    pub(super) fn of(call: &Call<'_>, integers: &str) -> Result<Self> {
        let (ints, texts) = (call.optional_list(integers)?, call.texts("classlabels_strings")?);
        let (labels, element) = match (ints.unwrap_or_default(), texts.unwrap_or_default()) {
            (ints, texts) if texts.is_empty() => (ints, Element::I64),
            (ints, texts) if ints.is_empty() => {
                let mut all = call.texts.borrow_mut();
                (texts.iter().map(|text| all.number(text)).collect(), Element::String)
            }
            _ => bail!(Checkpoint, "its labels are both integers and texts"),
        };
        if labels.len() < 2 {
            bail!(Checkpoint, "{} classes; 2 are the fewest", labels.len());
        }
        Ok(Self { count: labels.len(), labels, element })
    }

    /// The labels of these classes, floats `[N]`, and the scores.
    pub(super) fn results(&self, call: &Call<'_>, class: &Var, scores: Var) -> Result<Vec<Value>> {
        let labels = Tensor::from_i64(&call.tape.device(), [self.count], &self.labels)?;
        let labels = call.tape.input(&labels).gather(0, &sound(class.clone())?.to_index());
        Ok(vec![Value::Var(sound(labels)?, self.element), Value::Var(sound(scores)?, Element::F32)])
    }
}
