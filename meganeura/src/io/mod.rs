//! Checkpoints: the parameters and buffers of a model in a file; and files of tensors alone.
//!
//! The format is [safetensors](https://huggingface.co/docs/safetensors): a header with names, types and shapes, then
//! the numbers. A name is the path in the model, `blocks.0.conv.weight`. A tied tensor, shared by several places, is
//! stored once; the header's `__metadata__` has for each of its other paths the name under which it is, as the library
//! of that format writes it. Nothing here knows a layer: a checkpoint is a visit. Files that call things otherwise are
//! read, and written, by the rules of [`Names`]. Tensors that belong to no model are read and written by
//! [`load_tensors`] and [`save_tensors`].

#[cfg(not(target_family = "wasm"))]
pub(crate) mod disk;
mod format;
mod load;
mod names;
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
pub use report::LoadReport;
#[cfg(not(target_family = "wasm"))]
pub use tensors::{load_tensors, save_tensors, tensors_to_safetensors};
pub use tensors::{tensors_from_safetensors, tensors_to_safetensors_async};

use crate::error::{bail, here, here_async};
use crate::module::Module;
#[cfg(not(target_family = "wasm"))]
use crate::wait::block_on;
use crate::{Error, ErrorKind, Result};

/// Saving a model and loading it. Implemented for every [`Module`].
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
    /// Writes all parameters and buffers, constants apart, to a file, as 32-bit floats (64-bit ones from a device of
    /// that precision).
    ///
    /// The file appears under its name only when it is complete, so that a crash leaves the old one as it was.
    ///
    /// # Errors
    ///
    /// If the file cannot be written or the device was lost; [`Checkpoint`](ErrorKind::Checkpoint) if two parameters
    /// have the same path.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        here(|| {
            let path = path.as_ref();
            disk::replace_file(path, &self.to_safetensors()?).map_err(|error| io_error("written", path, error))
        })
    }

    /// The bytes that [`save`](Self::save) writes.
    ///
    /// # Errors
    ///
    /// As [`save`](Self::save).
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    fn to_safetensors(&self) -> Result<Vec<u8>> {
        block_on(self.to_safetensors_async())
    }

    /// As [`to_safetensors`](Self::to_safetensors), without blocking the thread.
    ///
    /// # Errors
    ///
    /// As [`save`](Self::save).
    #[track_caller]
    fn to_safetensors_async(&self) -> impl Future<Output = Result<Vec<u8>>> {
        here_async(save::to_safetensors(self, &Names::new()))
    }

    /// As [`save`](Self::save), under the names that these rules read as the model's paths: for whoever the file is
    /// for.
    ///
    /// # Errors
    ///
    /// As [`save`](Self::save); [`Argument`](ErrorKind::Argument) if a path has no name that the rules lead back to it,
    /// if two have the same, or if there are not all the equal parts of what is one in the file.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    fn save_with(&self, path: impl AsRef<Path>, names: &Names) -> Result<()> {
        here(|| {
            let path = path.as_ref();
            disk::replace_file(path, &self.to_safetensors_with(names)?)
                .map_err(|error| io_error("written", path, error))
        })
    }

    /// The bytes that [`save_with`](Self::save_with) writes.
    ///
    /// # Errors
    ///
    /// As [`save_with`](Self::save_with).
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    fn to_safetensors_with(&self, names: &Names) -> Result<Vec<u8>> {
        block_on(self.to_safetensors_with_async(names))
    }

    /// As [`to_safetensors_with`](Self::to_safetensors_with), without blocking the thread.
    ///
    /// # Errors
    ///
    /// As [`save_with`](Self::save_with).
    #[track_caller]
    fn to_safetensors_with_async(&self, names: &Names) -> impl Future<Output = Result<Vec<u8>>> {
        here_async(save::to_safetensors(self, names))
    }

    /// Replaces parameters and buffers by those of the same name in a file. Floats of 64, 32 and 16 bits are read,
    /// brain floats too, and rounded to the device's precision.
    ///
    /// What was tied when the file was saved is tied again: parameters that shared a tensor then share one afterwards.
    ///
    /// Names that only the model or only the file has are in the report, which [`strict`](LoadReport::strict) makes an
    /// error. The counters `num_batches_tracked` of PyTorch's batch normalisation are passed over.
    ///
    /// # Errors
    ///
    /// Nothing has changed when any of these is returned: [`Io`](ErrorKind::Io) if the file cannot be read;
    /// [`Checkpoint`](ErrorKind::Checkpoint) if it is truncated or malformed, if it has no name in common with the
    /// model, if shapes or element types differ, or if it has several values for what is tied in the model, with the
    /// first of them and what may have been meant; and what the device meets.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    fn load(&mut self, path: impl AsRef<Path>) -> Result<LoadReport> {
        self.load_with(path, &Names::new())
    }

    /// As [`load`](Self::load), from the bytes of a file.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    #[track_caller]
    fn load_safetensors(&mut self, bytes: &[u8]) -> Result<LoadReport> {
        self.load_safetensors_with(bytes, &Names::new())
    }

    /// As [`load`](Self::load), from a file with other names: of PyTorch's model, say.
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
    /// As [`load`](Self::load); also if a rule makes no sense, if the rules give two names in the file one path, or if
    /// a tensor does not fall into the parts that they want of it.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    fn load_with(&mut self, path: impl AsRef<Path>, names: &Names) -> Result<LoadReport> {
        here(|| {
            let path = path.as_ref();
            let bytes = as_safetensors(disk::read(path).map_err(|error| io_error("read", path, error))?);
            let bytes = bytes.map_err(|error| error.context(path.display()))?;
            self.load_safetensors_with(&bytes, names).map_err(|error| error.context(path.display()))
        })
    }

    /// As [`load_with`](Self::load_with), from the bytes of a file.
    ///
    /// # Errors
    ///
    /// As [`load_with`](Self::load_with).
    #[track_caller]
    fn load_safetensors_with(&mut self, bytes: &[u8], names: &Names) -> Result<LoadReport> {
        here(|| Loaded::read(self, bytes, names, false)?.put(self))
    }
}

