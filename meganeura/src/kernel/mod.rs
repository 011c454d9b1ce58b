//! What kernels are written with: native ones as loops over slices, those of GPUs as launches, which are data.
//!
//! Operations stand on this, and executors run it; it knows neither.

pub mod gemm;
pub mod launch;
pub mod native;
pub mod offset;
