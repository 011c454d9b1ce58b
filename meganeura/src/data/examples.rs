//! Sources of examples: the trait, and examples in memory.

use super::{Target, Targets};
use crate::error::bail;
use crate::{Result, Shape};

/// Where examples come from: memory, a folder of images, or whatever you can read by number.
///
/// [`Dataset::of`](super::Dataset::of) makes a dataset of it; shuffling, splits, transformations, batches and loader threads then
/// work as with any other. Examples are read when they are needed, by several threads at once if there are
/// [workers](super::Batches::workers), and in any order.
///
/// ```
/// use meganeura::data::{Examples, Target};
/// use meganeura::prelude::*;
///
/// /// Points of a spiral, computed as they are needed.
/// struct Spiral;
///
/// impl Examples for Spiral {
///     fn len(&self) -> usize {
///         1000
///     }
///
///     fn shape(&self) -> Shape {
///         [2].into()
///     }
///
///     fn read(&self, index: usize, input: &mut [f32]) -> meganeura::Result<Target> {
///         let (turn, arm) = (index as f32 / 100.0, index % 2);
///         let (sin, cos) = (turn + std::f32::consts::PI * arm as f32).sin_cos();
///         input.copy_from_slice(&[turn * cos, turn * sin]);
///         Ok(Target::Label(arm as u32))
///     }
/// }
///
/// let (train, test) = Dataset::of(Spiral)?.split(0.8, 1)?;
/// assert_eq!(train.batches(64).shuffle(7).workers(2).on(&Device::cpu()).count(), 13);
/// # assert_eq!(test.len(), 200);
/// # Ok::<(), meganeura::Error>(())
/// ```
pub trait Examples: Send + Sync {
    /// The number of examples.
    fn len(&self) -> usize;

    /// Whether there are no examples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The shape of every input, `[channels, height, width]` for images.
    fn shape(&self) -> Shape;

    /// The shape of every target; `None`, the default, if targets are labels.
    fn target_shape(&self) -> Option<Shape> {
        None
    }

    /// Writes the input of example `index`, which is below [`len`](Self::len), row by row into `input` and returns the target. The
    /// slice has as many elements as [`shape`](Self::shape) and is filled with zeros.
    ///
    /// # Errors
    ///
    /// Any error ends up in the training loop in place of the batch, so its message should say where the example comes from.
    fn read(&self, index: usize, input: &mut [f32]) -> Result<Target>;
}

/// What examples in memory are kept as.
pub(super) trait Element: Copy + Send + Sync + 'static {
    fn value(self) -> f32;
}

impl Element for f32 {
    fn value(self) -> f32 {
        self
    }
}

/// A pixel: 255 is 1.
impl Element for u8 {
    fn value(self) -> f32 {
        f32::from(self) / 255.0
    }
}

/// Examples in memory, one after the other.
pub(super) struct Memory<T> {
    inputs: Vec<T>,
    shape: Shape,
    targets: Targets,
}

impl<T: Element> Memory<T> {
    pub(super) fn new(inputs: Vec<T>, shape: Shape, targets: Targets) -> Result<Self> {
        let count = targets.count()?;
        if count.checked_mul(shape.elements()) != Some(inputs.len()) {
            bail!(Shape, "{} numbers given for the inputs of {count} examples, {shape} each", inputs.len());
        }
        Ok(Self { inputs, shape, targets })
    }
}

impl<T: Element> Examples for Memory<T> {
    fn len(&self) -> usize {
        self.inputs.len() / self.shape.elements()
    }

    fn shape(&self) -> Shape {
        self.shape
    }

    fn target_shape(&self) -> Option<Shape> {
        self.targets.shape()
    }

    fn read(&self, index: usize, input: &mut [f32]) -> Result<Target> {
        let inputs = &self.inputs[index * input.len()..];
        for (number, value) in input.iter_mut().zip(inputs) {
            *number = value.value();
        }
        self.targets.get(index)
    }
}
