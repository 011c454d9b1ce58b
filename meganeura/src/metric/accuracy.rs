//! The share of examples whose class is among the best guesses.

use super::scores::Scores;
use super::{counted, share};
use crate::error::{bail, here, here_async};
#[cfg(not(target_family = "wasm"))]
use crate::wait::block_on;
use crate::world::World;
use crate::{Result, Tensor};

/// The share of examples whose label has the largest score, or is among the `k` largest ([`top`](Self::top)).
///
/// Of equal scores, the score of the lower class counts as larger.
///
/// ```
/// use meganeura::metric::Accuracy;
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let scores = Tensor::from_slice(&device, [2, 3], &[0.1, 0.7, 0.2, 0.5, 0.1, 0.4])?;
/// let labels = Tensor::indices(&device, [2], &[1, 2])?;
/// let (mut first, mut second) = (Accuracy::new(), Accuracy::top(2));
/// first.update(&scores, &labels)?;
/// second.update(&scores, &labels)?;
/// assert_eq!((first.value()?, second.value()?), (0.5, 1.0));
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Accuracy {
    top: usize,
    ignored: Option<u32>,
    hits: u64,
    count: u64,
}

impl Default for Accuracy {
    fn default() -> Self {
        Self::new()
    }
}

impl Accuracy {
    /// Requires the label to have the largest score.
    pub fn new() -> Self {
        Self::top(1)
    }

    /// Requires the label to be among the `k` largest scores.
    pub fn top(k: usize) -> Self {
        Self { top: k, ignored: None, hits: 0, count: 0 }
    }

    /// Excludes examples of this label, whatever their scores: padding, or pixels without a class.
    pub fn ignored(self, label: u32) -> Self {
        Self { ignored: Some(label), ..self }
    }

