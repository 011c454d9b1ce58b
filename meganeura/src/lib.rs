//! Differentiable layers on any GPU.
//!
//! A model is a struct. `#[derive(Module)]` finds its parameters, a [`Tape`] records a step and differentiates it, and
//! the step runs as one cached plan: WGSL kernels on a GPU, or native kernels on the CPU.
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
//! The [guide] is a short book: a first model, layers and operations of your own, data, training and resuming, plans,
//! and what to do when a model is slow or wrong. Its reference pages cover [every attribute of the
//! derive](derive@Module), [the equivalents of PyTorch's names](guide::from_pytorch), and [three models, declared and
//! written out](guide::models).
//!
//! # What there is
//!
//! * **Layers** ([`nn`]): convolutions and transposed ones in one to three dimensions; batch, group, layer,
//!   instance and RMS normalisation; linear, embedding, attention, transformer and recurrent layers; pooling,
//!   resampling, dropout, activations; [initialisers](init) that give the same numbers on every device.
//! * **Operations** ([`Var`]'s methods): elementwise arithmetic and functions with NumPy's broadcasting, reductions,
//!   batched `matmul`, convolution and its transpose with stride, padding, dilation and groups, normalisation, pooling,
//!   resampling, rows by index, softmax, losses, views without copies. [`ops::CustomOp`] adds your own, with its own
//!   WGSL.
//! * **Models** ([`module`]): structs, enums and containers, nested at will, including `Vec<Box<dyn Layer>>`.
//!   Parameters can be tied, shared, and frozen or thawed by patterns of paths (`net.freeze("encoder.**")`); frozen
//!   ones cost no gradient. Parts can be in evaluation mode while others train (`net.evaluate("encoder")`). Models can
//!   be counted, printed, averaged and copied.
//! * **Functions** ([`Var`]): those of NumPy and PyTorch, such as `argmax`, `sort`, `scatter_add`, `einsum` and
//!   attention; on a [`Tensor`] through [`Tensor::map`].
//! * **Losses** ([`loss`]): mean squared and absolute error, Huber and smooth L1, binary cross-entropy with weights,
//!   cross-entropy with class weights, label smoothing and ignored labels, or with probabilities as targets, negative
//!   log-likelihood, CTC, KL divergence, focal, Dice, hinge, cosine and triplet losses; reduced to their mean or sum,
//!   or unreduced.
//! * **Metrics** ([`metric`]): accuracy, top-k accuracy, confusion matrix with F1, ROC AUC, absolute and squared
//!   errors by column with R², perplexity, average precision of boxes, BLEU, the mean of any function; they add up over
//!   batches, threads and ranks.
//! * **Training** ([`optim`]): SGD, Adam, AdamW, NAdam, RAdam, RMSProp, Adagrad, Lion, Muon and L-BFGS with parameter
//!   groups, and a trait for your own; schedules with a text form; gradients accumulated over micro-batches; clipping
//!   by the global norm or by value; steps that refuse or skip NaN; moving averages of models; state that is saved and
//!   restored bit for bit. Higher-order gradients of every operation; products of Hessians and Jacobians with vectors
//!   ([`Tape::hvp`], [`Tape::jvp`]).
//! * **The loop** ([`train`]): a trainer with schedules, accumulation, clipping, averages, validation by any metric,
//!   progress, early stopping and callbacks; each part works in a loop of your own.
//! * **Memory** ([`Tape::recompute`]): blocks whose intermediate values are recomputed in the backward pass instead of
//!   kept.
//! * **Fine-tuning** ([`Lora`]): low-rank adapters for the weights that match a pattern, saved separately or merged.
//! * **Many devices** ([`world`]): processes that each train on a part of every batch and average their gradients,
//!   started by `torchrun` (NCCL) or by `mpirun` (feature `mpi`).
//! * **Inspection** ([the guide's page](guide::seeing)): layers with shapes, multiply-adds and memory
//!   ([`ModuleExt::summary_with`]), graphs and plans for Graphviz, TensorBoard event files (feature `tensorboard`),
//!   traces for Perfetto ([`Profile::chrome_trace`]).
//! * **Checks** ([`check`]): gradients of your own layers and operations against finite differences, in double
//!   precision.
//! * **Data** ([`data`]): MNIST's format, CIFAR, CSV, folders of images decoded on demand (features `gzip` and
//!   `images`), and a trait for your own; any number of inputs and targets; shuffled, weighted and stratified orders by
//!   seed and epoch; sequences padded by a function; pictures with masks, windows over series; random crops, rotations,
//!   colours, normalisation fitted to the data, mixup and cutmix; any number of loader threads, with the same bits. An
//!   epoch can be resumed in the middle.
//! * **Serving** ([`Device::compile`]): a function recorded once and called from any thread, keeping no activations.
//!   Each call sees the current parameters; a clone of the model keeps its own. Batches of any size by a few plans, and
//!   a queue that makes batches of the requests of many threads ([`serve`]).
//! * **Runs** ([`run`]): a folder with checkpoints, metrics and a log of events. A training run that was killed,
//!   interrupted or ran out of disk space resumes bit for bit; the last and the best checkpoints are kept.
//! * **Files** ([`io`]): safetensors. A file that does not match leaves the model unchanged; ties are saved and
//!   restored. Files of PyTorch models are loaded and written by renaming rules. Files of `torch.save` load with the
//!   feature `pt`, those of NumPy's `save` and `savez` with the feature `npz`, GGUF always, and adapters of PEFT both
//!   ways.
//! * **ONNX** (module and feature `onnx`): export of a forward pass, and import of models from elsewhere.
//! * **Devices** ([`Device`]): a GPU through Vulkan, Metal, DirectX 12 or, in a browser, WebGPU; else the CPU.
//!   `MEGANEURA_DEVICE` overrides the choice. Metal and DirectX 12 were never run; the README lists the tested devices.
//!   [`Precision::Double`] on the CPU, [`Precision::Fast`] on a GPU's matrix units. Compiled kernels are cached on disk
//!   (`MEGANEURA_CACHE`). [`Device::last_profile`] returns the time of each kernel of a run.

