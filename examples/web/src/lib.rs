//! Training in a page: a model learns to read digits, then another to draw them.
//!
//! [`Session`] is plain Rust and works natively, too: `cargo run --release -p meganeura-web` runs it. `bindings.rs`
//! exposes it to JavaScript, `www/worker.js` calls it in a worker, and `www/main.js` shows the results.
//! `cargo xtask web` builds and serves the page.

#[cfg(target_family = "wasm")]
mod bindings;
mod learner;
mod parts;
mod session;
mod strokes;

pub use session::{Model, Session};
pub use strokes::image_of;
