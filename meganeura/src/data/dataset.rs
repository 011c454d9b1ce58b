//! A set of examples, and its parts.

use std::fmt;
use std::sync::Arc;

use super::examples::InMemory;
use super::fields::{Columns, Pixels};
use super::order::{numbered, shuffle};
use super::{Array, Batches, Examples, Fields};
use crate::error::{bail, here};
use crate::host::{reserve, try_collect};
use crate::seed::Seed;
use crate::{Result, Shape};

/// Examples, each with inputs `I` and targets `T`, in memory or read on demand. Clones and splits share them.
///
/// By default, a dataset has one input of `f32` and a label: `Dataset` is `Dataset<Array<f32>, u32>`. [`Fields`] lists
/// the other types of inputs and targets.
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
/// for batch in train.batches(2).shuffle(7).epoch(0).on(&device) {
///     let batch = batch?;
///     println!("{} images, {:?}", batch.inputs.shape()[0], batch.targets);
/// }
/// # Ok::<(), meganeura::Error>(())
/// ```
pub struct Dataset<I = Array<f32>, T = u32> {
    examples: Arc<dyn Examples<Inputs = I, Targets = T>>,
    /// The indices of this set's examples, in order.
    rows: Arc<Vec<usize>>,
}

impl<I, T> Clone for Dataset<I, T> {
    fn clone(&self) -> Self {
        Self { examples: Arc::clone(&self.examples), rows: Arc::clone(&self.rows) }
    }
}

impl<T: Fields> Dataset<Array<f32>, T> {
    /// Examples in memory, with one input each.
    ///
    /// Inputs have this shape, `[channels, height, width]` for images, and are stored one after the other. The
    /// [targets](Columns) are a `Vec<u32>` of labels, a `Vec<f32>` of numbers to predict, or an [`Array`] whose first
    /// axis counts the examples.
    ///
    /// # Errors
    ///
    /// Fails if there are not as many inputs as targets, if the shape has no elements, or if it has as many axes as a
    /// tensor can have, which leaves none for the batch.
    #[track_caller]
    pub fn new(inputs: Vec<f32>, shape: impl Into<Shape>, targets: impl Columns<Fields = T>) -> Result<Self> {
        here(|| {
            let shape = shape.into();
            let count = count(inputs.len(), shape)?;
            Self::from_columns(Array::new(inputs, Shape::new(&[&[count], shape.dims()].concat()))?, targets)
        })
    }

    /// Like [`new`](Self::new), from the bytes of pixels. They stay bytes in memory and become numbers from 0 to 1 (255
    /// is 1) when a batch is made.
    ///
    /// # Errors
    ///
    /// Fails like [`new`](Self::new).
    #[track_caller]
    pub fn from_bytes(pixels: Vec<u8>, shape: impl Into<Shape>, targets: impl Columns<Fields = T>) -> Result<Self> {
        here(|| {
            let shape = shape.into();
            let count = count(pixels.len(), shape)?;
            Self::of(InMemory::new(Pixels { bytes: pixels, count, shape }, targets)?)
        })
    }

    /// The shape of the first input, which this reads.
    ///
    /// # Errors
    ///
    /// Fails if there are no examples, or the first cannot be read.
    #[track_caller]
    pub fn shape(&self) -> Result<Shape> {
        here(|| Ok(self.get(0)?.0.shape()))
    }
}

impl<I: Fields, T: Fields> Dataset<I, T> {
    /// Examples in memory, with any [columns](Columns) of inputs and targets.
    ///
    /// ```
    /// use meganeura::data::Array;
    /// use meganeura::prelude::*;
    ///
    /// // Two pairs of images, and how far apart the images of each pair are.
    /// let left = Array::new(vec![0.0; 2 * 3 * 8 * 8], [2, 3, 8, 8])?;
    /// let right = left.clone();
    /// let pairs = Dataset::from_columns((left, right), vec![0.5, 2.0])?;
    /// for batch in pairs.batches(2).on(&Device::cpu()) {
    ///     let batch = batch?;
    ///     let (left, right) = &batch.inputs;
    ///     assert_eq!((left.shape(), batch.targets.shape()), ([2, 3, 8, 8].into(), [2].into()));
    ///     # assert_eq!(right.shape(), left.shape());
    /// }
    ///
    /// // Two sequences of four tokens, each with the token to predict after every one.
    /// let tokens = Array::new(vec![5, 2, 9, 1, 5, 7, 7, 1], [2, 4])?;
    /// let next = Array::new(vec![2, 9, 1, 0, 7, 7, 1, 0], [2, 4])?;
    /// let text = Dataset::from_columns(tokens, next)?;
    /// assert_eq!(text.get(1)?.0.values(), [5, 7, 7, 1]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if the columns have different numbers of examples, or none.
    #[track_caller]
    pub fn from_columns(inputs: impl Columns<Fields = I>, targets: impl Columns<Fields = T>) -> Result<Self> {
        here(|| Self::of(InMemory::new(inputs, targets)?))
    }

