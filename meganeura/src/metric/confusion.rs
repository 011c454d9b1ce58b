//! The confusion matrix, and the metrics that follow from it.

use std::fmt;

use super::scores::{Scores, expect_class, read_labels};
use super::{counted, share};
use crate::error::{bail, here, here_async};
use crate::host::{reserve, try_filled};
#[cfg(not(target_family = "wasm"))]
use crate::wait::block_on;
use crate::world::World;
use crate::{Result, Tensor};

/// The counts of examples by label and prediction: precision, recall and F1 of the classes, macro and micro F1.
///
/// ```
/// use meganeura::metric::Confusion;
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let mut confusion = Confusion::new(2)?;
/// let predicted = Tensor::indices(&device, [4], &[0, 1, 1, 1])?; // or scores [4, 2]
/// let labels = Tensor::indices(&device, [4], &[0, 0, 1, 1])?;
/// confusion.update(&predicted, &labels)?;
/// assert_eq!(confusion.count(0, 1), 1); // an example of class 0 was taken for class 1
/// assert_eq!((confusion.precision(0), confusion.recall(0)), (Some(1.0), Some(0.5)));
/// assert_eq!(confusion.accuracy()?, 0.75);
/// # Ok::<(), meganeura::Error>(())
/// ```
///
/// The F1 of a class is also its Dice coefficient. Where a model gives one number for each example, a threshold makes
/// classes of them: `scores.gt(0.5).to_index()`.
#[derive(Clone, PartialEq, Eq)]
#[must_use]
pub struct Confusion {
    classes: usize,
    ignored: Option<u32>,
    /// `[label, prediction]`
    counts: Vec<u64>,
}

impl Confusion {
    /// A matrix of `classes` classes.
    ///
    /// # Errors
    ///
    /// Fails if there are no classes, or no memory for the matrix.
    #[track_caller]
    pub fn new(classes: usize) -> Result<Self> {
        here(|| {
            if classes == 0 {
                bail!(Argument, "a confusion matrix needs at least one class");
            }
            let counts = try_filled(classes.saturating_mul(classes), 0);
            let counts =
                counts.map_err(|error| error.context(format_args!("a confusion matrix of {classes} classes")))?;
            Ok(Self { classes, ignored: None, counts })
        })
    }

    /// Excludes examples of this label, whatever their predictions: padding, or pixels without a class.
    pub fn ignored(self, label: u32) -> Self {
        Self { ignored: Some(label), ..self }
    }

