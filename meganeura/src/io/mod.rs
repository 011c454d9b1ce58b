//! Checkpoints: files with the parameters and buffers of a model, and files of tensors alone.
//!
//! The format is [safetensors](https://huggingface.co/docs/safetensors): a header with names, types and shapes,
//! followed by the numbers. A name is the path in the model, `blocks.0.conv.weight`. A tied tensor, shared by several
//! places, is stored once. For each of its other paths, the header's `__metadata__` has the name under which the tensor
//! is stored, as the format's own library does. Nothing here knows any layer: saving and loading visit a module's
//! parameters and buffers. Files with other names are read and written by the rules of [`Names`]. [`load_tensors`] and
//! [`save_tensors`] read and write tensors that belong to no model; with the feature `images`, `save_image` and
//! `save_images` write pictures.

#[cfg(not(target_family = "wasm"))]
pub(crate) mod disk;
mod format;
mod gguf;
mod load;
mod names;
pub(crate) mod narrow;
#[cfg(feature = "npz")]
mod npz;
pub(crate) mod peft;
#[cfg(all(feature = "images", not(target_family = "wasm")))]
mod picture;
mod prefix;
#[cfg(feature = "pt")]
mod pt;
mod report;
mod save;
mod state;
mod tensors;

#[cfg(not(target_family = "wasm"))]
use std::path::Path;

pub(crate) use load::Loaded;
pub use names::Names;
#[cfg(not(target_family = "wasm"))]
pub(crate) use names::Part;
#[cfg(all(feature = "images", feature = "tensorboard", not(target_family = "wasm")))]
pub(crate) use picture::png;
#[cfg(all(feature = "images", not(target_family = "wasm")))]
pub use picture::{save_image, save_images};
pub use report::LoadReport;
pub use tensors::{Tensors, tensors_from_safetensors, tensors_to_safetensors_async};
#[cfg(not(target_family = "wasm"))]
pub use tensors::{load_tensors, save_tensors, tensors_to_safetensors};

use crate::error::{bail, here, here_async};
use crate::module::Module;
#[cfg(not(target_family = "wasm"))]
use crate::wait::block_on;
use crate::{Error, ErrorKind, Result};

