//! Models as files of [ONNX](https://onnx.ai): export of a forward pass, and import of one. The feature `onnx`.
//!
//! ```
//! use meganeura::onnx;
//! use meganeura::prelude::*;
//!
//! # fn main() -> meganeura::Result<()> {
//! let device = Device::cpu();
//! let net = (Conv2d::new(3, 8, 3).padding(1), Relu, GlobalAvgPool2d, Linear::new(8, 10)).init(&device, Seed::new(1))?;
//! # let folder = tempfile::tempdir().unwrap();
//! let path = "net.onnx";
//! # let path = folder.path().join(path);
//! onnx::export(&device, [1, 3, 32, 32], |x| net.forward(x))?.save(&path)?;
//!
//! let again = onnx::load(&device, &path)?;
//! let x = Tensor::randn(&device, [1, 3, 32, 32], 1)?;
//! let y = again.call(&[&x])?.swap_remove(0);
//! y.expect_close(&x.map(|x| net.forward(x))?, 1e-5, 1e-5)?;
//! # Ok(())
//! # }
//! ```
//!
//! * [`export`] records a function as [`Device::compile`](crate::Device::compile) does, and writes what it recorded.
//!   Each operation says in [`ops`](crate::ops) how it is written. [`Export`] names inputs and outputs, and makes the
//!   extent of the batch one that whoever runs the file chooses.
//! * [`load`] compiles a file for a device. A [`Model`] tells its inputs first, takes their extents where the file
//!   leaves them open, and records the model onto a tape, as a part of a function of yours.
//!
//! Floats become `float`, or `double` from a device of that precision; indices become `int64`. The
//! [guide](crate::guide::onnx) says which operators are read.

mod batch;
mod encode;
mod export;
mod file;
mod import;
mod proto;
mod read;

pub use export::{Export, export};
pub use file::Onnx;
pub use import::{Model, Port, load};

/// The operator set that files are written in, unless [`Export::opset`] says another.
pub const OPSET: i64 = 21;

/// The first operator set that files can be written in: before it, group normalisation had another meaning.
const FIRST_OPSET: i64 = 21;

/// The last operator set that files can be written in, and whose operators are read.
const LAST_OPSET: i64 = 27;
