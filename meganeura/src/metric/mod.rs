//! Metrics: numbers that tell how good a model is, and that add up over batches.
//!
//! Each metric is an accumulator. `update` takes the predictions and targets of a batch, `merge` adds another
//! accumulator (of a thread, for example), `over` adds those of all ranks of a [`World`], and `value` returns the
//! metric. The module knows tensors and worlds, but no models.
//!
//! ```
//! use meganeura::metric::{Accuracy, Confusion};
//! use meganeura::prelude::*;
//!
//! let device = Device::cpu();
//! let (mut accuracy, mut confusion) = (Accuracy::new(), Confusion::new(2)?);
//! for batch in [[0.9, 0.1, 0.2, 0.8], [0.3, 0.7, 0.6, 0.4]] {
//!     let scores = Tensor::from_slice(&device, [2, 2], &batch)?;
//!     let labels = Tensor::indices(&device, [2], &[0, 1])?;
//!     accuracy.update(&scores, &labels)?;
//!     confusion.update(&scores, &labels)?;
//! }
//! assert_eq!(accuracy.value()?, 0.5);
//! assert_eq!(confusion.recall(1), Some(0.5));
//! # Ok::<(), meganeura::Error>(())
//! ```
//!
//! An update reads each of its tensors once. It either counts the whole batch, or fails and counts nothing. NaN among
//! the predictions is an error of kind [`NotFinite`](crate::ErrorKind::NotFinite), never a number. The value of an
//! accumulator that has counted nothing is an error of kind [`Argument`](crate::ErrorKind::Argument). The same updates
//! in the same order give the same bits.

mod accuracy;
mod average_precision;
mod bleu;
mod confusion;
mod mean;
#[cfg(not(target_family = "wasm"))]
mod measure;
mod regression;
mod roc_auc;
mod scores;

pub use accuracy::Accuracy;
pub use average_precision::{AveragePrecision, Detection};
pub use bleu::Bleu;
pub use confusion::Confusion;
pub use mean::{MeanAbsoluteError, MeanSquaredError, Perplexity};
#[cfg(not(target_family = "wasm"))]
pub use measure::{MeanOf, Measure};
pub use regression::Regression;
pub use roc_auc::RocAuc;

use crate::Result;
use crate::error::bail;
use crate::world::World;

/// `part / whole` of two counts; an error if nothing was counted.
fn share(part: u64, whole: u64, what: &str) -> Result<f64> {
    if whole == 0 {
        bail!(Argument, "{what} of no examples: `update` has counted none");
    }
    Ok(part as f64 / whole as f64)
}

/// The sums of these counts over all ranks; exact below 2⁵³.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sums of counts")]
fn counted(world: &World, counts: &[u64]) -> Result<Vec<u64>> {
    let counts: Vec<_> = counts.iter().map(|&count| count as f64).collect();
    Ok(world.sum(&counts)?.into_iter().map(|count| count as u64).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, ErrorKind, Precision, Tensor};

    /// Numbers that depend only on their index.
    pub(super) fn noise(count: usize) -> impl Iterator<Item = u32> {
        (0..count).scan(1_u32, |state, _| {
            *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            Some(*state >> 16)
        })
    }

    #[test]
    fn a_metric_without_updates_has_no_value() {
        let kinds = [
            Accuracy::new().value().map(drop),
            Confusion::new(2).and_then(|confusion| confusion.accuracy().map(drop)),
            Confusion::new(2).and_then(|confusion| confusion.macro_f1().map(drop)),
            RocAuc::new().value().map(drop),
            MeanAbsoluteError::new().value().map(drop),
            MeanSquaredError::new().value().map(drop),
            Perplexity::new().value().map(drop),
            AveragePrecision::new().value().map(drop),
            Bleu::new().value().map(drop),
        ];
        for result in kinds {
            let error = result.unwrap_err();
            assert!(error.kind() == ErrorKind::Argument && error.to_string().contains("no "), "{error}");
        }
    }

    #[test]
    fn a_failed_update_counts_nothing() {
        let device = Device::cpu();
        let scores = Tensor::from_slice(&device, [2, 2], &[1.0, 0.0, f32::NAN, 0.0]).unwrap();
        let labels = Tensor::indices(&device, [2], &[0, 0]).unwrap();
        let (mut accuracy, mut confusion) = (Accuracy::new(), Confusion::new(2).unwrap());
        assert_eq!(accuracy.update(&scores, &labels).unwrap_err().kind(), ErrorKind::NotFinite);
        assert_eq!(confusion.update(&scores, &labels).unwrap_err().kind(), ErrorKind::NotFinite);
        assert!(accuracy.value().is_err() && confusion.accuracy().is_err());
        let flat = Tensor::from_slice(&device, [2], &[1.0, f32::NAN]).unwrap();
        let (mut auc, mut mean) = (RocAuc::new(), MeanSquaredError::new());
        assert_eq!(auc.update(&flat, &labels).unwrap_err().kind(), ErrorKind::NotFinite);
        assert_eq!(mean.update(&flat, &flat).unwrap_err().kind(), ErrorKind::NotFinite);
        assert!(auc.value().is_err() && mean.value().is_err());
    }

    #[test]
    fn doubles_are_not_rounded() {
        let device = Device::cpu().with_precision(Precision::Double).unwrap();
        let scores = Tensor::from_f64(&device, [1, 2], &[1.0, 1.0 + 1e-12]).unwrap();
        let mut accuracy = Accuracy::new();
        accuracy.update(&scores, &Tensor::indices(&device, [1], &[1]).unwrap()).unwrap();
        assert_eq!(accuracy.value().unwrap(), 1.0);
    }

    #[test]
    fn a_world_of_one_gives_the_same_value() {
        let device = Device::cpu();
        let scores = Tensor::from_slice(&device, [4], &[0.1, 0.4, 0.35, 0.8]).unwrap();
        let labels = Tensor::indices(&device, [4], &[0, 0, 1, 1]).unwrap();
        let world = World::alone();
        let mut auc = RocAuc::new();
        auc.update(&scores, &labels).unwrap();
        assert_eq!(auc.over(&world).unwrap().value().unwrap(), 0.75);
        let mut error = MeanAbsoluteError::new();
        error.update(&scores, &scores).unwrap();
        assert_eq!(error.over(&world).unwrap().value().unwrap(), 0.0);
    }
}