/// Saves and loads models. Implemented for every [`Module`].
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// # let directory = tempfile::tempdir().unwrap();
/// let path = "linear.safetensors";
/// # let path = directory.path().join(path);
/// let net = Linear::new(3, 2).init(&device, Seed::new(1))?;
/// net.save(&path)?;
///
/// let mut other = Linear::new(3, 2).init(&device, Seed::new(2))?;
/// other.load(&path)?.strict()?;
/// assert_eq!(other.weight.value().to_vec()?, net.weight.value().to_vec()?);
/// # Ok::<(), meganeura::Error>(())
/// ```
pub trait Checkpoint: Module {
    /// Writes all parameters and buffers, except constants, to a file: floats in 32 bits (64 from a device in double
    /// precision), integers in their type.
    ///
    /// The file gets its name only when it is complete, so a crash leaves the old one unchanged.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be written or the device was lost, and with [`Checkpoint`](ErrorKind::Checkpoint) if
    /// two parameters have the same path.
    #[doc(alias("state_dict", "save_model", "save_file"))]
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        here(|| {
            let path = path.as_ref();
            disk::replace_file(path, &self.to_safetensors()?).map_err(|error| io_error("written", path, error))
        })
    }

    /// The bytes of the file that [`save`](Self::save) writes.
    ///
    /// # Errors
    ///
    /// Fails like [`save`](Self::save).
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    fn to_safetensors(&self) -> Result<Vec<u8>> {
        block_on(self.to_safetensors_async())
    }

    /// Like [`to_safetensors`](Self::to_safetensors), without blocking the thread.
    ///
    /// # Errors
    ///
    /// Fails like [`save`](Self::save).
    #[track_caller]
    fn to_safetensors_async(&self) -> impl Future<Output = Result<Vec<u8>>> {
        here_async(save::to_safetensors(self, &Names::new()))
    }

    /// Like [`save`](Self::save), but with the file's names for the model's paths, for programs that expect those
    /// names.
    ///
    /// # Errors
    ///
    /// Fails like [`save`](Self::save), and with [`Argument`](ErrorKind::Argument) if no name maps to a path, if two
    /// paths get the same name, or if the model lacks a part of a tensor that a [split](Names::split) rule joins.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    fn save_with(&self, path: impl AsRef<Path>, names: &Names) -> Result<()> {
        here(|| {
            let path = path.as_ref();
            disk::replace_file(path, &self.to_safetensors_with(names)?)
                .map_err(|error| io_error("written", path, error))
        })
    }

    /// The bytes of the file that [`save_with`](Self::save_with) writes.
    ///
    /// # Errors
    ///
    /// Fails like [`save_with`](Self::save_with).
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    fn to_safetensors_with(&self, names: &Names) -> Result<Vec<u8>> {
        block_on(self.to_safetensors_with_async(names))
    }

    /// Like [`to_safetensors_with`](Self::to_safetensors_with), without blocking the thread.
    ///
    /// # Errors
    ///
    /// Fails like [`save_with`](Self::save_with).
    #[track_caller]
    fn to_safetensors_with_async(&self, names: &Names) -> impl Future<Output = Result<Vec<u8>>> {
        here_async(save::to_safetensors(self, names))
    }

    /// Replaces parameters and buffers by those with the same names in a file. Floats of 64, 32, 16 and 8 bits and bf16
    /// are read, and rounded to the device's precision. Files in GGUF are read as by [`safetensors_from_gguf`]. Those
    /// of `torch.save` need the feature `pt`, those of `numpy.save` and `savez` the feature `npz`.
    ///
    /// Every tensor of a file with low-rank adapters must find its place, or be [ignored](Names::ignore) on purpose.
    /// The scales of PEFT's adapters are those of `adapter_config.json` in the same folder, if there is one; settings
    /// in it that change the result in other ways, such as `use_dora`, are an error.
    ///
    /// Values change, and ties do not: parameters that share memory in the file stay tensors of their own where this
    /// model has them apart. They get equal values, and [`LoadReport::shared`] names them.
    ///
    /// The report has the names that only the model or only the file has; [`strict`](LoadReport::strict) makes them an
    /// error. The counters `num_batches_tracked` of PyTorch's batch normalisation are skipped.
    ///
    /// # Errors
    ///
    /// Fails with [`Io`](ErrorKind::Io) if the file cannot be read. Fails with [`Checkpoint`](ErrorKind::Checkpoint) if
    /// the file is truncated or malformed, if it has no name in common with the model, if shapes or element types
    /// differ, or if it has several values for a tensor that is tied in the model; the message lists the first of these
    /// and suggests what was meant. Fails if the device does. Nothing has changed in any of these cases.
    #[doc(alias("load_state_dict", "load_model", "load_record"))]
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    fn load(&mut self, path: impl AsRef<Path>) -> Result<LoadReport> {
        self.load_with(path, &Names::new())
    }

    /// Like [`load`](Self::load), from the bytes of a file.
    ///
    /// # Errors
    ///
    /// Fails like [`load`](Self::load).
    #[track_caller]
    fn load_safetensors(&mut self, bytes: &[u8]) -> Result<LoadReport> {
        self.load_safetensors_with(bytes, &Names::new())
    }

    /// Like [`load`](Self::load), from a file with other names: those of a PyTorch model, for example.
    ///
    /// ```
    /// use meganeura::io::Names;
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("theirs.safetensors");
    /// let theirs = Linear::new(3, 2).init(&device, Seed::new(1))?;
    /// let names = Names::new().rename("model.fc.*", "*");
    /// theirs.save_with(&path, &names)?; // `model.fc.weight` and `model.fc.bias`
    ///
    /// let mut net = Linear::new(3, 2).init(&device, Seed::new(2))?;
    /// net.load_with(&path, &names)?.strict()?;
    /// assert_eq!(net.weight.value().to_vec()?, theirs.weight.value().to_vec()?);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails like [`load`](Self::load), and if a rule is invalid, if the rules give two names in the file the same
    /// path, or if a tensor cannot be split into the parts that they require.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    fn load_with(&mut self, path: impl AsRef<Path>, names: &Names) -> Result<LoadReport> {
        here(|| {
            let path = path.as_ref();
            let bytes = as_safetensors(disk::read(path).map_err(|error| io_error("read", path, error))?);
            let bytes = bytes.map_err(|error| error.context(path.display()))?;
            let loaded = Loaded::read_adapted(self, &bytes, names, false, || peft::Settings::beside(path));
            loaded.and_then(|loaded| loaded.put(self)).map_err(|error| error.context(path.display()))
        })
    }

    /// Like [`load_with`](Self::load_with), from the bytes of a file.
    ///
    /// # Errors
    ///
    /// Fails like [`load_with`](Self::load_with).
    #[track_caller]
    fn load_safetensors_with(&mut self, bytes: &[u8], names: &Names) -> Result<LoadReport> {
        here(|| Loaded::read(self, bytes, names, false)?.put(self))
    }
}

