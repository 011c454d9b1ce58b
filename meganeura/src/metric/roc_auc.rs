//! The area under the ROC curve.

use std::cmp::Ordering;

use super::counted;
use crate::error::{bail, here, here_async};
use crate::host::{reserve, try_collect, try_filled};
#[cfg(not(target_family = "wasm"))]
use crate::wait::block_on;
use crate::world::World;
use crate::{Result, Tensor};

/// The area under the receiver operating characteristic (ROC) curve of a binary classifier.
///
/// It is the probability that a positive example has a larger score than a negative one, where equal scores count half
/// (Hanley & McNeil, The meaning and use of the area under a ROC curve, 1982). A perfect order has 1, a random one ½.
///
/// The formula is `Σₚ Σₙ ([sₚ > sₙ] + ½·[sₚ = sₙ]) / (P·N)`, computed from the ranks of the scores. The sum is exact,
/// so the value does not depend on the order of updates and merges. All scores are kept: 8 bytes per example.
///
/// ```
/// use meganeura::metric::RocAuc;
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let mut auc = RocAuc::new();
/// let scores = Tensor::from_slice(&device, [4], &[0.1, 0.4, 0.35, 0.8])?;
/// auc.update(&scores, &Tensor::indices(&device, [4], &[0, 0, 1, 1])?)?;
/// assert_eq!(auc.value()?, 0.75);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct RocAuc {
    positive: Vec<f64>,
    negative: Vec<f64>,
}

