//! Sources of examples: the trait, and examples in memory.

use super::fields::{Columns, Fields};
use crate::Result;
use crate::error::bail;

/// A source of examples: memory (a `Vec` of inputs and targets), a folder of images, or anything that can be read by
/// index.
///
/// [`Dataset::of`](super::Dataset::of) makes a dataset of it. Shuffling, splits, transformations, batches and loader
/// threads then work as with any other dataset. Examples are read on demand, in any order, and by several threads at
/// once if there are [workers](super::Batches::workers).
///
/// ```
/// use meganeura::data::{Array, Examples};
/// use meganeura::prelude::*;
///
/// /// Points of a spiral, computed as they are needed.
/// struct Spiral;
///
/// impl Examples for Spiral {
///     type Inputs = Array<f32>;
///     type Targets = u32;
///
///     fn len(&self) -> usize {
///         1000
///     }
///
///     fn read(&self, index: usize) -> meganeura::Result<(Array<f32>, u32)> {
///         let (turn, arm) = (index as f32 / 100.0, index % 2);
///         let (sin, cos) = (turn + std::f32::consts::PI * arm as f32).sin_cos();
///         Ok((Array::from(vec![turn * cos, turn * sin]), arm as u32))
///     }
/// }
///
/// let (train, test) = Dataset::of(Spiral)?.split(0.8, 1)?;
/// assert_eq!(train.batches(64).shuffle(7).epoch(0).workers(2).on(&Device::cpu()).count(), 13);
/// # assert_eq!(test.len(), 200);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[doc(alias = "Dataset")]
pub trait Examples: Send + Sync {
    /// The inputs of an example: `Array<f32>` for an image, a tuple for several inputs. [`Fields`] lists all types.
    type Inputs: Fields;

    /// The targets of an example: `u32` for a label, `Array<f32>` for a mask, `()` for none.
    type Targets: Fields;

    /// The number of examples.
    fn len(&self) -> usize;

    /// `true` if there are no examples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The inputs and the targets of example `index`, which is below [`len`](Self::len).
    ///
    /// # Errors
    ///
    /// An error reaches the training loop in place of the batch, so its message should name the origin of the example.
    fn read(&self, index: usize) -> Result<(Self::Inputs, Self::Targets)>;

    /// The targets alone. A source that has them without reading the inputs should override this:
    /// [`Dataset::targets`](super::Dataset::targets) reads those of all examples.
    ///
    /// # Errors
    ///
    /// Fails like [`read`](Self::read).
    fn read_targets(&self, index: usize) -> Result<Self::Targets> {
        self.read(index).map(|(_, targets)| targets)
    }
}

/// Examples in memory, one by one. Their shapes may differ, as those of texts do: see
/// [`collate`](super::Batches::collate). Examples of equal shapes take less memory as columns:
/// [`Dataset::from_columns`](super::Dataset::from_columns).
///
/// ```
/// use meganeura::prelude::*;
///
/// let texts = vec![(Array::from(vec![5_u32, 2, 7]), 1), (Array::from(vec![3_u32]), 0)];
/// let texts: Dataset<Array<u32>> = Dataset::of(texts)?;
/// assert_eq!((texts.len(), texts.targets()?), (2, vec![1, 0]));
/// # Ok::<(), meganeura::Error>(())
/// ```
impl<I: Fields + Clone + Sync, T: Fields + Clone + Sync> Examples for Vec<(I, T)> {
    type Inputs = I;
    type Targets = T;

    fn len(&self) -> usize {
        self.len()
    }

    fn read(&self, index: usize) -> Result<(I, T)> {
        Ok(self[index].clone())
    }

    fn read_targets(&self, index: usize) -> Result<T> {
        Ok(self[index].1.clone())
    }
}

/// Examples in memory, column by column.
pub(super) struct InMemory<I, T> {
    inputs: I,
    targets: T,
    count: usize,
}

impl<I: Columns, T: Columns> InMemory<I, T> {
    pub(super) fn new(inputs: I, targets: T) -> Result<Self> {
        let (mut of_inputs, mut of_targets) = (Vec::new(), Vec::new());
        inputs.counts(&mut of_inputs)?;
        targets.counts(&mut of_targets)?;
        let mut counts = of_inputs.iter().chain(&of_targets);
        let Some(&count) = counts.next() else { bail!(Argument, "examples without a column cannot be counted") };
        if counts.any(|&other| other != count) {
            bail!(
                Shape,
                "inputs of {of_inputs:?} examples and targets of {of_targets:?}: each example needs all of them"
            );
        }
        Ok(Self { inputs, targets, count })
    }
}

impl<I: Columns, T: Columns> Examples for InMemory<I, T> {
    type Inputs = I::Fields;
    type Targets = T::Fields;

    fn len(&self) -> usize {
        self.count
    }

    fn read(&self, index: usize) -> Result<(I::Fields, T::Fields)> {
        Ok((self.inputs.row(index)?, self.targets.row(index)?))
    }

    fn read_targets(&self, index: usize) -> Result<T::Fields> {
        self.targets.row(index)
    }
}
