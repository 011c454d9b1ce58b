//! How a batch is made: by its number alone, so that it has the same bits whoever makes it, and whatever was made before.

use std::fmt;
use std::sync::Arc;

use super::transform::Transform;
use super::{Batch, Dataset, Target};
use crate::error::bail;
use crate::host::{HostBuffer, reserve, try_filled};
use crate::module::Seed;
use crate::{Device, Error, Result, Shape, Tensor};

/// Everything that the batches of an epoch depend on.
pub(super) struct Recipe {
    pub dataset: Dataset,
    pub device: Device,
    /// The examples, in the order in which they come. Positions past the end begin again at the front.
    pub order: Vec<usize>,
    /// Positions of the epoch: up to here there are batches.
    pub positions: usize,
    /// Positions of a batch; the last may have fewer.
    pub size: usize,
    /// Which of how many equal parts of each batch is made.
    pub part: usize,
    pub parts: usize,
    pub transforms: Vec<Arc<dyn Transform>>,
    /// The shapes of an example between the transformations, from before the first to after the last.
    pub shapes: Vec<Shape>,
    /// Of the transformations' draws.
    pub seed: Seed,
}

impl Recipe {
    /// The number of batches.
    pub(super) fn count(&self) -> usize {
        self.positions.div_ceil(self.size)
    }

    /// Batch `number`; `None` if it is not wanted any more, which is asked before each example.
    pub(super) fn batch(&self, number: usize, is_wanted: impl Fn() -> bool) -> Result<Option<Batch>> {
        let first = number * self.size;
        let count = self.size.min(self.positions - first) / self.parts;
        let begin = first + self.part * count;
        let positions = begin..begin + count;
        let batched = |example: Shape| Shape::new(&[&[count], example.dims()].concat());
        let example = self.shapes[self.shapes.len() - 1];
        let shape = batched(example);
        let in_batch = |error: Error| error.context(format_args!("a batch {shape}"));
        let mut inputs = try_filled(shape.elements(), 0.0).map_err(in_batch)?;
        // Of these two, the one that the examples' targets are.
        let target_shape = self.dataset.target_shape();
        let (mut labels, mut values) = (Vec::new(), Vec::new());
        match target_shape {
            None => reserve(&mut labels, count).map_err(in_batch)?,
            Some(shape) => reserve(&mut values, batched(shape).elements()).map_err(in_batch)?,
        }
        let mut scratch = Vec::new();
        reserve(&mut scratch, self.largest()).map_err(in_batch)?;
        for (position, input) in positions.zip(inputs.chunks_exact_mut(example.elements())) {
            if !is_wanted() {
                return Ok(None);
            }
            let index = self.order[position % self.order.len()];
            let target = match &*self.transforms {
                [] => self.dataset.read(index, input)?,
                transforms => {
                    scratch.clear();
                    scratch.resize(self.shapes[0].elements(), 0.0);
                    let target = self.dataset.read(index, &mut scratch)?;
                    self.transform(transforms, position, &mut scratch)?;
                    input.copy_from_slice(&scratch);
                    target
                }
            };
            match target {
                Target::Label(label) => labels.push(label),
                Target::Values(target) => values.extend(target),
            }
        }
        let floats = |shape: Shape, numbers| {
            let numbers = HostBuffer::F32(numbers).try_cast(self.device.precision().dtype()).map_err(in_batch)?;
            Tensor::from_host(&self.device, shape, numbers)
        };
        let inputs = floats(shape, inputs)?;
        let targets = match target_shape {
            None => Tensor::indices(&self.device, [count], &labels)?,
            Some(shape) => floats(batched(shape), values)?,
        };
        Ok(Some(Batch { inputs, targets }))
    }

    /// The most numbers that a transformation has at once: an example as it was, and as it becomes.
    fn largest(&self) -> usize {
        let pairs = self.shapes.windows(2).map(|pair| pair[0].elements().saturating_add(pair[1].elements()));
        pairs.max().unwrap_or(0)
    }

    /// Each transformation draws from a seed of its own, so that one more at the end leaves the others as they were.
    fn transform(&self, transforms: &[Arc<dyn Transform>], position: usize, example: &mut Vec<f32>) -> Result<()> {
        let seed = self.seed.index(position);
        for (index, transform) in transforms.iter().enumerate() {
            let (before, after) = (self.shapes[index], self.shapes[index + 1]);
            transform.apply(example, before, seed.index(index));
            if example.len() != after.elements() {
                let found = example.len();
                bail!(Shape, "{transform:?} makes {found} numbers of shape {before}, and said that it makes {after}");
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the order, which is as long as the dataset.
        let Self { dataset, size, transforms, .. } = self;
        write!(f, "Recipe({dataset:?} in batches of {size}, {transforms:?})")
    }
}
