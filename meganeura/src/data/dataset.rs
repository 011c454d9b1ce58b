//! A set of examples, and its parts.

use std::fmt;
use std::sync::Arc;

use super::examples::{Element, Memory};
use super::order::shuffle;
use super::{Batches, Examples, Target, Targets};
use crate::error::{bail, here};
use crate::host::{try_collect, try_filled};
use crate::module::Seed;
use crate::{Result, Shape};

/// Examples, each an input and its target, in memory or read as they are needed. Clones and splits share them.
///
/// All inputs have one shape. Targets are labels, or numbers of one shape.
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
///     println!("{} images, {:?}", batch.inputs.shape()[0], batch.targets);
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
    /// Examples in memory: inputs of this shape, `[channels, height, width]` for images, one after the other, and the target of each.
    /// Targets are a `Vec<u32>` of labels, or numbers with the shape of one target, `(vec![0.5, 2.0], [1])`.
    ///
    /// # Errors
    ///
    /// If there are not as many inputs as targets, a shape has no elements, or it has as many axes as a tensor can have, which leaves
    /// none for the batch.
    #[track_caller]
    pub fn new(inputs: Vec<f32>, shape: impl Into<Shape>, targets: impl Into<Targets>) -> Result<Self> {
        here(|| Self::in_memory(inputs, shape.into(), targets.into()))
    }

    /// As [`new`](Self::new), from the bytes of pixels. They stay bytes in memory and become numbers from 0 to 1 (255 is 1) when a
    /// batch is made.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    #[track_caller]
    pub fn from_bytes(pixels: Vec<u8>, shape: impl Into<Shape>, targets: impl Into<Targets>) -> Result<Self> {
        here(|| Self::in_memory(pixels, shape.into(), targets.into()))
    }

    fn in_memory<T: Element>(inputs: Vec<T>, shape: Shape, targets: Targets) -> Result<Self> {
        check_shape("an input", shape)?;
        Self::of(Memory::new(inputs, shape, targets)?)
    }

    /// The examples of your own [source](Examples).
    ///
    /// # Errors
    ///
    /// If the shape of an input or a target has no elements, or as many axes as a tensor can have, which leaves none for the batch;
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) if there are more examples than can be counted in memory.
    #[track_caller]
    pub fn of(examples: impl Examples + 'static) -> Result<Self> {
        here(|| {
            check_shape("an input", examples.shape())?;
            if let Some(shape) = examples.target_shape() {
                check_shape("a target", shape)?;
            }
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

    /// The shape of one input.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.examples.shape()
    }

    /// The shape of one target; `None` if targets are labels.
    #[must_use]
    pub fn target_shape(&self) -> Option<Shape> {
        self.examples.target_shape()
    }

    /// The input and the target of example `index`.
    ///
    /// # Errors
    ///
    /// If there is no such example, it cannot be read, or there is no memory for it.
    #[track_caller]
    pub fn get(&self, index: usize) -> Result<(Vec<f32>, Target)> {
        here(|| {
            if index >= self.len() {
                bail!(Argument, "there is no example {index} in a dataset of {}", self.len());
            }
            let shape = self.shape();
            let input = try_filled(shape.elements(), 0.0);
            let mut input = input.map_err(|error| error.context(format_args!("an input {shape}")))?;
            let target = self.read(index, &mut input)?;
            Ok((input, target))
        })
    }

    /// Writes the input of example `index`, which there is, over zeros. The target is of the shape that the source promises.
    pub(super) fn read(&self, index: usize, input: &mut [f32]) -> Result<Target> {
        let row = self.rows[index];
        let target = self.examples.read(row, input)?;
        match (&target, self.target_shape()) {
            (Target::Label(_), None) => Ok(target),
            (Target::Values(values), Some(shape)) if values.len() == shape.elements() => Ok(target),
            (Target::Values(values), Some(shape)) => {
                bail!(Data, "the target of example {row} has {} numbers, and shape {shape} was promised", values.len())
            }
            (Target::Values(_), None) => {
                bail!(Data, "the target of example {row} is numbers, and `target_shape` gives no shape for them")
            }
            (Target::Label(_), Some(shape)) => {
                bail!(Data, "the target of example {row} is a label, and `target_shape` promised numbers {shape}")
            }
        }
    }

    /// Two sets drawn at random: the share `fraction` of the examples, rounded, and the rest.
    ///
    /// `let (train, test) = dataset.split(0.8, seed)?` leaves a fifth to test with. The seed says which, by the order that
    /// [`shuffle`](Batches::shuffle) would give.
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

fn check_shape(what: &str, shape: Shape) -> Result<()> {
    if shape.elements() == 0 {
        bail!(Shape, "{what} needs at least one number, shape {shape} has none");
    }
    if shape.rank() == crate::MAX_RANK {
        bail!(Shape, "{what} of shape {shape} leaves no axis for the batch");
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
        Dataset::new(features, [2], (0..10).collect::<Vec<_>>()).unwrap()
    }

    fn labels(dataset: &Dataset) -> Vec<u32> {
        (0..dataset.len()).filter_map(|i| dataset.get(i).unwrap().1.label()).collect()
    }

    #[test]
    fn examples_keep_their_labels() {
        let (first, second) = dataset().split(0.3, 7).unwrap();
        assert_eq!(labels(&first), [4, 1, 3]);
        assert_eq!(labels(&second), [9, 6, 8, 5, 7, 2, 0]);
        assert_eq!(second.get(1).unwrap(), (vec![6.0, -6.0], Target::Label(6)));
        assert_eq!(second.get(7).unwrap_err().kind(), ErrorKind::Argument);
        assert_eq!(second.split(0.0, 0).unwrap().0.len(), 0);
    }

    #[test]
    fn misuse_is_an_error() {
        let kind = |inputs, shape: &[usize], labels: Vec<u32>| Dataset::new(inputs, shape, labels).unwrap_err().kind();
        assert_eq!(kind(vec![0.0; 5], &[2], vec![0, 1]), ErrorKind::Shape);
        assert_eq!(kind(vec![], &[0], vec![0]), ErrorKind::Shape);
        assert_eq!(kind(vec![0.0], &[1; 8], vec![0]), ErrorKind::Shape);
        assert_eq!(kind(vec![], &[usize::MAX, 2], vec![0, 0]), ErrorKind::Shape);
        for fraction in [-0.1, 1.1, f64::NAN] {
            assert_eq!(dataset().split(fraction, 0).unwrap_err().kind(), ErrorKind::Argument);
        }
    }

    #[test]
    fn targets_may_be_numbers() {
        let dataset = Dataset::new(vec![0.0, 1.0, 2.0], [1], ((0..6u8).map(f32::from).collect(), [1, 2])).unwrap();
        assert_eq!((dataset.len(), dataset.target_shape()), (3, Some([1, 2].into())));
        let (one, _) = dataset.split(0.4, 1).unwrap();
        assert_eq!(one.get(0).unwrap(), (vec![1.0], Target::Values(vec![2.0, 3.0])));
        for (values, shape, part) in [
            (6, &[4][..], "6 numbers given for targets of shape [4]"),
            (6, &[0], "a target needs at least one number"),
            (6, &[6], "3 numbers given for the inputs of 1 examples, [1] each"),
            (3, &[1; 8], "a target of shape [1, 1, 1, 1, 1, 1, 1, 1] leaves no axis"),
        ] {
            let error = Dataset::new(vec![0.0; 3], [1], (vec![0.0; values], shape)).unwrap_err();
            assert!(error.kind() == ErrorKind::Shape && error.to_string().contains(part), "{error}");
        }
    }

    /// A source that promises targets of one shape and has others.
    struct Liar(Option<Shape>, Target);

    impl Examples for Liar {
        fn len(&self) -> usize {
            1
        }

        fn shape(&self) -> Shape {
            [1].into()
        }

        fn target_shape(&self) -> Option<Shape> {
            self.0
        }

        fn read(&self, _: usize, _: &mut [f32]) -> Result<Target> {
            Ok(self.1.clone())
        }
    }

    #[test]
    fn targets_are_held_to_their_shape() {
        for (shape, target, part) in [
            (None, Target::Values(vec![0.0]), "is numbers, and `target_shape` gives no shape"),
            (Some([2].into()), Target::Label(0), "is a label, and `target_shape` promised numbers [2]"),
            (Some([2].into()), Target::Values(vec![0.0]), "has 1 numbers, and shape [2] was promised"),
        ] {
            let dataset = Dataset::of(Liar(shape, target)).unwrap();
            let batch = dataset.batches(1).on(&crate::Device::cpu()).next().unwrap();
            for error in [dataset.get(0).unwrap_err(), batch.unwrap_err()] {
                assert!(error.kind() == ErrorKind::Data && error.to_string().contains(part), "{error}");
            }
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

        fn read(&self, _: usize, _: &mut [f32]) -> Result<Target> {
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
            assert!(error.to_string().starts_with(&format!("an input {}", Shape::from(shape))), "{error}");
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
        assert_eq!(dataset.get(0).unwrap(), (vec![0.0, 0.2], Target::Label(3)));
        assert_eq!(dataset.get(1).unwrap(), (vec![1.0, 1.0 / 255.0], Target::Label(4)));
        assert_eq!(format!("{dataset:?}"), "Dataset(2 examples of shape [2])");
    }
}
