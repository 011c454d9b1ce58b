//! Batches: the examples of a dataset, some at a time, as tensors.

use std::iter::FusedIterator;
use std::sync::Arc;

use super::{Dataset, shuffle};
use crate::error::bail;
use crate::module::Seed;
use crate::{Device, Result, Shape, Tensor};

/// How a dataset is cut into batches; [`on`](Self::on) cuts it.
#[derive(Clone, Debug)]
#[must_use]
pub struct Batches<'a> {
    dataset: &'a Dataset,
    size: usize,
    seed: Option<Seed>,
    drop_last: bool,
}

/// Some examples and their labels, on a device.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The examples, `[N, …]`; `[N, C, H, W]` for images.
    pub images: Tensor,
    /// The label of each, `[N]`.
    pub labels: Tensor,
}

impl<'a> Batches<'a> {
    pub(super) fn new(dataset: &'a Dataset, size: usize) -> Self {
        Self { dataset, size, seed: None, drop_last: false }
    }

    /// In a random order, another for each seed: let it depend on the epoch.
    ///
    /// The order is that of Durstenfeld's shuffle with the numbers of [`Seed::rng`], and will not change.
    pub fn shuffle(self, seed: impl Into<Seed>) -> Self {
        Self { seed: Some(seed.into()), ..self }
    }

    /// Without the last batch if it is smaller than the others. Every step then has the same shapes, and so the same plan.
    pub fn drop_last(self) -> Self {
        Self { drop_last: true, ..self }
    }

    /// The batches, one after the other, as tensors on `device`.
    ///
    /// Each is an error if the device has no room for it; a batch size of 0 is one error and no batches.
    pub fn on(self, device: &Device) -> BatchesOn<'a> {
        let Self { dataset, size, seed, drop_last } = self;
        let mut order: Arc<[usize]> = Arc::clone(&dataset.rows);
        if let Some(seed) = seed {
            shuffle(Arc::make_mut(&mut order), seed);
        }
        let left = match (size, drop_last) {
            (0, _) => 1,
            (_, true) => order.len() / size,
            (_, false) => order.len().div_ceil(size),
        };
        BatchesOn { dataset, device: device.clone(), order, size, next: 0, left }
    }
}

/// The batches of a dataset on a device: an iterator.
#[derive(Clone, Debug)]
#[must_use]
pub struct BatchesOn<'a> {
    dataset: &'a Dataset,
    device: Device,
    /// The examples, in the order in which they come.
    order: Arc<[usize]>,
    size: usize,
    next: usize,
    left: usize,
}

impl BatchesOn<'_> {
    fn batch(&self, rows: &[usize]) -> Result<Batch> {
        if rows.is_empty() {
            bail!(Argument, "batches of 0 examples were asked for; a batch has at least 1");
        }
        let examples = &self.dataset.examples;
        let size = examples.shape.elements();
        let mut images = Vec::with_capacity(rows.len() * size);
        for &row in rows {
            images.extend_from_slice(&examples.features[row * size..][..size]);
        }
        let labels: Vec<_> = rows.iter().map(|&row| examples.labels[row]).collect();
        let shape = Shape::new(&[&[rows.len()], examples.shape.dims()].concat());
        Ok(Batch {
            images: Tensor::from_slice(&self.device, shape, &images)?,
            labels: Tensor::indices(&self.device, [rows.len()], &labels)?,
        })
    }
}

impl Iterator for BatchesOn<'_> {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let rest = &self.order[self.next..];
        let rows = &rest[..self.size.min(rest.len())];
        self.next += rows.len();
        Some(self.batch(rows))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for BatchesOn<'_> {}

impl FusedIterator for BatchesOn<'_> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    /// Five examples of shape `[1, 2]`; example `i` is `(i, −i)` with label `10·i`.
    fn dataset() -> Dataset {
        let features = (0..5u8).map(f32::from).flat_map(|i| [i, -i]).collect();
        Dataset::new(features, [1, 2], (0..5).map(|i| 10 * i).collect()).unwrap()
    }

    fn labels(batches: Batches<'_>) -> Vec<Vec<u32>> {
        batches.on(&Device::cpu()).map(|batch| batch.unwrap().labels.to_u32_vec().unwrap()).collect()
    }

    #[test]
    fn batches_come_in_order() {
        let dataset = dataset();
        let mut batches = dataset.batches(2).on(&Device::cpu());
        assert_eq!(batches.len(), 3);
        let batch = batches.nth(1).unwrap().unwrap();
        assert_eq!(batch.images.shape(), Shape::from([2, 1, 2]));
        assert_eq!(batch.images.to_vec().unwrap(), [2.0, -2.0, 3.0, -3.0]);
        assert_eq!(batch.labels.to_u32_vec().unwrap(), [20, 30]);
        assert_eq!(batches.next().unwrap().unwrap().images.shape(), Shape::from([1, 1, 2]));
        assert!(batches.next().is_none() && batches.next().is_none());
    }

    #[test]
    fn shuffled_batches_follow_the_seed() {
        let dataset = dataset();
        // The order of `shuffle` for seed 7 and five rows: 3, 1, 2, 4, 0.
        assert_eq!(labels(dataset.batches(2).shuffle(7)), [vec![30, 10], vec![20, 40], vec![0]]);
        assert_eq!(labels(dataset.batches(2).shuffle(7).drop_last()), [[30, 10], [20, 40]]);
        assert_ne!(labels(dataset.batches(5).shuffle(8)), labels(dataset.batches(5).shuffle(7)));
        assert_eq!(labels(dataset.batches(5)), [[0, 10, 20, 30, 40]]);
    }

    #[test]
    fn sizes_past_the_end_give_what_there_is() {
        let dataset = dataset();
        assert_eq!(labels(dataset.batches(100)).concat().len(), 5);
        assert_eq!(labels(dataset.batches(100).drop_last()).len(), 0);
        let empty = Dataset::new(vec![], [1], vec![]).unwrap();
        assert_eq!(labels(empty.batches(3)).len(), 0);
    }

    #[test]
    fn batches_of_nothing_are_an_error() {
        let dataset = dataset();
        let mut batches = dataset.batches(0).shuffle(1).drop_last().on(&Device::cpu());
        assert_eq!(batches.next().unwrap().unwrap_err().kind(), ErrorKind::Argument);
        assert!(batches.next().is_none());
    }
}
