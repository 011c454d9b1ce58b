//! Differentiable layers on any GPU.
//!
//! A model is a struct. `#[derive(Module)]` finds its parameters, a [`Tape`] records a step and differentiates it, and the
//! step runs as one cached plan: WGSL kernels on a GPU, or native kernels on the CPU.
//!
//! ```
//! use meganeura::prelude::*;
//!
//! #[derive(Module, Debug)]
//! #[module(sequential)]
//! struct Net {
//!     #[module(init = Linear::new(2, 16), then = tanh)]
//!     hidden: Linear,
//!     #[module(init = Linear::new(16, 2))]
//!     head: Linear,
//! }
//!
//! # fn main() -> meganeura::Result<()> {
//! let device = Device::cpu(); // or `Device::best()?`: a GPU if there is one
//! let mut net = Net::init(&device, 42)?;
//! let mut optimizer = AdamW::new(0.05);
//!
//! // Exclusive or.
//! let x = Tensor::from_slice(&device, [4, 2], &[0., 0., 0., 1., 1., 0., 1., 1.])?;
//! let labels = Tensor::indices(&device, [4], &[0, 1, 1, 0])?;
//! let mut last = f32::INFINITY;
//! for _ in 0..100 {
//!     let tape = Tape::new(&device);
//!     let loss = net.forward(&tape.input(&x)).cross_entropy(&labels);
//!     let grads = tape.backward(&loss)?;
//!     optimizer.step(&mut net, &grads)?;
//!     last = loss.item()?;
//! }
//! assert!(last < 0.05, "the loss is {last}");
//! # Ok(())
//! # }
//! ```
//!
//! Every attribute: [`derive(Module)`](derive@Module). From PyTorch: [its parts, and where they are here](guide::from_pytorch).
//! Models of other kinds: [three of them, declared and written out](guide::models). From files to batches: [data](guide::data).
//! Trainings that survive Ctrl-C, full disks and power failures: [training and resuming](guide::runs).

// Expansions of the derive name this crate from outside; inside, too.
extern crate self as meganeura;

mod cpu;
mod device;
mod dtype;
mod error;
#[cfg(feature = "gpu")]
mod gpu;
mod grad;
mod graph;
mod host;
mod kernel;
mod param;
mod plan;
mod shape;
mod tape;
mod tensor;

pub mod check;
pub mod data;
pub mod guide;
pub mod init;
pub mod io;
pub mod loss;
pub mod module;
pub mod nn;
pub mod ops;
pub mod optim;
pub mod run;

pub use device::{Device, LaunchTime, PipelineCache, Profile, Stats};
pub use dtype::{DType, Precision, TensorType};
pub use error::{Error, ErrorKind, Result};
pub use grad::Grads;
pub use meganeura_derive::Module;
pub use module::{FromConfig, FromSeed, Init, Layer, Module, ModuleExt, Seed};
pub use param::{Buffer, Param};
pub use plan::{KernelChoice, Memory, Profiling};
pub use shape::{Layout, MAX_RANK, Shape};
pub use tape::{Compiled, Inputs, Outputs, Tape, Tensors, Var};
pub use tensor::Tensor;

/// What nearly every program needs.
pub mod prelude {
    pub use crate::data::Dataset;
    pub use crate::io::Checkpoint;
    pub use crate::module::{FromConfig, FromSeed, Init, Layer, Module, ModuleExt, Seed};
    pub use crate::nn::*;
    pub use crate::optim::{Adam, AdamW, Lion, Muon, Optimizer, RmsProp, Sgd};
    pub use crate::{Buffer, Compiled, Device, Grads, Param, Precision, Shape, Tape, Tensor, TensorType, Var};
    pub use meganeura_derive::Module;
}

/// Names that expansions of the derive use. Not for anybody else.
#[doc(hidden)]
pub mod __private {
    pub use core;
    pub use std;

    pub use crate::module::{
        At, Content, FromConfig, FromSeed, Init, Layer, Module, Seed, Shortcut, Slot, SlotMut, add_residual, apply,
        apply_layer, check_skipped, fmt_module, init_by, init_configured, init_field, init_module, skipped,
    };
    pub use crate::{Device, Result, Var};
}
