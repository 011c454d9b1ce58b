//! A set of examples, and its parts.

use std::fmt;
use std::sync::Arc;

use super::examples::{Element, Memory};
use super::order::shuffle;
use super::{Batches, Examples};
use crate::error::{bail, here};
use crate::host::{try_collect, try_filled};
use crate::module::Seed;
use crate::{Result, Shape};

/// Examples of one shape, each with a label: in memory, or read as they are needed. Clones and splits share them.
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
#[derive(Clone)]
pub struct Dataset {
    examples: Arc<dyn Examples>,
    /// Which of them belong to this set, in order.
    rows: Arc<Vec<usize>>,
}

impl Dataset {
    /// Examples of this shape, `[channels, height, width]` for images, one after the other, and the label of each.
    ///
    /// # Errors
    ///
    /// If `features` has not as many numbers as the labels ask for, or the shape has no elements.
    #[track_caller]
    pub fn new(features: Vec<f32>, shape: impl Into<Shape>, labels: Vec<u32>) -> Result<Self> {
        here(|| Self::in_memory(features, shape.into(), labels))
    }

    /// As [`new`](Self::new), from the bytes of pixels. They stay bytes in memory and become numbers from 0 to 1 (255 is 1) when a
    /// batch is made.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    #[track_caller]
    pub fn from_bytes(pixels: Vec<u8>, shape: impl Into<Shape>, labels: Vec<u32>) -> Result<Self> {
        here(|| Self::in_memory(pixels, shape.into(), labels))
    }

    fn in_memory<T: Element>(features: Vec<T>, shape: Shape, labels: Vec<u32>) -> Result<Self> {
        check_shape(shape)?;
        Self::of(Memory::new(features, shape, labels)?)
    }

    /// The examples of your own [source](Examples).
    ///
    /// # Errors
    ///
    /// If the shape of an example has no elements, or as many axes as a tensor can have, which leaves none for the batch;
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) if there are more examples than can be counted in memory.
    #[track_caller]
    pub fn of(examples: impl Examples + 'static) -> Result<Self> {
        here(|| {
            check_shape(examples.shape())?;
            let rows = Arc::new(numbered(examples.len())?);
            Ok(Self { examples: Arc::new(examples), rows })
        })
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
        self.examples.shape()
    }

    /// The numbers and the label of example `index`.
    ///
    /// # Errors
    ///
    /// If there is no such example, it cannot be read, or there is no memory for it.
    #[track_caller]
    pub fn get(&self, index: usize) -> Result<(Vec<f32>, u32)> {
        here(|| {
            if index >= self.len() {
                bail!(Argument, "there is no example {index} in a dataset of {}", self.len());
            }
            let shape = self.shape();
            let example = try_filled(shape.elements(), 0.0);
            let mut example = example.map_err(|error| error.context(format_args!("an example {shape}")))?;
            let label = self.read(index, &mut example)?;
            Ok((example, label))
        })
    }

    /// Writes example `index`, which there is, over zeros.
    pub(super) fn read(&self, index: usize, example: &mut [f32]) -> Result<u32> {
        self.examples.read(self.rows[index], example)
    }

    /// Two sets drawn at random: the share `fraction` of the examples, rounded, and the rest.
    ///
    /// The seed says which, by the order that [`shuffle`](Batches::shuffle) would give.
    ///
    /// # Errors
    ///
    /// If `fraction` is not between 0 and 1, or there is no memory for the two orders.
    #[track_caller]
    pub fn split(&self, fraction: f64, seed: impl Into<Seed>) -> Result<(Self, Self)> {
        here(|| {
            if !(0.0..=1.0).contains(&fraction) {
                bail!(Argument, "a dataset cannot be split at {fraction}; the fraction lies between 0 and 1");
            }
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and the length")]
            let first = (self.len() as f64 * fraction).round() as usize;
            let mut rows = try_collect(self.rows.iter().copied())?;
            shuffle(&mut rows, seed.into());
            let tail = try_collect(rows[first..].iter().copied())?;
            rows.truncate(first);
            let part = |rows| Self { examples: Arc::clone(&self.examples), rows: Arc::new(rows) };
            Ok((part(rows), part(tail)))
        })
    }

    /// The examples in batches of `size`, in order until told otherwise.
    pub fn batches(&self, size: usize) -> Batches {
        Batches::new(self, size)
    }
}

impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dataset({} examples of shape {})", self.len(), self.shape())
    }
}

/// The numbers of so many examples, in their order.
pub(super) fn numbered(examples: usize) -> Result<Vec<usize>> {
    let numbers = try_collect(0..examples);
    numbers.map_err(|error| error.context(format_args!("the order of {examples} examples")))
}

fn check_shape(shape: Shape) -> Result<()> {
    if shape.elements() == 0 {
        bail!(Shape, "an example needs at least one number, shape {shape} has none");
    }
    if shape.rank() == crate::MAX_RANK {
        bail!(Shape, "examples of shape {shape} leave no axis for the batch");
    }
    Ok(())
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
    fn examples_keep_their_labels() {
        let (first, second) = dataset().split(0.3, 7).unwrap();
        assert_eq!(labels(&first), [4, 1, 3]);
        assert_eq!(labels(&second), [9, 6, 8, 5, 7, 2, 0]);
        assert_eq!(second.get(1).unwrap(), (vec![6.0, -6.0], 6));
        assert_eq!(second.get(7).unwrap_err().kind(), ErrorKind::Argument);
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
        assert!(dataset.get(0).is_err());
    }

    /// A source whose length or shape is whatever it says.
    struct Claims(usize, Shape);

    impl Examples for Claims {
        fn len(&self) -> usize {
            self.0
        }

        fn shape(&self) -> Shape {
            self.1
        }

        fn read(&self, _: usize, _: &mut [f32]) -> Result<u32> {
            unreachable!("there is no memory to read into")
        }
    }

    #[test]
    fn sizes_past_all_memory_are_errors() {
        let kind = |error: crate::Error| error.kind();
        assert_eq!(kind(Dataset::of(Claims(usize::MAX, [1].into())).unwrap_err()), ErrorKind::OutOfMemory);
        for shape in [[1, 1 << 40, 1 << 40], [1, 1 << 31, 1 << 31]] {
            let dataset = Dataset::of(Claims(3, shape.into())).unwrap();
            let error = dataset.get(0).unwrap_err();
            assert_eq!(kind(error.clone()), ErrorKind::OutOfMemory);
            assert!(error.to_string().starts_with(&format!("an example {}", Shape::from(shape))), "{error}");
            // As the source of a transformation, too, which makes it small.
            for batches in [dataset.batches(1), dataset.batches(1).transform(crate::data::RandomCrop::new(1, 1))] {
                let batch = batches.on(&crate::Device::cpu()).next().unwrap();
                assert_eq!(kind(batch.unwrap_err()), ErrorKind::OutOfMemory);
            }
        }
        let dataset = dataset();
        for step in 0..2 {
            let (split, struck) = crate::host::shortage::at(step, || dataset.split(0.5, 1));
            assert!(struck && kind(split.unwrap_err()) == ErrorKind::OutOfMemory);
        }
    }

    #[test]
    fn bytes_become_fractions() {
        let dataset = Dataset::from_bytes(vec![0, 51, 255, 1], [2], vec![3, 4]).unwrap();
        assert_eq!(dataset.get(0).unwrap(), (vec![0.0, 0.2], 3));
        assert_eq!(dataset.get(1).unwrap(), (vec![1.0, 1.0 / 255.0], 4));
        assert_eq!(format!("{dataset:?}"), "Dataset(2 examples of shape [2])");
    }
}