impl<M: Module + ?Sized> Checkpoint for M {}

/// Converts a file that `torch.save` or `torch.jit.save` wrote to the bytes of a safetensors file (the feature `pt`).
///
/// Names are the keys of the nested dictionaries, joined by dots: `model.conv1.weight` for a program that saved
/// `{"model": net.state_dict(), …}`. A module that was pickled as a whole, and a program in TorchScript, also one in an
/// archive of `torch.package`, have the names of their `state_dict()`; other objects those of their attributes. A key
/// that is not a text is shown as it is written: `ema.0.999.weight`. Anything that is not a tensor or an array of NumPy
/// is left out. Tensors that are the same view of the same memory are stored once, under the first of their names; the
/// header has the others. Such a file is a program for Python; none of it is run here. [`load`](Checkpoint::load) and
/// [`load_tensors`] call this for such files.
///
/// Archives, and files before PyTorch 1.6, are read. A tensor of a kind that is not supported is left out, and the
/// others are converted: complex numbers, quantised, sparse and nested tensors, several of the same name, and views
/// that repeat their numbers to more than 8 times the size of the file and 4 MiB. The `__metadata__` of the result says
/// why, under the tensor's name: [`Tensors::refused`] has it, and loading a model that needs such a tensor is an error
/// that names it.
///
/// Time and memory are proportional to the size of the file, whatever is in it.
///
/// # Errors
///
/// Fails with [`Checkpoint`](ErrorKind::Checkpoint) if the file is truncated or another one; if lists contain each
/// other in a cycle, or values are nested more than 64 deep; if references describe much more than the file holds; or
/// if no tensor is supported.
#[cfg(feature = "pt")]
#[track_caller]
pub fn safetensors_from_pt(bytes: &[u8]) -> Result<Vec<u8>> {
    here(|| pt::to_safetensors(bytes))
}

/// Converts a file that `numpy.save`, `numpy.savez` or `numpy.savez_compressed` wrote to the bytes of a safetensors
/// file (the feature `npz`).
///
/// [`load`](Checkpoint::load) and [`load_tensors`] call this for such files. The one array of `numpy.save` is called
/// `arr_0`, as `savez` calls an array without a name. Arrays of floats, integers and truth values are converted, those
/// in Fortran's order too. An array of another type, or with the highest byte of its
/// numbers first, is left out, as by [`safetensors_from_pt`].
///
/// # Errors
///
/// Fails with [`Checkpoint`](ErrorKind::Checkpoint) if the file is truncated or damaged, if an array has fewer or more
/// numbers than its header says, if two arrays have the same name, or if there is none.
#[cfg(feature = "npz")]
#[track_caller]
pub fn safetensors_from_npz(bytes: &[u8]) -> Result<Vec<u8>> {
    here(|| npz::to_safetensors(bytes))
}

