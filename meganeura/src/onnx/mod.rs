//! Export and import of [ONNX](https://onnx.ai) models. Feature `onnx`.
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
//! * [`export`] records a function like [`Device::compile`](crate::Device::compile), and writes the recording. The ONNX
//!   form of each operation is in [`ops`](crate::ops). [`Export`] names inputs and outputs, and can leave the batch
//!   size open for the user of the file.
//! * [`load`] compiles a file for a device. A [`Model`] lists its inputs first, takes extents that the file leaves
//!   open, and can be recorded on a tape as a part of a function of your own.
//!
//! Floats become `float`, or `double` on a device with double precision; indices become `int64`. The
//! [guide](crate::guide::onnx) lists the operators that can be imported.

mod batch;
mod encode;
mod export;
mod file;
mod import;
mod item;
mod proto;
mod read;
mod wire;

pub use export::{Export, export};
pub use file::Onnx;
pub use import::{Model, Port, load};
pub use item::Item;

/// The operator set of written files, unless [`Export::opset`] sets another.
pub const OPSET: i64 = 21;

/// The first operator set that can be written: before it, group normalisation had another meaning.
const FIRST_OPSET: i64 = 21;

/// The last operator set that can be written or read.
const LAST_OPSET: i64 = 28;
