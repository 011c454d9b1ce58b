//! Scores of classes beside labels, on the host.

use crate::error::bail;
use crate::{Result, Shape, Tensor};

/// Scores `[N, C, …]` and their labels `[N, …]`. A row is the C scores of one label.
pub(super) struct Scores {
    values: Vec<f64>,
    labels: Vec<u32>,
    classes: usize,
    /// The distance from one class to the next, in elements.
    stride: usize,
    ignored: Option<u32>,
}

impl Scores {
    /// Reads both tensors once. Labels that are not ignored are below `C`, and their rows have no NaN.
    pub(super) async fn read(scores: &Tensor, labels: &Tensor, ignored: Option<u32>) -> Result<Self> {
        let (found, shape) = (scores.ty(), scores.shape());
        let [n, classes, rest @ ..] = shape.dims() else {
            bail!(Shape, "the scores must be [N, classes, …], they are {found}");
        };
        if !found.dtype.is_float() {
            bail!(Shape, "the scores must be floats, they are {found}");
        }
        let labels = read_labels(labels, Shape::new(&[&[*n], rest].concat()), shape).await?;
        let stride = rest.iter().product();
        let scores = Self { values: scores.to_f64_vec_async().await?, labels, classes: *classes, stride, ignored };
        for (row, label) in scores.rows() {
            expect_class(row, label, scores.classes)?;
            if scores.of(row).any(f64::is_nan) {
                bail!(NotFinite, "the scores {found} of example {row} have NaN");
            }
        }
        Ok(scores)
    }

    pub(super) fn classes(&self) -> usize {
        self.classes
    }

    /// The rows whose label is not ignored, with that label.
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, u32)> {
        let rows = self.labels.iter().copied().enumerate();
        rows.filter(|&(_, label)| Some(label) != self.ignored)
    }

    /// The scores of a row, class by class.
    fn of(&self, row: usize) -> impl Iterator<Item = f64> {
        let first = row / self.stride * self.stride * self.classes + row % self.stride;
        (0..self.classes).map(move |class| self.values[first + class * self.stride])
    }

    /// The number of classes that rank before this one: those with a larger score, and lower classes with an equal one.
    pub(super) fn rank(&self, row: usize, class: u32) -> usize {
        let class = class as usize;
        let Some(own) = self.of(row).nth(class) else { return self.classes };
        self.of(row).enumerate().filter(|&(other, score)| score > own || (score == own && other < class)).count()
    }

    /// The class of the largest score; of equal scores, the lowest class.
    pub(super) fn best(&self, row: usize) -> usize {
        let (mut best, mut largest) = (0, f64::NEG_INFINITY);
        for (class, score) in self.of(row).enumerate() {
            if score > largest {
                (best, largest) = (class, score);
            }
        }
        best
    }
}

/// Reads labels of this shape, for predictions of shape `predictions`.
pub(super) async fn read_labels(labels: &Tensor, shape: Shape, predictions: Shape) -> Result<Vec<u32>> {
    if labels.ty().dtype.is_float() || labels.shape() != shape {
        bail!(Shape, "the labels must be integers {shape} for predictions {predictions}, they are {}", labels.ty());
    }
    labels.to_index_vec_async().await
}

pub(super) fn expect_class(row: usize, label: u32, classes: usize) -> Result<()> {
    if label as usize >= classes {
        bail!(Argument, "example {row} has label {label}, and there are {classes} classes");
    }
    Ok(())
}
