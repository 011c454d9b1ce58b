//! Data: examples, where they come from, and how they become batches on a device.
//!
//! Knows tensors and seeds, nothing of models. The [guide](crate::guide::data) shows how the parts go together.

mod batches;
mod cifar;
mod csv;
mod dataset;
mod examples;
mod file;
mod idx;
#[cfg(feature = "images")]
mod image_folder;
mod loader;
mod order;
#[cfg(feature = "images")]
mod picture;
mod recipe;
mod target;
mod transform;

pub use batches::{Batch, Batches, BatchesOn};
pub use cifar::Cifar100Label;
pub use csv::Csv;
pub use dataset::Dataset;
pub use examples::Examples;
#[cfg(feature = "images")]
pub use image_folder::ImageFolder;
pub use target::{Target, Targets};
pub use transform::{CutOut, HorizontalFlip, Normalise, RandomCrop, Transform};