impl<M: Module + ?Sized> Checkpoint for M {}

/// The bytes of a safetensors file with the tensors of a file that `torch.save` wrote (the feature `pt`).
///
/// Names are the keys of the dictionaries that the tensors lie in, joined by dots: `model.conv1.weight` where a program
/// saved `{"model": net.state_dict(), …}`. Whatever is no tensor is left out. Tensors that show the same memory are
/// tied. Such a file is a program for Python; here none of it is run. [`load`](Checkpoint::load) and [`load_tensors`]
/// call this for such files.
///
/// # Errors
///
/// [`Checkpoint`](ErrorKind::Checkpoint) if the file is truncated or no archive of PyTorch's 1.6 or later; if it would
/// call anything but what describes tensors, with the name of that, as a file does that holds whole modules, numbers of
/// NumPy or a `Namespace`; if values lie in one another in a circle, or more than 64 deep; if elements are complex; if
/// two tensors have the same name; if tensors are larger than 64 times the file, as only views that repeat their
/// numbers are.
#[cfg(feature = "pt")]
#[track_caller]
pub fn safetensors_from_pt(bytes: &[u8]) -> Result<Vec<u8>> {
    here(|| pt::to_safetensors(bytes))
}

/// What the archives of `torch.save` begin with, and what came before them.
const PT: &[u8] = b"PK\x03\x04";
const PT_BEFORE_1_6: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46";

/// The contents of a file as safetensors: as they are, or brought into that form.
fn as_safetensors(bytes: Vec<u8>) -> Result<Vec<u8>> {
    if bytes.starts_with(PT_BEFORE_1_6) {
        bail!(Checkpoint, "the format of PyTorch before 1.6; load the file there and save it again");
    }
    if !bytes.starts_with(PT) {
        return Ok(bytes);
    }
    #[cfg(feature = "pt")]
    {
        pt::to_safetensors(&bytes)
    }
    #[cfg(not(feature = "pt"))]
    bail!(Checkpoint, "a file of `torch.save`, which is read with the feature `pt` of this crate")
}

/// What [`Checkpoint::load_safetensors`] would load, where names that only one side has are an error, too.
pub(crate) fn read_exactly(module: &dyn Module, bytes: &[u8]) -> Result<Loaded> {
    Loaded::read(module, bytes, &Names::new(), true)
}

#[cfg(not(target_family = "wasm"))]
pub(crate) fn io_error(done: &str, path: &Path, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("{} could not be {done}: {error}", path.display())).caused_by(error)
}

#[cfg(test)]
mod tests;
