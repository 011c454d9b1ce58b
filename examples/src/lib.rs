//! Shared code of the examples that is not about meganeura: datasets, options, and the display of results.

// Modules that the page of `examples/web` uses, too, stand alone; the others read files, draw pictures and parse
// arguments.
pub mod digits;
pub mod models;
pub mod process;

#[cfg(not(target_family = "wasm"))]
pub mod curve;
#[cfg(not(target_family = "wasm"))]
pub mod images;
#[cfg(not(target_family = "wasm"))]
pub mod losses;
#[cfg(not(target_family = "wasm"))]
pub mod pictures;
#[cfg(not(target_family = "wasm"))]
pub mod precisions;
#[cfg(not(target_family = "wasm"))]
mod program;
#[cfg(not(target_family = "wasm"))]
pub mod ranks;
#[cfg(not(target_family = "wasm"))]
pub mod shapes;
#[cfg(not(target_family = "wasm"))]
pub mod training;

#[cfg(not(target_family = "wasm"))]
pub use program::{device, run};