    /// Counts a batch: scores `[N, C, …]`, of which the largest is the prediction (of equal scores, the lowest class),
    /// or predicted classes `[N, …]`; and labels `[N, …]`.
    ///
    /// # Errors
    ///
    /// Fails if the shapes do not fit, a label or a prediction is not below `C`, or a score is NaN.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    pub fn update(&mut self, predictions: &Tensor, labels: &Tensor) -> Result<()> {
        block_on(self.update_async(predictions, labels))
    }

    /// Like [`update`](Self::update), without blocking the thread.
    ///
    /// # Errors
    ///
    /// Fails like [`update`](Self::update).
    #[track_caller]
    pub fn update_async(&mut self, predictions: &Tensor, labels: &Tensor) -> impl Future<Output = Result<()>> {
        here_async(async {
            let (mut pairs, shape) = (Vec::new(), predictions.shape());
            reserve(&mut pairs, labels.shape().elements())?;
            if !predictions.ty().dtype.is_float() {
                let labels = read_labels(labels, shape, shape).await?;
                for (row, (label, predicted)) in
                    labels.into_iter().zip(predictions.to_index_vec_async().await?).enumerate()
                {
                    if Some(label) == self.ignored {
                        continue;
                    }
                    expect_class(row, label, self.classes)?;
                    if predicted as usize >= self.classes {
                        let classes = self.classes;
                        bail!(
                            Argument,
                            "the prediction of example {row} is {predicted}, and there are {classes} classes"
                        );
                    }
                    pairs.push((label, predicted as usize));
                }
            } else {
                let scores = Scores::read(predictions, labels, self.ignored).await?;
                if scores.classes() != self.classes {
                    bail!(Shape, "the scores must have {} classes, their shape is {shape}", self.classes);
                }
                pairs.extend(scores.rows().map(|(row, label)| (label, scores.best(row))));
            }
            for (label, predicted) in pairs {
                self.counts[label as usize * self.classes + predicted] += 1;
            }
            Ok(())
        })
    }

    /// Adds the counts of another accumulator.
    ///
    /// # Errors
    ///
    /// Fails if the other has another number of classes, or another ignored label.
    #[track_caller]
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        here(|| {
            if (self.classes, self.ignored) != (other.classes, other.ignored) {
                let (own, others) = (self.classes, other.classes);
                bail!(
                    Argument,
                    "a confusion matrix of {others} classes cannot be merged into one of {own}, nor one that ignores another label"
                );
            }
            self.counts.iter_mut().zip(&other.counts).for_each(|(count, other)| *count += other);
            Ok(())
        })
    }

    /// The matrix over all ranks, the same on each. The call is collective: it waits for all ranks.
    ///
    /// # Errors
    ///
    /// Fails if another rank called something else, or left.
    #[track_caller]
    pub fn over(&self, world: &World) -> Result<Self> {
        here(|| Ok(Self { counts: counted(world, &self.counts)?, ..self.clone() }))
    }

    /// The number of classes.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// The number of examples of class `label` predicted as class `predicted`; 0 for classes out of range.
    #[must_use]
    pub fn count(&self, label: usize, predicted: usize) -> u64 {
        if label.max(predicted) < self.classes { self.counts[label * self.classes + predicted] } else { 0 }
    }

    /// The rows of the matrix: for each label the counts of its predictions.
    pub fn rows(&self) -> impl Iterator<Item = &[u64]> {
        self.counts.chunks_exact(self.classes)
    }

    /// The share of the predictions of this class that are right; `None` if it was never predicted.
    #[must_use]
    pub fn precision(&self, class: usize) -> Option<f64> {
        share(self.count(class, class), self.predicted(class), "").ok()
    }

    /// The share of the examples of this class that were found; `None` if there are none.
    #[must_use]
    pub fn recall(&self, class: usize) -> Option<f64> {
        share(self.count(class, class), self.labelled(class), "").ok()
    }

    /// The intersection over the union of the class's examples and predictions, `TP / (TP + FP + FN)`: the Jaccard
    /// index of segmentation, with a pixel an example. `None` if the class has neither examples nor predictions.
    #[must_use]
    pub fn iou(&self, class: usize) -> Option<f64> {
        let both = self.count(class, class);
        share(both, self.predicted(class) + self.labelled(class) - both, "").ok()
    }

    /// The mean [IoU](Self::iou) of all classes that have examples or predictions.
    ///
    /// # Errors
    ///
    /// Fails if no examples were counted.
    #[track_caller]
    pub fn mean_iou(&self) -> Result<f64> {
        here(|| self.mean_of_classes("IoU", |class| self.iou(class)))
    }

    /// The harmonic mean of precision and recall, `2·TP / (2·TP + FP + FN)`, which is also the Dice coefficient; `None`
    /// if the class has neither examples nor predictions.
    #[must_use]
    pub fn f1(&self, class: usize) -> Option<f64> {
        share(2 * self.count(class, class), self.predicted(class) + self.labelled(class), "").ok()
    }

    /// The share of right predictions, from 0 to 1.
    ///
    /// # Errors
    ///
    /// Fails if no examples were counted.
    #[track_caller]
    pub fn accuracy(&self) -> Result<f64> {
        here(|| {
            let right = (0..self.classes).map(|class| self.count(class, class)).sum();
            share(right, self.counts.iter().sum(), "the accuracy")
        })
    }

    /// The mean F1 of all classes that have examples or predictions: each class counts equally, however rare.
    ///
    /// # Errors
    ///
    /// Fails if no examples were counted.
    #[track_caller]
    pub fn macro_f1(&self) -> Result<f64> {
        here(|| self.mean_of_classes("F1", |class| self.f1(class)))
    }

    /// The mean over the classes that have this quality.
    fn mean_of_classes(&self, name: &str, of: impl Fn(usize) -> Option<f64>) -> Result<f64> {
        let all: Vec<_> = (0..self.classes).filter_map(of).collect();
        if all.is_empty() {
            bail!(Argument, "the {name} of no examples: `update` has counted none");
        }
        Ok(all.iter().sum::<f64>() / all.len() as f64)
    }

    /// The F1 of the counts of all classes together: each example counts equally. As each example has one label and one
    /// prediction, it is the [accuracy](Self::accuracy).
    ///
    /// # Errors
    ///
    /// Fails if no examples were counted.
    #[track_caller]
    pub fn micro_f1(&self) -> Result<f64> {
        here(|| self.accuracy())
    }

    fn predicted(&self, class: usize) -> u64 {
        (0..self.classes).map(|label| self.count(label, class)).sum()
    }

    fn labelled(&self, class: usize) -> u64 {
        (0..self.classes).map(|predicted| self.count(class, predicted)).sum()
    }
}