    /// Counts a batch: scores or probabilities `[N, C, …]` and labels `[N, …]`.
    ///
    /// # Errors
    ///
    /// Fails if the shapes do not fit, a label is not below `C`, a score is NaN, or `k` is 0 or above `C`.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    pub fn update(&mut self, scores: &Tensor, labels: &Tensor) -> Result<()> {
        block_on(self.update_async(scores, labels))
    }

    /// Like [`update`](Self::update), without blocking the thread.
    ///
    /// # Errors
    ///
    /// Fails like [`update`](Self::update).
    #[track_caller]
    pub fn update_async(&mut self, scores: &Tensor, labels: &Tensor) -> impl Future<Output = Result<()>> {
        here_async(async {
            let scores = Scores::read(scores, labels, self.ignored).await?;
            if self.top == 0 || self.top > scores.classes() {
                bail!(Argument, "k is {}; it must be from 1 to {}, the number of classes", self.top, scores.classes());
            }
            for (row, label) in scores.rows() {
                self.count += 1;
                self.hits += u64::from(scores.rank(row, label) < self.top);
            }
            Ok(())
        })
    }

    /// Adds the counts of another accumulator.
    ///
    /// # Errors
    ///
    /// Fails if the other counts hits differently: with another `k`, or another ignored label.
    #[track_caller]
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        here(|| {
            if (self.top, self.ignored) != (other.top, other.ignored) {
                bail!(Argument, "an accuracy with other settings cannot be merged: {other:?} into {self:?}");
            }
            self.hits += other.hits;
            self.count += other.count;
            Ok(())
        })
    }

    /// An accumulator with the counts of all ranks, the same on each. The call is collective: it waits for all ranks.
    ///
    /// # Errors
    ///
    /// Fails if another rank called something else, or left.
    #[track_caller]
    pub fn over(&self, world: &World) -> Result<Self> {
        here(|| {
            let sums = counted(world, &[self.hits, self.count])?;
            Ok(Self { hits: sums[0], count: sums[1], ..self.clone() })
        })
    }

    /// The number of examples so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The share of hits, from 0 to 1.
    ///
    /// # Errors
    ///
    /// Fails if no examples were counted.
    #[track_caller]
    pub fn value(&self) -> Result<f64> {
        here(|| share(self.hits, self.count, "the accuracy"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::noise;
    use super::*;
    use crate::{Device, ErrorKind, Shape};

    fn tensors(shape: &[usize], scores: &[f32], labels: &[u32]) -> (Tensor, Tensor) {
        let device = Device::cpu();
        let rows = Shape::new(&[&shape[..1], &shape[2..]].concat());
        let scores = Tensor::from_slice(&device, shape, scores).unwrap();
        (scores, Tensor::indices(&device, rows, labels).unwrap())
    }

    fn value(mut accuracy: Accuracy, (scores, labels): &(Tensor, Tensor)) -> f64 {
        accuracy.update(scores, labels).unwrap();
        accuracy.value().unwrap()
    }

    #[test]
    fn agrees_with_sorting() {
        // Few distinct scores, so that ties are frequent.
        let (n, classes) = (200, 7);
        let scores: Vec<_> = noise(n * classes).map(|x| (x % 5) as f32).collect();
        let labels: Vec<_> = noise(n).map(|x| x % 7).collect();
        let both = tensors(&[n, classes], &scores, &labels);
        for k in 1..=classes {
            let hits = scores.chunks(classes).zip(&labels).filter(|(row, label)| {
                let mut order: Vec<_> = (0..classes).collect();
                // A stable sort: of equal scores, the lower class comes first.
                order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
                order[..k].contains(&(**label as usize))
            });
            assert_eq!(value(Accuracy::top(k), &both), hits.count() as f64 / n as f64, "{k}");
        }
        assert_eq!(value(Accuracy::top(classes), &both), 1.0);
    }

    #[test]
    fn classes_lie_on_the_second_axis() {
        // Two examples of two pixels, three classes: pixels are classes 2, 0 and 1, 1.
        let scores = [0., 9., 1., 8., 2., 7., 0., 0., 5., 5., 1., 1.];
        let both = tensors(&[2, 3, 2], &scores, &[2, 0, 1, 0]);
        assert_eq!(value(Accuracy::new(), &both), 0.75);
        assert_eq!(value(Accuracy::new().ignored(0), &both), 1.0);
    }

    #[test]
    fn ignored_rows_may_hold_anything() {
        let both = tensors(&[2, 2], &[f32::NAN, 0.0, f32::NEG_INFINITY, f32::NEG_INFINITY], &[255, 0]);
        assert_eq!(value(Accuracy::new().ignored(255), &both), 1.0);
    }

    #[test]
    fn parts_add_up() {
        let (first, second) = (tensors(&[1, 2], &[1.0, 0.0], &[1]), tensors(&[2, 2], &[1.0, 0.0, 0.0, 1.0], &[0, 1]));
        let (mut whole, mut one, mut other) = (Accuracy::new(), Accuracy::new(), Accuracy::new());
        one.update(&first.0, &first.1).unwrap();
        other.update(&second.0, &second.1).unwrap();
        one.merge(&other).unwrap();
        for (scores, labels) in [&first, &second] {
            whole.update(scores, labels).unwrap();
        }
        assert_eq!((one.count(), one.value().unwrap()), (3, 2.0 / 3.0));
        assert_eq!(whole.value().unwrap(), one.value().unwrap());
        assert_eq!(one.merge(&Accuracy::top(2)).unwrap_err().kind(), ErrorKind::Argument);
    }

    #[test]
    fn misuse_is_an_error() {
        let (scores, labels) = tensors(&[2, 2], &[0.0; 4], &[0, 2]);
        let error = Accuracy::new().update(&scores, &labels).unwrap_err();
        assert_eq!(
            (error.kind(), error.message()),
            (ErrorKind::Argument, "example 1 has label 2, and there are 2 classes")
        );
        let (other, fitting) = tensors(&[3, 2], &[0.0; 6], &[0, 0, 0]);
        let error = Accuracy::new().update(&scores, &fitting).unwrap_err();
        assert!(error.kind() == ErrorKind::Shape && error.message().contains("must be integers [2]"), "{error}");
        assert_eq!(Accuracy::new().update(&fitting, &fitting).unwrap_err().kind(), ErrorKind::Shape);
        assert_eq!(Accuracy::new().update(&other, &other).unwrap_err().kind(), ErrorKind::Shape);
        for k in [0, 3] {
            let error = Accuracy::top(k).update(&other, &fitting).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
        }
    }
}
