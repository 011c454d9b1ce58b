//! Data: examples with labels, where they come from, and how they become batches on a device.
//!
//! Knows tensors and seeds, nothing of models.

mod batches;
mod dataset;
mod examples;
mod loader;
mod order;
mod recipe;
mod transform;

pub use batches::{Batch, Batches, BatchesOn};
pub use dataset::Dataset;
pub use examples::Examples;
pub use transform::{CutOut, HorizontalFlip, Normalise, RandomCrop, Transform};
