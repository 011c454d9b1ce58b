//! Data: sources of examples, datasets, and batches on a device.
//!
//! Knows tensors, seeds and worlds, but no models. The [guide](crate::guide::data) shows how the parts work together.

mod array;
mod batches;
mod batches_on;
mod cifar;
mod collate;
mod csv;
mod dataset;
mod examples;
mod fields;
mod file;
mod idx;
#[cfg(all(feature = "images", not(target_family = "wasm")))]
mod image_folder;
#[cfg(all(feature = "images", not(target_family = "wasm")))]
mod image_pairs;
mod joined;
mod loader;
mod mixed;
mod on_tape;
mod order;
#[cfg(all(feature = "images", not(target_family = "wasm")))]
mod picture;
mod recipe;
mod settings;
mod taken;
mod transform;
mod windows;

pub use array::{Array, Number};
pub use batches::{Batch, Batches};
pub use batches_on::BatchesOn;
pub use cifar::Cifar100Label;
pub use collate::{Collate, Collated, Stack};
pub use csv::Csv;
pub use dataset::Dataset;
pub use examples::Examples;
pub use fields::{Columns, Fields};
#[cfg(all(feature = "images", not(target_family = "wasm")))]
pub use image_folder::ImageFolder;
#[cfg(all(feature = "images", not(target_family = "wasm")))]
pub use image_pairs::ImagePairs;
pub use mixed::MixedBatches;
pub use on_tape::OnTape;
#[cfg(all(feature = "images", not(target_family = "wasm")))]
pub use picture::read_image;
pub use taken::Taken;
pub(crate) use taken::{Count, Record};
pub use transform::{
    ColorJitter, Cutout, HorizontalFlip, Normalize, RandomAffine, RandomCrop, RandomResizedCrop, Transform,
    VerticalFlip,
};
pub use windows::Windows;
