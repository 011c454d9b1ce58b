//! What the examples share and what is not about meganeura: datasets to learn from, options, and ways to show what came
//! of it.

// Whatever the page of `examples/web` has as well stands alone: the others read files, draw pictures and parse
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
mod program;
#[cfg(not(target_family = "wasm"))]
pub mod ranks;
#[cfg(not(target_family = "wasm"))]
pub mod shapes;
#[cfg(not(target_family = "wasm"))]
pub mod training;

#[cfg(not(target_family = "wasm"))]
pub use program::{device, run};