    /// The examples of your own [source](Examples).
    ///
    /// # Errors
    ///
    /// Fails with [`OutOfMemory`](crate::ErrorKind::OutOfMemory) if there are more examples than can be counted in
    /// memory.
    #[track_caller]
    pub fn of(examples: impl Examples<Inputs = I, Targets = T> + 'static) -> Result<Self> {
        here(|| {
            let rows = Arc::new(numbered(examples.len())?);
            Ok(Self { examples: Arc::new(examples), rows })
        })
    }

    /// The number of examples.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// `true` if there are no examples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The inputs and the targets of example `index`.
    ///
    /// # Errors
    ///
    /// Fails if there is no such example, it cannot be read, or there is no memory for it.
    #[track_caller]
    pub fn get(&self, index: usize) -> Result<(I, T)> {
        here(|| match self.rows.get(index) {
            Some(&row) => self.examples.read(row),
            None => bail!(Argument, "there is no example {index} in a dataset of {}", self.len()),
        })
    }

    /// The targets of all examples, in order: labels to [stratify](Batches::stratified) by, or to compute class
    /// [weights](Batches::weighted) from.
    ///
    /// Inputs are not read if the source knows the targets without them, as all sources in this crate do.
    ///
    /// # Errors
    ///
    /// Fails if one cannot be read, or there is no memory for all.
    #[track_caller]
    pub fn targets(&self) -> Result<Vec<T>> {
        here(|| {
            let mut targets = Vec::new();
            reserve(&mut targets, self.len())?;
            for &row in &**self.rows {
                targets.push(self.examples.read_targets(row)?);
            }
            Ok(targets)
        })
    }

    /// The targets of example `index`.
    pub(super) fn target(&self, index: usize) -> Result<T> {
        self.examples.read_targets(self.rows[index])
    }

    /// Splits the dataset at random: the share `fraction` of the examples, rounded, and the rest.
    ///
    /// `let (train, test) = dataset.split(0.8, seed)?` leaves a fifth for testing. The seed selects the examples, by
    /// the order that [`shuffle`](Batches::shuffle) would give. A split of the rest makes three parts. Series in time
    /// are [split at a place](Self::split_at) instead, so that no example of the future is trained on.
    ///
    /// # Errors
    ///
    /// Fails if `fraction` is not between 0 and 1, or there is no memory for the two orders.
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
            Ok((self.part(rows), self.part(tail)))
        })
    }

    /// The first `count` examples, and the rest, both in the order of the dataset.
    ///
    /// # Errors
    ///
    /// Fails if there are fewer examples, or there is no memory for the two orders.
    #[track_caller]
    pub fn split_at(&self, count: usize) -> Result<(Self, Self)> {
        here(|| {
            if count > self.len() {
                bail!(Argument, "a dataset of {} examples cannot be split after {count}", self.len());
            }
            Ok((
                self.part(try_collect(self.rows[..count].iter().copied())?),
                self.part(try_collect(self.rows[count..].iter().copied())?),
            ))
        })
    }

    /// These examples, by their index, in this order. An example may occur several times.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let dataset = Dataset::new(vec![0.0; 6], [1], vec![0, 2, 1, 2, 0, 2])?;
    /// let labels = dataset.targets()?;
    /// let twos = dataset.subset((0..dataset.len()).filter(|&index| labels[index] == 2))?;
    /// assert_eq!(twos.targets()?, [2, 2, 2]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if there is no such example.
    #[track_caller]
    pub fn subset(&self, indices: impl IntoIterator<Item = usize>) -> Result<Self> {
        here(|| {
            let mut rows = Vec::new();
            for index in indices {
                let Some(&row) = self.rows.get(index) else {
                    bail!(Argument, "there is no example {index} in a dataset of {}", self.len());
                };
                reserve(&mut rows, 1)?;
                rows.push(row);
            }
            Ok(self.part(rows))
        })
    }

    /// Splits the dataset at random for cross-validation: `count` pairs of training and test examples. Each example is
    /// in the test set of exactly one pair, and the sizes of these differ by at most one.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let dataset = Dataset::new(vec![0.0; 10], [1], (0..10).collect::<Vec<_>>())?;
    /// for (train, test) in dataset.folds(3, 7)? {
    ///     assert_eq!(train.len() + test.len(), 10);
    /// }
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if there are fewer than two folds or more than examples, or if there is no memory for the orders.
    #[track_caller]
    pub fn folds(&self, count: usize, seed: impl Into<Seed>) -> Result<Vec<(Self, Self)>> {
        here(|| {
            if count < 2 || count > self.len() {
                bail!(Argument, "a dataset of {} examples has no {count} folds; there are at least 2", self.len());
            }
            let mut rows = try_collect(self.rows.iter().copied())?;
            shuffle(&mut rows, seed.into());
            let start = |fold: usize| fold * (rows.len() / count) + fold.min(rows.len() % count);
            let fold = |fold| {
                let (from, to) = (start(fold), start(fold + 1));
                let mut train = Vec::new();
                reserve(&mut train, rows.len() - (to - from))?;
                train.extend_from_slice(&rows[..from]);
                train.extend_from_slice(&rows[to..]);
                Ok((self.part(train), self.part(try_collect(rows[from..to].iter().copied())?)))
            };
            (0..count).map(fold).collect()
        })
    }

    /// A dataset of some of the rows.
    fn part(&self, rows: Vec<usize>) -> Self {
        Self { examples: Arc::clone(&self.examples), rows: Arc::new(rows) }
    }

    /// Batches of `size` examples, in the order of the dataset by default.
    pub fn batches(&self, size: usize) -> Batches<I, T> {
        Batches::new(Arc::new(Arc::clone(&self.examples)), Arc::clone(&self.rows), size)
    }
}

