//! The page's training, natively: the same session, and on the same device the same weights.
//!
//! ```text
//! cargo run --release -p meganeura-web
//! cargo run --release -p meganeura-web -- --load digits.safetensors --load denoiser.safetensors --reader-steps 0 --drawer-steps 0
//! ```

#[cfg(not(target_family = "wasm"))]
mod program;

#[cfg(not(target_family = "wasm"))]
fn main() -> std::process::ExitCode {
    meganeura_examples::run(program::train)
}

/// In a browser there is only the library.
#[cfg(target_family = "wasm")]
fn main() {}
