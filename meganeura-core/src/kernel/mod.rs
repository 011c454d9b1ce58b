//! The building blocks of kernels: loops over slices for the CPU, and launches, which are data, for GPUs.
//!
//! Operations stand on this, and executors run it; it knows neither.

pub mod format;
pub mod fragments;
pub mod gemm;
pub mod launch;
mod multiprocessors;
pub mod native;
pub mod offset;
