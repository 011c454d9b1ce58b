//! The engine of [`meganeura`](https://docs.rs/meganeura), which re-exports what is meant for users.
//!
//! A [`Tape`] records operations on [`Tensor`]s and differentiates them, a [`Device`] turns what was recorded into a
//! cached plan, and an executor runs it: WGSL kernels on a GPU, native kernels on the CPU. Models are seen through
//! [`Module`] alone: layers, optimizers, data and files are in the crate above.
//!
//! Modules that are hidden here are for that crate only, and may change in any release.

// docs.rs builds with nightly Rust, which can show the feature that an item needs.
#![recursion_limit = "256"] // rustdoc proves that devices are `Sync` down to the types of naga
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    target_family = "wasm",
    expect(dead_code, unused_imports, reason = "what blocks, reads files or starts threads is used natively only")
)]

// Expansions of the derive refer to the crate above.
#[cfg(test)]
extern crate self as meganeura;

mod cpu;
#[doc(hidden)]
pub mod device;
mod dot;
#[doc(hidden)]
pub mod dtype;
#[doc(hidden)]
pub mod error;
mod executor;
#[doc(hidden)]
pub mod file;
#[doc(hidden)]
pub mod functions;
#[cfg(feature = "gpu")]
mod gpu;
#[doc(hidden)]
pub mod grad;
#[doc(hidden)]
pub mod graph;
#[doc(hidden)]
pub mod host;
mod kernel;
mod mode;
#[doc(hidden)]
pub mod param;
#[doc(hidden)]
pub mod plan;
#[doc(hidden)]
pub mod seed;
#[doc(hidden)]
pub mod shape;
mod storage;
#[doc(hidden)]
pub mod tape;
#[doc(hidden)]
pub mod tensor;
#[doc(hidden)]
pub mod wait;

#[cfg(not(target_family = "wasm"))]
pub mod check;
pub mod init;
pub mod loss;
pub mod module;
pub mod ops;
pub mod world;

pub use device::{Device, HostSpan, LaunchTime, Profile, Stats};
pub use dtype::{DType, Precision, TensorType};
pub use error::{Error, ErrorKind, Result};
pub use executor::{HostTimes, PipelineCache, Profiling};
pub use functions::{Axis, AxisRange, Operand, Ranges};
#[cfg(all(feature = "gpu", feature = "testing"))]
pub use gpu::PlannedKernel;
pub use grad::Grads;
pub use module::{FromConfig, FromSeed, Init, Layer, Module, ModuleExt};
pub use param::{Buffer, Param};
pub use plan::{KernelChoice, Memory};
pub use seed::Seed;
pub(crate) use shape::Layout;
pub use shape::{MAX_RANK, Shape};
pub use tape::{Compiled, Inputs, Outputs, Tape, Tensors, Var};
pub use tensor::{Nested, Tensor};

/// Names for expansions of the derive. Not for any other use.
#[doc(hidden)]
pub mod __private {
    pub use core;
    pub use std;

    pub use crate::module::{
        At, Content, Flow, FlowChain, FlowOf, FromConfig, FromSeed, Init, KnownFlow, KnownFlowBeside, Layer, Module,
        ModuleContent, Seed, Shortcut, Slot, SlotMut, Unknown, UnknownFlow, add_residual, apply, apply_layer,
        check_flow, check_input, check_skipped, enter, enter_field, fmt_module, init_by, init_configured, init_field,
        init_module, skipped,
    };
    pub use crate::{Device, Result, Var};
}
