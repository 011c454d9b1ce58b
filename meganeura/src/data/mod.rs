//! Data in memory: examples with labels, cut into batches.
//!
//! Knows tensors and seeds, nothing of models.

mod batches;

use std::sync::Arc;

pub use batches::{Batch, Batches, BatchesOn};
use rand_pcg::rand_core::Rng;

use crate::error::bail;
use crate::module::Seed;
use crate::{Result, Shape};

/// Examples of one shape, each with a label. Clones and splits share the memory.
///
/// ```
/// use meganeura::prelude::*;
///
/// // Four images of one channel, 2×2 pixels each.
/// let digits = Dataset::new(vec![0.0; 16], [1, 2, 2], vec![0, 1, 2, 1])?;
/// let (train, test) = digits.split(0.75, 1)?;
/// assert_eq!((train.len(), test.len()), (3, 1));
///
/// let device = Device::cpu();
/// for batch in train.batches(2).shuffle(7).on(&device) {
///     let batch = batch?;
///     println!("{} images, {:?}", batch.images.shape()[0], batch.labels);
/// }
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Dataset {
    examples: Arc<Examples>,
    /// Which of them belong to this set, in order.
    rows: Arc<[usize]>,
}

#[derive(Debug)]
struct Examples {
    features: Vec<f32>,
    shape: Shape,
    labels: Vec<u32>,
}

impl Dataset {
    /// Examples of this shape, `[channels, height, width]` for images, one after the other, and the label of each.
    ///
    /// # Errors
    ///
    /// If `features` has not as many numbers as the labels ask for, or the shape has no elements.
    pub fn new(features: Vec<f32>, shape: impl Into<Shape>, labels: Vec<u32>) -> Result<Self> {
        let shape = shape.into();
        if shape.elements() == 0 {
            bail!(Shape, "an example needs at least one number, shape {shape} has none");
        }
        if shape.rank() == crate::MAX_RANK {
            bail!(Shape, "examples of shape {shape} leave no axis for the batch");
        }
        if labels.len().checked_mul(shape.elements()) != Some(features.len()) {
            bail!(Shape, "{} numbers given for {} labelled examples of shape {shape}", features.len(), labels.len());
        }
        let rows = (0..labels.len()).collect();
        Ok(Self { examples: Arc::new(Examples { features, shape, labels }), rows })
    }

    /// The number of examples.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no examples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The shape of one example.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.examples.shape
    }

    /// The numbers and the label of example `index`; `None` past the end.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<(&[f32], u32)> {
        let row = *self.rows.get(index)?;
        let size = self.examples.shape.elements();
        Some((&self.examples.features[row * size..][..size], self.examples.labels[row]))
    }

    /// Two sets drawn at random: the share `fraction` of the examples, rounded, and the rest.
    ///
    /// The seed says which, by the order that [`shuffle`](Batches::shuffle) would give.
    ///
    /// # Errors
    ///
    /// If `fraction` is not between 0 and 1.
    pub fn split(&self, fraction: f64, seed: impl Into<Seed>) -> Result<(Self, Self)> {
        if !(0.0..=1.0).contains(&fraction) {
            bail!(Argument, "a dataset cannot be split at {fraction}; the fraction lies between 0 and 1");
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and the length")]
        let first = (self.len() as f64 * fraction).round() as usize;
        let mut rows = self.rows.to_vec();
        shuffle(&mut rows, seed.into());
        let part = |rows: &[usize]| Self { examples: Arc::clone(&self.examples), rows: rows.into() };
        let (head, tail) = rows.split_at(first);
        Ok((part(head), part(tail)))
    }

    /// The examples in batches of `size`, in order until told otherwise.
    pub fn batches(&self, size: usize) -> Batches<'_> {
        Batches::new(self, size)
    }
}

/// Durstenfeld's shuffle: for `i` from the last place down to the second, exchange it with place `⌊r·(i + 1)/2⁶⁴⌋`, where
/// `r` is the next 64-bit number of [`Seed::rng`]. The order is part of the interface and will not change.
fn shuffle(rows: &mut [usize], seed: Seed) {
    let mut rng = seed.rng();
    for i in (1..rows.len()).rev() {
        #[expect(clippy::cast_possible_truncation, reason = "at most i")]
        let j = ((u128::from(rng.next_u64()) * (i as u128 + 1)) >> 64) as usize;
        rows.swap(i, j);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    /// Ten examples of two numbers; example `i` is `(i, −i)` with label `i`.
    fn dataset() -> Dataset {
        let features = (0..10u8).map(f32::from).flat_map(|i| [i, -i]).collect();
        Dataset::new(features, [2], (0..10).collect()).unwrap()
    }

    fn labels(dataset: &Dataset) -> Vec<u32> {
        (0..dataset.len()).map(|i| dataset.get(i).unwrap().1).collect()
    }

    #[test]
    fn the_order_never_changes() {
        // Computed by another implementation.
        let order = |seed, n| {
            let mut rows: Vec<_> = (0..n).collect();
            shuffle(&mut rows, Seed::new(seed));
            rows
        };
        assert_eq!(order(7, 5), [3, 1, 2, 4, 0]);
        assert_eq!(order(0, 10), [8, 2, 9, 4, 6, 7, 0, 5, 3, 1]);
        assert_eq!(order(7, 10), [4, 1, 3, 9, 6, 8, 5, 7, 2, 0]);
        assert_eq!(order(7, 0), [0usize; 0]);
    }

    #[test]
    fn examples_keep_their_labels() {
        let (first, second) = dataset().split(0.3, 7).unwrap();
        assert_eq!(labels(&first), [4, 1, 3]);
        assert_eq!(labels(&second), [9, 6, 8, 5, 7, 2, 0]);
        assert_eq!(second.get(1), Some((&[6.0, -6.0][..], 6)));
        assert_eq!(second.get(7), None);
        assert_eq!(second.split(0.0, 0).unwrap().0.len(), 0);
    }

    #[test]
    fn misuse_is_an_error() {
        let kind =
            |features, shape: &[usize], labels| Dataset::new(features, Shape::new(shape), labels).unwrap_err().kind();
        assert_eq!(kind(vec![0.0; 5], &[2], vec![0, 1]), ErrorKind::Shape);
        assert_eq!(kind(vec![], &[0], vec![0]), ErrorKind::Shape);
        assert_eq!(kind(vec![0.0], &[1; 8], vec![0]), ErrorKind::Shape);
        assert_eq!(kind(vec![], &[usize::MAX, 2], vec![0, 0]), ErrorKind::Shape);
        for fraction in [-0.1, 1.1, f64::NAN] {
            assert_eq!(dataset().split(fraction, 0).unwrap_err().kind(), ErrorKind::Argument);
        }
    }

    #[test]
    fn a_dataset_may_be_empty() {
        let dataset = Dataset::new(vec![], [2], vec![]).unwrap();
        assert!(dataset.is_empty());
        assert_eq!(dataset.get(0), None);
    }
}
