//! What the core does for models, shown with layers, optimizers and files, which it does not have itself.

mod clip;
mod evaluate;
#[cfg(unix)]
mod files;
mod forward_summary;
mod summary;
