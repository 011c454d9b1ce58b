//! What a dataset is made of: the trait of everything that has examples, and examples in memory.

use crate::error::bail;
use crate::{Result, Shape};

/// Where examples come from: memory, a folder of images, or whatever you can read by number.
///
/// [`Dataset::of`](super::Dataset::of) makes a dataset of it; shuffling, splits, transformations, batches and loader threads then
/// work as with any other. Examples are read when they are needed, by several threads at once if there are
/// [workers](super::Batches::workers), and in any order.
///
/// ```
/// use meganeura::data::Examples;
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
///     fn read(&self, index: usize, example: &mut [f32]) -> meganeura::Result<u32> {
///         let (turn, arm) = (index as f32 / 100.0, index % 2);
///         let (sin, cos) = (turn + std::f32::consts::PI * arm as f32).sin_cos();
///         example.copy_from_slice(&[turn * cos, turn * sin]);
///         Ok(arm as u32)
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

    /// The shape of every example, `[channels, height, width]` for images.
    fn shape(&self) -> Shape;

    /// Writes example `index`, below [`len`](Self::len), row by row into `example`, which has as many elements as the shape and is
    /// filled with zeros; returns the label.
    ///
    /// # Errors
    ///
    /// Whatever stands in the way. The message should say where: the training loop gets it instead of the batch.
    fn read(&self, index: usize, example: &mut [f32]) -> Result<u32>;
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
    features: Vec<T>,
    shape: Shape,
    labels: Vec<u32>,
}

impl<T: Element> Memory<T> {
    pub(super) fn new(features: Vec<T>, shape: Shape, labels: Vec<u32>) -> Result<Self> {
        if labels.len().checked_mul(shape.elements()) != Some(features.len()) {
            bail!(Shape, "{} numbers given for {} labelled examples of shape {shape}", features.len(), labels.len());
        }
        Ok(Self { features, shape, labels })
    }
}

impl<T: Element> Examples for Memory<T> {
    fn len(&self) -> usize {
        self.labels.len()
    }

    fn shape(&self) -> Shape {
        self.shape
    }

    fn read(&self, index: usize, example: &mut [f32]) -> Result<u32> {
        let features = &self.features[index * example.len()..];
        for (number, feature) in example.iter_mut().zip(features) {
            *number = feature.value();
        }
        Ok(self.labels[index])
    }
}