/// A table: a row for each label, a column for each prediction, and a dot where the count is 0.
impl fmt::Display for Confusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let largest = self.counts.iter().copied().max().unwrap_or(0).max(self.classes as u64 - 1);
        let width = largest.to_string().len() + 1;
        write!(f, "{:width$} ", "")?;
        for class in 0..self.classes {
            write!(f, "{class:width$}")?;
        }
        for (class, row) in self.rows().enumerate() {
            write!(f, "\n{class:width$} ")?;
            for &count in row {
                match count {
                    0 => write!(f, "{:>width$}", "·")?,
                    _ => write!(f, "{count:width$}")?,
                }
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Confusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Confusion({} classes, {} examples)", self.classes, self.counts.iter().sum::<u64>())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::noise;
    use super::*;
    use crate::{Device, ErrorKind};

    fn of(classes: usize, predicted: &[u32], labels: &[u32]) -> Confusion {
        let device = Device::cpu();
        let [predicted, labels] = [predicted, labels].map(|x| Tensor::indices(&device, [x.len()], x).unwrap());
        let mut confusion = Confusion::new(classes).unwrap();
        confusion.update(&predicted, &labels).unwrap();
        confusion
    }

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-15, "{found}, {expected}");
    }

    #[test]
    fn agrees_with_a_calculation_by_hand() {
        // scikit-learn's example: precision 2/3, 0, 0; recall 1, 0, 0; F1 4/5, 0, 0.
        let confusion = of(4, &[0, 2, 1, 0, 0, 1], &[0, 1, 2, 0, 1, 2]);
        let rows: Vec<_> = confusion.rows().collect();
        assert_eq!(rows, [[2, 0, 0, 0], [1, 0, 1, 0], [0, 2, 0, 0], [0, 0, 0, 0]]);
        near(confusion.precision(0).unwrap(), 2.0 / 3.0);
        assert_eq!((confusion.recall(0), confusion.f1(1)), (Some(1.0), Some(0.0)));
        near(confusion.macro_f1().unwrap(), 0.8 / 3.0);
        // scikit-learn's `jaccard_score`: 2/3, 0, 0.
        near(confusion.iou(0).unwrap(), 2.0 / 3.0);
        near(confusion.mean_iou().unwrap(), 2.0 / 9.0);
        assert_eq!([confusion.iou(1), confusion.iou(3), confusion.iou(4)], [Some(0.0), None, None]);
        assert!(Confusion::new(2).unwrap().mean_iou().unwrap_err().to_string().contains("the IoU of no examples"));
        near(confusion.micro_f1().unwrap(), 1.0 / 3.0);
        // Class 3 has no examples, and there is no class 4.
        for class in [3, 4] {
            assert_eq!([confusion.precision(class), confusion.recall(class), confusion.f1(class)], [None; 3]);
        }
        assert_eq!(format!("{confusion:?}"), "Confusion(4 classes, 6 examples)");
        let table = "    0 1 2 3\n 0  2 · · ·\n 1  1 · 1 ·\n 2  · 2 · ·\n 3  · · · ·";
        assert_eq!(confusion.to_string(), table);
    }

    #[test]
    fn agrees_with_counting_pairs() {
        let (n, classes) = (500, 5);
        let labels: Vec<_> = noise(n).map(|x| x % 5).collect();
        let predicted: Vec<_> = noise(2 * n).skip(n).map(|x| x % 4).collect();
        let confusion = of(classes, &predicted, &labels);
        let number = |is: &dyn Fn(u32, u32) -> bool| {
            labels.iter().zip(&predicted).filter(|&(&label, &prediction)| is(label, prediction)).count() as f64
        };
        let mut f1 = 0.0;
        for class in 0..classes as u32 {
            let right = number(&|label, prediction| label == class && prediction == class);
            let wrong = number(&|label, prediction| label != class && prediction == class);
            let missed = number(&|label, prediction| label == class && prediction != class);
            let at = class as usize;
            let precision = (right + wrong > 0.0).then(|| right / (right + wrong));
            assert_eq!((confusion.precision(at), confusion.recall(at)), (precision, Some(right / (right + missed))));
            f1 += right / (right + (wrong + missed) / 2.0);
        }
        near(confusion.macro_f1().unwrap(), f1 / classes as f64);
        near(confusion.accuracy().unwrap(), number(&|label, prediction| label == prediction) / n as f64);
    }

    #[test]
    fn scores_count_as_their_largest_class() {
        let device = Device::cpu();
        let scores = Tensor::from_slice(&device, [3, 2], &[0.5, 0.5, 0.0, 1.0, f32::NEG_INFINITY, -9.0]).unwrap();
        let labels = Tensor::indices(&device, [3], &[0, 1, 9]).unwrap();
        let mut confusion = Confusion::new(2).unwrap().ignored(9);
        confusion.update(&scores, &labels).unwrap();
        let mut other = Confusion::new(2).unwrap().ignored(9);
        other.update(&Tensor::indices(&device, [3], &[0, 1, 7]).unwrap(), &labels).unwrap();
        assert_eq!(confusion, other);
        confusion.merge(&other).unwrap();
        assert_eq!(confusion.rows().collect::<Vec<_>>(), [[2, 0], [0, 2]]);
    }

    #[test]
    fn misuse_is_an_error() {
        assert_eq!(Confusion::new(0).unwrap_err().kind(), ErrorKind::Argument);
        assert_eq!(Confusion::new(usize::MAX).unwrap_err().kind(), ErrorKind::OutOfMemory);
        let device = Device::cpu();
        let labels = Tensor::indices(&device, [2], &[0, 1]).unwrap();
        let mut one = Confusion::new(1).unwrap();
        assert!(one.update(&labels, &labels).unwrap_err().message().contains("example 1 has label 1"));
        let zeros = Tensor::indices(&device, [2], &[0, 0]).unwrap();
        assert!(one.update(&labels, &zeros).unwrap_err().message().contains("prediction of example 1 is 1"));
        assert_eq!(one.update(&Tensor::zeros(&device, [2, 2]).unwrap(), &zeros).unwrap_err().kind(), ErrorKind::Shape);
        assert!(one.accuracy().is_err(), "nothing of that is counted");
        assert_eq!(one.merge(&Confusion::new(2).unwrap()).unwrap_err().kind(), ErrorKind::Argument);
    }
}