//!
//! # Cargo features
//!
//! | feature | adds |
//! |---|---|
//! | `gpu` (default) | the GPU executor, through wgpu; without it, only the CPU computes |
//! | `ctrlc` | Ctrl-C as a request to stop: `Interrupt::on_ctrl_c` |
//! | `images` | pictures, in folders and alone, read and written: PNG, JPEG, BMP and PNM |
//! | `gzip` | data compressed with gzip |
//! | `npz`, `pt` | files of `numpy.save` and `savez`; of `torch.save` and `torch.jit.save` |
//! | `onnx` | export and import of ONNX files |
//! | `tensorboard` | metrics of runs as TensorBoard event files |
//! | `mpi` | several processes through MPI, which must be installed with its headers, and libclang |

// docs.rs builds with nightly Rust, which can show the feature that an item needs.
#![recursion_limit = "256"] // rustdoc proves that devices are `Sync` down to the types of naga
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    target_family = "wasm",
    expect(dead_code, unused_imports, reason = "what blocks, reads files or starts threads is used natively only")
)]

// Expansions of the derive refer to this crate by its external name, also inside it.
extern crate self as meganeura;

mod lora;

pub mod data;
pub mod guide;
pub mod io;
pub mod metric;
pub mod nn;
#[cfg(feature = "onnx")]
pub mod onnx;
pub mod ops;
pub mod optim;
#[cfg(not(target_family = "wasm"))]
pub mod run;
#[cfg(not(target_family = "wasm"))]
pub mod serve;
#[cfg(test)]
mod tests;
#[cfg(not(target_family = "wasm"))]
pub mod train;

pub use lora::{Adapters, Lora};
#[doc(hidden)]
pub use meganeura_core::__private;
#[cfg(all(feature = "gpu", feature = "testing"))]
pub use meganeura_core::PlannedKernel;
#[cfg(not(target_family = "wasm"))]
#[doc(inline)]
pub use meganeura_core::check;
#[doc(inline)]
pub use meganeura_core::{
    Axis, AxisRange, Buffer, Compiled, DType, Device, Error, ErrorKind, Grads, HostSpan, HostTimes, Inputs,
    KernelChoice, LaunchTime, MAX_RANK, Memory, Nested, Operand, Outputs, Param, PipelineCache, Precision, Profile,
    Profiling, Ranges, Result, Seed, Shape, Stats, Tape, Tensor, TensorType, Tensors, Var, init, loss, module, world,
};
pub use meganeura_derive::Module;
#[doc(no_inline)]
pub use module::{FromConfig, FromSeed, Init, Layer, Module, ModuleExt};

// Modules of the engine that users do not see.
#[cfg(feature = "onnx")]
use meganeura_core::graph;
use meganeura_core::{dtype, error, file, grad, host, param, seed, tape, wait};

/// The names that almost every program needs.
pub mod prelude {
    pub use crate::data::{Array, Batch, Batches, Dataset, Examples};
    #[doc(no_inline)]
    pub use crate::init::Initializer;
    pub use crate::io::Checkpoint;
    pub use crate::lora::{Adapters, Lora};
    #[doc(no_inline)]
    pub use crate::module::{FromConfig, FromSeed, Init, Layer, Module, ModuleExt, Seed};
    pub use crate::nn::*;
    pub use crate::optim::{
        Accumulate, Adagrad, Adam, AdamW, Ema, Lion, Muon, NAdam, Optimizer, RAdam, RmsProp, Schedule, Sgd, TrainStep,
    };
    #[cfg(not(target_family = "wasm"))]
    pub use crate::run::{Best, Run};
    #[cfg(not(target_family = "wasm"))]
    pub use crate::train::Trainer;
    #[doc(no_inline)]
    pub use crate::world::World;
    #[doc(no_inline)]
    pub use crate::{
        Buffer, Compiled, DType, Device, Grads, Param, Precision, Result, Shape, Tape, Tensor, TensorType, Var,
    };
    pub use meganeura_derive::Module;
}