impl RocAuc {
    /// An accumulator without examples.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts a batch: scores or probabilities of any shape, and labels of the same shape, 1 for positive and 0 for
    /// negative, as integers or floats.
    ///
    /// # Errors
    ///
    /// Fails if the shapes differ, a score is NaN, a label is neither 0 nor 1, or there is no memory for the scores.
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
            if scores.shape() != labels.shape() || !scores.ty().dtype.is_float() {
                bail!(
                    Shape,
                    "the scores must be floats of the shape of the labels {}, they are {}",
                    labels.ty(),
                    scores.ty()
                );
            }
            let labels = match labels.ty().dtype {
                dtype if dtype.is_float() => labels.to_f64_vec_async().await?,
                _ => try_collect(labels.to_index_vec_async().await?.into_iter().map(f64::from))?,
            };
            let scores = scores.to_f64_vec_async().await?;
            for (at, (score, label)) in scores.iter().zip(&labels).enumerate() {
                if *label != 0.0 && *label != 1.0 {
                    bail!(Argument, "the label of example {at} is {label}; it is 0 or 1 for a ROC curve");
                }
                if score.is_nan() {
                    bail!(NotFinite, "the score of example {at} is NaN");
                }
            }
            let positive = labels.iter().filter(|&&label| label == 1.0).count();
            reserve(&mut self.positive, positive)?;
            reserve(&mut self.negative, labels.len() - positive)?;
            for (score, label) in scores.into_iter().zip(labels) {
                if label == 1.0 { self.positive.push(score) } else { self.negative.push(score) }
            }
            Ok(())
        })
    }

    /// Adds the examples of another accumulator.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory for them.
    #[track_caller]
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        here(|| {
            reserve(&mut self.positive, other.positive.len())?;
            reserve(&mut self.negative, other.negative.len())?;
            self.positive.extend_from_slice(&other.positive);
            self.negative.extend_from_slice(&other.negative);
            Ok(())
        })
    }

    /// The examples of all ranks, the same on each. The call is collective: it waits for all ranks.
    ///
    /// # Errors
    ///
    /// Fails if another rank called something else, or left, or if memory runs out.
    #[track_caller]
    pub fn over(&self, world: &World) -> Result<Self> {
        here(|| {
            let gathered = |own: &[f64]| {
                let mut counts = vec![0; world.size()];
                counts[world.rank()] = own.len() as u64;
                let counts: Vec<_> = counted(world, &counts)?.into_iter().map(|count| count as usize).collect();
                let begin: usize = counts[..world.rank()].iter().sum();
                // Each rank's scores are where the others have zeros.
                let mut all = world.expect_all(try_filled(counts.iter().sum(), 0.0))?;
                all[begin..][..own.len()].copy_from_slice(own);
                world.sum(&all)
            };
            Ok(Self { positive: gathered(&self.positive)?, negative: gathered(&self.negative)? })
        })
    }

    /// The area, from 0 to 1.
    ///
    /// # Errors
    ///
    /// Fails if there are no positive or no negative examples, or there is no memory to sort them.
    #[track_caller]
    pub fn value(&self) -> Result<f64> {
        here(|| {
            let (positive, negative) = (self.positive.len(), self.negative.len());
            if positive == 0 || negative == 0 {
                bail!(
                    Argument,
                    "a ROC curve of {positive} positive and {negative} negative examples: there are no pairs"
                );
            }
            let sorted = |scores: &[f64]| -> Result<Vec<f64>> {
                let mut scores = try_collect(scores.iter().copied())?;
                // Not `total_cmp`, for which 0 and −0 differ.
                scores.sort_unstable_by(|a, b| a.partial_cmp(b).unwrap_or(Ordering::Equal));
                Ok(scores)
            };
            let (positives, negatives) = (sorted(&self.positive)?, sorted(&self.negative)?);
            // The number of negative scores below the positive one, and the number of those not above it.
            let (mut below, mut up_to, mut twice) = (0, 0, 0_u128);
            for score in positives {
                below += negatives[below..].iter().take_while(|&&other| other < score).count();
                up_to += negatives[up_to..].iter().take_while(|&&other| other <= score).count();
                twice += (below + up_to) as u128;
            }
            Ok(twice as f64 / 2.0 / (positive as f64 * negative as f64))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::noise;
    use super::*;
    use crate::{Device, ErrorKind};

    fn auc(scores: &[f32], labels: &[u32]) -> RocAuc {
        let device = Device::cpu();
        let mut auc = RocAuc::new();
        let scores = Tensor::from_slice(&device, [scores.len()], scores).unwrap();
        auc.update(&scores, &Tensor::indices(&device, [labels.len()], labels).unwrap()).unwrap();
        auc
    }

    #[test]
    fn agrees_with_all_pairs() {
        for (n, values) in [(2, 2), (50, 4), (301, 1000)] {
            let scores: Vec<_> = noise(n).map(|x| (x % values) as f32 / 3.0 - 1.0).collect();
            let labels: Vec<_> =
                noise(2 * n).skip(n).enumerate().map(|(i, x)| if i < 2 { i as u32 } else { x % 2 }).collect();
            let (mut sum, mut pairs) = (0.0, 0.0);
            for (positive, _) in scores.iter().zip(&labels).filter(|(_, label)| **label == 1) {
                for (negative, _) in scores.iter().zip(&labels).filter(|(_, label)| **label == 0) {
                    sum += if positive > negative {
                        1.0
                    } else if positive == negative {
                        0.5
                    } else {
                        0.0
                    };
                    pairs += 1.0;
                }
            }
            assert_eq!(auc(&scores, &labels).value().unwrap(), sum / pairs, "{n}");
        }
    }

    #[test]
    fn extremes() {
        let value = |scores: &[f32], labels: &[u32]| auc(scores, labels).value().unwrap();
        assert_eq!(value(&[1.0, 2.0, 3.0], &[0, 1, 1]), 1.0);
        assert_eq!(value(&[1.0, 2.0, 3.0], &[1, 0, 0]), 0.0);
        assert_eq!(value(&[0.0, -0.0, 0.0], &[1, 0, 0]), 0.5);
        assert_eq!(value(&[f32::INFINITY, f32::NEG_INFINITY, 0.0], &[1, 0, 0]), 1.0);
    }

    #[test]
    fn parts_add_up_in_any_order() {
        let parts = [auc(&[0.1, 0.4], &[0, 0]), auc(&[0.35], &[1]), auc(&[0.8, 0.4], &[1, 1])];
        for order in [[0, 1, 2], [2, 0, 1]] {
            let mut whole = RocAuc::new();
            order.iter().for_each(|&part| whole.merge(&parts[part]).unwrap());
            assert_eq!(whole.value().unwrap(), 4.5 / 6.0);
        }
        let error = parts[0].value().unwrap_err();
        assert!(error.message().contains("0 positive and 2 negative"), "{error}");
    }

    #[test]
    fn labels_are_0_or_1() {
        let device = Device::cpu();
        let scores = Tensor::from_slice(&device, [2], &[0.0, 1.0]).unwrap();
        let (mut auc, half) = (RocAuc::new(), Tensor::from_slice(&device, [2], &[0.0, 0.5]).unwrap());
        assert!(auc.update(&scores, &half).unwrap_err().message().contains("the label of example 1 is 0.5"));
        let labels = Tensor::indices(&device, [2], &[0, 2]).unwrap();
        assert_eq!(auc.update(&scores, &labels).unwrap_err().kind(), ErrorKind::Argument);
        assert_eq!(auc.update(&labels, &labels).unwrap_err().kind(), ErrorKind::Shape);
        assert_eq!(auc.update(&scores, &labels.reshape([2, 1]).unwrap()).unwrap_err().kind(), ErrorKind::Shape);
        auc.update(&scores, &scores).unwrap();
        assert_eq!(auc.value().unwrap(), 1.0);
    }
}
