//! Labels of classifications, and their use in losses.

use super::Reduction;
use crate::functions::named;
use crate::{Error, ErrorKind, Shape, Tape, Tensor, Var};

/// The labels of a classification: a [`Tensor`] of integers, or a [`Var`], such as an input of a `TrainStep`. A label
/// that is no `u32`, such as -100, counts as `u32::MAX`, which can be the ignored one.
pub trait Labels {
    /// The labels on this tape.
    #[doc(hidden)]
    fn on(&self, tape: &Tape) -> Var;
}

impl Labels for Tensor {
    #[track_caller]
    fn on(&self, tape: &Tape) -> Var {
        tape.input(self).as_index()
    }
}

impl Labels for Var {
    fn on(&self, _: &Tape) -> Var {
        self.as_index()
    }
}

impl Var {
    /// The number of classes in scores `[N, C, …]`; 0 without that axis.
    pub(super) fn classes(&self) -> usize {
        self.shape().dims().get(1).copied().unwrap_or(0)
    }

    /// The scores, poisoned, if they are not `[N, C, …]`, the labels not integers `[N, …]`, or a known label is `C` or
    /// above.
    #[track_caller]
    pub(super) fn mislabelled(&self, name: &'static str, labels: &Self, ignored: Option<u32>) -> Option<Self> {
        if labels.error().is_some() {
            return Some(labels.clone());
        }
        let (kind, message) = match *self.shape().dims() {
            _ if !self.ty().dtype.is_float() => {
                (ErrorKind::Shape, format!("the scores must be floats, they are {}", self.ty().dtype))
            }
            [n, classes, ref rest @ ..] => {
                let rows = Shape::new(&[&[n], rest].concat());
                let beyond = labels.largest_index(ignored).filter(|&label| label as usize >= classes);
                if labels.ty().dtype.is_float() || labels.shape() != rows {
                    let message = format!(
                        "the labels must be integers {rows} for scores {}, they are {}",
                        self.ty(),
                        labels.ty()
                    );
                    (ErrorKind::Shape, message)
                } else if let Some(label) = beyond {
                    let message =
                        format!("{} is out of range, the scores have {classes} classes", named("label", label));
                    (ErrorKind::Argument, message)
                } else {
                    // Labels of an input that is not bound yet are checked when it is.
                    labels.note_range(name, classes, ignored);
                    return None;
                }
            }
            _ => (ErrorKind::Shape, format!("the scores must be [N, classes, …], they are {}", self.ty())),
        };
        let error = Error::new(kind, message).in_op(name).operand(self.ty(), self.path());
        Some(self.fail(error.operand(labels.ty(), None)))
    }

    /// The scores, poisoned, if the class weights are not `[C]`.
    #[track_caller]
    pub(super) fn misweighted(&self, name: &'static str, weights: Option<&Tensor>) -> Option<Self> {
        let classes = self.classes();
        let weights = weights.filter(|weights| weights.shape() != Shape::from([classes]))?;
        let message =
            format!("the class weights must be [{classes}] for scores {}, they are {}", self.ty(), weights.ty());
        Some(self.senseless(name, message))
    }

    /// The weight of each label's class, 1 without class weights; 0 where the label is ignored, NaN for a label out of
    /// range.
    #[track_caller]
    pub(super) fn row_weights(&self, labels: &Self, weights: Option<&Tensor>, ignored: Option<u32>) -> Self {
        match weights {
            Some(weights) => self.tape().label_weights(&self.tape().input(weights), labels, ignored),
            None => self.present(labels, ignored),
        }
    }

    /// 1 for each label that is not ignored, else 0.
    #[track_caller]
    pub(super) fn present(&self, labels: &Self, ignored: Option<u32>) -> Self {
        let ones = self.constant(1.0).expand([self.classes()]);
        self.tape().label_weights(&ones, labels, ignored)
    }

    /// 1 where the class is the label, else 0: `[N, C, …]`. Rows of an ignored label are 0.
    #[track_caller]
    pub(super) fn is_label(&self, labels: &Self, ignored: Option<u32>) -> Self {
        // Counted from 1, because an ignored label has a weight of 0.
        let numbers = self.tape().iota([self.classes()], 0) + self.constant(1.0);
        let own = self.tape().label_weights(&numbers, labels, ignored);
        own.reshape(self.kept_along(|axis| axis != 1)).eq(numbers.reshape(self.kept_along(|axis| axis == 1)))
    }

    /// The shape with the extents of some axes, and 1 elsewhere.
    pub(super) fn kept_along(&self, keeps: fn(usize) -> bool) -> Shape {
        let extent = |(axis, &extent): (usize, &usize)| if keeps(axis) { extent } else { 1 };
        Shape::new(&self.shape().dims().iter().enumerate().map(extent).collect::<Vec<_>>())
    }
}

impl Reduction {
    /// The losses of single labels, whose mean is divided by the sum of their weights.
    #[track_caller]
    pub(super) fn of_weighted(self, losses: &Var, weights: &Var) -> Var {
        match self {
            Self::Mean => losses.sum() / weights.sum(),
            _ => self.of(losses),
        }
    }
}