impl<I: Fields, T: Fields> fmt::Debug for Dataset<I, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dataset({} examples)", self.len())
    }
}

/// The number of inputs of this shape in `numbers` numbers.
fn count(numbers: usize, shape: Shape) -> Result<usize> {
    if shape.elements() == 0 {
        bail!(Shape, "an input needs at least one number, shape {shape} has none");
    }
    if shape.rank() == crate::MAX_RANK {
        bail!(Shape, "an input of shape {shape} leaves no axis for the batch");
    }
    if !numbers.is_multiple_of(shape.elements()) {
        bail!(Shape, "{numbers} numbers given for inputs of shape {shape} each");
    }
    Ok(numbers / shape.elements())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, ErrorKind};

    /// Ten examples of two numbers; example `i` is `(i, −i)` with label `i`.
    fn dataset() -> Dataset {
        let features = (0..10u8).map(f32::from).flat_map(|i| [i, -i]).collect();
        Dataset::new(features, [2], (0..10).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn examples_keep_their_labels() {
        let (first, second) = dataset().split(0.3, 7).unwrap();
        assert_eq!(first.targets().unwrap(), [4, 1, 3]);
        assert_eq!(second.targets().unwrap(), [9, 6, 8, 5, 7, 2, 0]);
        assert_eq!(second.get(1).unwrap(), (Array::from(vec![6.0, -6.0]), 6));
        assert_eq!(second.shape().unwrap(), Shape::from([2]));
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
        let error = Dataset::new(vec![0.0; 6], [2], vec![0.5, 0.5]).unwrap_err();
        assert!(error.message().starts_with("inputs of [3] examples and targets of [2]"), "{error}");
        let error = Dataset::from_columns((), ()).unwrap_err();
        assert!(error.message().contains("without a column"), "{error}");
        let single = Array::new(vec![1.0], []).unwrap();
        assert_eq!(Dataset::from_columns(single, ()).unwrap_err().kind(), ErrorKind::Shape);
    }

    #[test]
    fn datasets_may_have_any_columns() {
        let masks = Array::new((0..6u8).map(f32::from).collect(), [3, 1, 2]).unwrap();
        let tokens = Array::new((0..6).collect(), [3, 2]).unwrap();
        let columns = (masks.clone(), [tokens.clone(), tokens], vec![7_u32, 8, 9]);
        let dataset = Dataset::from_columns(columns, (masks, vec![0.5_f32, 1.5, 2.5])).unwrap();
        let (one, _) = dataset.split(0.4, 1).unwrap();
        let ((mask, [tokens, same], label), (target, number)) = one.get(0).unwrap();
        assert_eq!((mask.shape(), mask.values()), ([1, 2].into(), &[2.0, 3.0][..]));
        assert_eq!((tokens.values(), &same, label, &target, number), (&[2, 3][..], &tokens, 8, &mask, 1.5));
        let unlabelled = Dataset::from_columns(vec![1.0_f32, 2.0], ()).unwrap();
        assert_eq!(unlabelled.get(1).unwrap(), (2.0, ()));
        assert_eq!(
            unlabelled.batches(2).on(&Device::cpu()).next().unwrap().unwrap().inputs.to_vec().unwrap(),
            [1.0, 2.0]
        );
    }

    #[test]
    fn a_dataset_may_be_empty() {
        let dataset = Dataset::new(vec![], [2], Vec::<u32>::new()).unwrap();
        assert!(dataset.is_empty() && dataset.targets().unwrap().is_empty());
        assert!(dataset.get(0).is_err() && dataset.shape().is_err());
    }

    /// A source with any claimed length or shape.
    struct Claims(usize, Shape);

    impl Examples for Claims {
        type Inputs = Array<f32>;
        type Targets = ();

        fn len(&self) -> usize {
            self.0
        }

        fn read(&self, _: usize) -> Result<(Array<f32>, ())> {
            Ok((Array::zeros(self.1)?, ()))
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
            assert!(error.to_string().starts_with(&format!("an array {}", Shape::from(shape))), "{error}");
            // The same error if a transformation would make the example small again.
            for batches in [dataset.batches(1), dataset.batches(1).transform(crate::data::RandomCrop::new(1, 1))] {
                let batch = batches.on(&Device::cpu()).next().unwrap();
                assert_eq!(kind(batch.unwrap_err()), ErrorKind::OutOfMemory);
            }
        }
        let dataset = dataset();
        for step in 0..2 {
            let (split, struck) = crate::host::shortage::at(step, || dataset.split(0.5, 1));
            assert!(struck && kind(split.unwrap_err()) == ErrorKind::OutOfMemory);
        }
        // Every memory reservation on the way to a batch fails once.
        let mut step = 0;
        let batch = || {
            let batches = dataset.batches(4).shuffle(1).epoch(0);
            batches.on(&Device::cpu()).next().unwrap()
        };
        while let (batch, true) = crate::host::shortage::at(step, batch) {
            assert_eq!(batch.map(drop).unwrap_err().kind(), ErrorKind::OutOfMemory, "{step}");
            step += 1;
        }
        assert!(step > 8, "{step}");
    }

    #[test]
    fn bytes_become_fractions() {
        let dataset = Dataset::from_bytes(vec![0, 51, 255, 1], [2], vec![3, 4]).unwrap();
        assert_eq!(dataset.get(0).unwrap(), (Array::from(vec![0.0, 0.2]), 3));
        assert_eq!(dataset.get(1).unwrap(), (Array::from(vec![1.0, 1.0 / 255.0]), 4));
        assert_eq!(format!("{dataset:?}"), "Dataset(2 examples)");
    }

    #[test]
    fn parts_are_the_examples_that_were_asked_for() {
        let dataset = Dataset::new(vec![0.0; 11], [1], (0..11).collect::<Vec<_>>()).unwrap();
        let targets = |part: &Dataset| part.targets().unwrap();
        let (past, future) = dataset.split_at(8).unwrap();
        assert_eq!((targets(&past), targets(&future)), ((0..8).collect(), (8..11).collect()));
        assert_eq!((dataset.split_at(0).unwrap().0.len(), dataset.split_at(11).unwrap().1.len()), (0, 0));
        // A subset of a part counts within the part.
        assert_eq!(targets(&future.subset([2, 0, 2]).unwrap()), [10, 8, 10]);
        for error in [
            dataset.split_at(12).map(drop).unwrap_err(),
            future.subset([1, 3]).map(drop).unwrap_err(),
            dataset.folds(1, 7).map(drop).unwrap_err(),
            dataset.folds(12, 7).map(drop).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
        }
        for count in 2..=11 {
            let folds = dataset.folds(count, 7).unwrap();
            let mut seen = Vec::new();
            for (train, test) in &folds {
                assert!(test.len() == 11 / count || test.len() == 11 / count + 1);
                let mut all = [targets(train), targets(test)].concat();
                all.sort_unstable();
                assert_eq!(all, (0..11).collect::<Vec<_>>());
                seen.extend(targets(test));
            }
            assert_eq!(folds.len(), count);
            seen.sort_unstable();
            assert_eq!(seen, (0..11).collect::<Vec<_>>());
        }
        assert_ne!(targets(&dataset.folds(2, 7).unwrap()[0].1), targets(&dataset.folds(2, 8).unwrap()[0].1));
    }
}