/// Converts a file in GGUF, llama.cpp's format, to the bytes of a safetensors file.
///
/// [`load`](Checkpoint::load) and [`load_tensors`] call this for such files. Names are those of the format,
/// `blk.0.attn_q.weight`, and shapes those of PyTorch: GGUF has the axes in reverse. Numbers that are not quantised
/// keep their type. Those in `Q4_0`, `Q4_1`, `Q5_0`, `Q5_1`, `Q8_0` and `Q2_K` to `Q6_K` become `f32`, up to 12 times
/// as many bytes as in the file. A tensor of another type is left out, and the `__metadata__` of the result says so
/// under its name: [`Tensors::refused`] has it, and loading a model that needs such a tensor is an error that names it.
///
/// The settings of the header are not converted. A model in several files has some of its tensors in each.
///
/// # Errors
///
/// Fails with [`Checkpoint`](ErrorKind::Checkpoint) if the file is truncated or another one, of version 1, or with the
/// highest byte of its numbers first; if two tensors overlap or have the same name; or if no tensor is supported.
#[track_caller]
pub fn safetensors_from_gguf(bytes: &[u8]) -> Result<Vec<u8>> {
    here(|| gguf::to_safetensors(bytes))
}

/// The result of [`safetensors_from_pt`], and the number of steps that it took.
#[cfg(all(feature = "pt", feature = "testing"))]
#[doc(hidden)]
pub fn steps_of_pt(bytes: &[u8]) -> (Result<Vec<u8>>, usize) {
    pt::counted(bytes)
}

/// The start of archives, those of `torch.save` among them.
const ZIP: &[u8] = b"PK\x03\x04";

/// `true` if a file starts with the magic number of `torch.save` before PyTorch 1.6, as a pickle of any protocol.
fn is_legacy(bytes: &[u8]) -> bool {
    let [0x80, _, rest @ ..] = bytes else { return false };
    // Protocol 4 has the length of the pickle first.
    let rest = match rest {
        [0x95, rest @ ..] => rest.get(8..).unwrap_or_default(),
        _ => rest,
    };
    rest.starts_with(b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19")
}

/// `true` for a pickle, unless its start is the length of a header that safetensors allows.
fn is_pickle(bytes: &[u8]) -> bool {
    let length = bytes.first_chunk().map_or(0, |&start| u64::from_le_bytes(start));
    matches!(bytes, [0x80, 2..=5, .., b'.']) && length > format::MOST_HEADER as u64
}

/// The contents of a file as safetensors, converted if necessary.
fn as_safetensors(bytes: Vec<u8>) -> Result<Vec<u8>> {
    // As the length of a header, this would be above the most that safetensors allows.
    if bytes.starts_with(gguf::MAGIC) {
        return gguf::to_safetensors(&bytes);
    }
    #[cfg(feature = "npz")]
    if bytes.starts_with(npz::MAGIC) {
        return npz::to_safetensors(&bytes);
    }
    #[cfg(not(feature = "npz"))]
    if bytes.starts_with(b"\x93NUMPY") {
        bail!(Checkpoint, "a file of `numpy.save`, which is read with the feature `npz` of this crate");
    }
    if !bytes.starts_with(ZIP) && !is_legacy(&bytes) {
        if is_pickle(&bytes) {
            bail!(Checkpoint, "a pickle, which `torch.save` did not write; save its tensors with `torch.save`");
        }
        return Ok(bytes);
    }
    #[cfg(feature = "npz")]
    if npz::is_npz(&bytes) {
        return npz::to_safetensors(&bytes);
    }
    #[cfg(feature = "pt")]
    {
        pt::to_safetensors(&bytes)
    }
    #[cfg(not(feature = "pt"))]
    bail!(
        Checkpoint,
        "a file of `torch.save` or `numpy.savez`, which is read with the feature `pt` or `npz` of this crate"
    )
}

/// The result of [`Checkpoint::load_safetensors`], except that names on only one side are an error.
pub(crate) fn read_exactly(module: &dyn Module, bytes: &[u8]) -> Result<Loaded> {
    Loaded::read(module, bytes, &Names::new(), true)
}

#[cfg(not(target_family = "wasm"))]
pub(crate) fn io_error(done: &str, path: &Path, error: std::io::Error) -> Error {
    let kind: ErrorKind = crate::file::kind(&error);
    Error::new(kind, format!("{} could not be {done}: {error}", path.display())).caused_by(error)
}

#[cfg(test)]
mod tests;
