//! What the examples share and what is not about meganeura: datasets to learn from, options, and ways to show what came of it.

pub mod confusion;
pub mod curve;
pub mod digits;
pub mod images;
pub mod models;
pub mod pictures;
pub mod shapes;
pub mod training;

use meganeura::{Device, Result};

/// The device of a `--device` option: `auto` lets the framework choose, all else is a name.
///
/// # Errors
///
/// If there is no device of this name; the message lists those that there are.
pub fn device(name: &str) -> Result<Device> {
    match name {
        "auto" => Device::best(),
        name => Device::named(name),
    }
}
