//! Files of tensors by name, without a model.

use std::collections::{BTreeMap, btree_map};
use std::ops::{Deref, Index};
#[cfg(not(target_family = "wasm"))]
use std::path::Path;
use std::path::PathBuf;

use super::format;
use super::report::LISTED;
#[cfg(not(target_family = "wasm"))]
use super::{disk, io_error};
use crate::error::{bail, here, here_async, shortened};
#[cfg(not(target_family = "wasm"))]
use crate::wait::block_on;
use crate::{Device, Error, ErrorKind, Result, Tensor};

/// The tensors of a file, by name: a map, and a report of those that are not in it.
///
/// A file may have tensors that [`Tensor`] cannot hold, such as one of complex numbers beside the weights of a model.
/// The others are read; [`refused`](Self::refused) has the reasons. [`tensor`](Self::tensor) and an index name them,
/// and [`complete`](Self::complete) makes them an error.
///
/// ```
/// use meganeura::io::tensors_from_safetensors;
/// use meganeura::prelude::*;
///
/// let header = br#"{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"empty":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}}"#;
/// let mut file = (header.len() as u64).to_le_bytes().to_vec();
/// file.extend([&header[..], &1.5_f32.to_le_bytes()].concat());
///
/// let tensors = tensors_from_safetensors(&file, &Device::cpu())?;
/// assert_eq!(tensors["x"].to_vec()?, [1.5]);
/// assert_eq!(tensors.refused()["empty"], "it has no elements: [0]");
/// assert!(tensors.tensor("empty").is_err());
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Tensors {
    tensors: BTreeMap<String, Tensor>,
    refused: BTreeMap<String, String>,
    /// The file, for messages.
    path: Option<PathBuf>,
}

impl Tensors {
    pub(super) fn new(tensors: BTreeMap<String, Tensor>, refused: BTreeMap<String, String>) -> Self {
        Self { tensors, refused, path: None }
    }

    /// The error for a tensor that the file does not have, with the names of some that it has.
    fn missing(&self, name: &str) -> Error {
        let file = self.path.as_ref().map_or_else(|| "the file".to_owned(), |path| path.display().to_string());
        let mut names: Vec<_> = self.tensors.keys().take(LISTED).map(|name| format!("`{}`", shortened(name))).collect();
        if self.tensors.len() > LISTED {
            names.push(format!("and {} more", self.tensors.len() - LISTED));
        }
        let has = if names.is_empty() { "no tensor at all".to_owned() } else { names.join(", ") };
        Error::new(ErrorKind::Checkpoint, format!("{file} has no tensor `{}`; it has {has}", shortened(name)))
    }

    /// The tensors of the file that could not be read, each with the reason.
    #[must_use]
    pub fn refused(&self) -> &BTreeMap<String, String> {
        &self.refused
    }

    /// The tensor of this name.
    ///
    /// # Errors
    ///
    /// Fails with [`Checkpoint`](crate::ErrorKind::Checkpoint) if the file has no such tensor, or one that could not be
    /// read; the message says why.
    #[track_caller]
    pub fn tensor(&self, name: &str) -> Result<&Tensor> {
        here(|| match (self.tensors.get(name), self.refused.get(name)) {
            (Some(tensor), _) => Ok(tensor),
            (None, Some(why)) => bail!(Checkpoint, "`{}`: {why}", shortened(name)),
            (None, None) => Err(self.missing(name)),
        })
    }

    /// The tensors, if every one of the file could be read.
    ///
    /// # Errors
    ///
    /// Fails with [`Checkpoint`](crate::ErrorKind::Checkpoint), which names the first that could not be read, and the
    /// reason.
    #[track_caller]
    pub fn complete(self) -> Result<BTreeMap<String, Tensor>> {
        here(|| match self.refused.first_key_value() {
            None => Ok(self.tensors),
            Some((name, why)) => bail!(Checkpoint, "`{}`: {why}", shortened(name)),
        })
    }
}

impl Deref for Tensors {
    type Target = BTreeMap<String, Tensor>;

    fn deref(&self) -> &Self::Target {
        &self.tensors
    }
}

impl Index<&str> for Tensors {
    type Output = Tensor;

    /// # Panics
    ///
    /// Panics where [`tensor`](Self::tensor) fails.
    fn index(&self, name: &str) -> &Tensor {
        self.tensor(name).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// The tensors that were read.
impl From<Tensors> for BTreeMap<String, Tensor> {
    fn from(tensors: Tensors) -> Self {
        tensors.tensors
    }
}

impl IntoIterator for Tensors {
    type Item = (String, Tensor);
    type IntoIter = btree_map::IntoIter<String, Tensor>;

    fn into_iter(self) -> Self::IntoIter {
        self.tensors.into_iter()
    }
}

impl<'a> IntoIterator for &'a Tensors {
    type Item = (&'a String, &'a Tensor);
    type IntoIter = btree_map::Iter<'a, String, Tensor>;

    fn into_iter(self) -> Self::IntoIter {
        self.tensors.iter()
    }
}

/// Reads every tensor of a safetensors file, by name: weights of a model that is yet to be written, data, or results of
/// another program.
///
/// Floats of 64, 32, 16 and 8 bits and bf16 are rounded to the device's precision. Integers with a sign become `i32` or
/// `i64`, those without one `u32`, the type of labels, or `i64` if they have 64 bits. Names that share memory in the
/// file are all there. A tensor is [refused](Tensors::refused) by name, and the others are read, if it has no elements
/// or more than [`MAX_RANK`](crate::MAX_RANK) axes, if its numbers have another type, or if an integer is above
/// `i64::MAX`.
///
/// ```
/// use meganeura::io::{load_tensors, save_tensors};
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// # let directory = tempfile::tempdir().unwrap();
/// let path = "pair.safetensors";
/// # let path = directory.path().join(path);
/// let (x, labels) = (Tensor::full(&device, [2, 3], 0.5)?, Tensor::indices(&device, [2], &[7, 9])?);
/// save_tensors(&path, [("x", &x), ("labels", &labels)])?;
///
/// let tensors = load_tensors(&path, &device)?;
/// assert_eq!(tensors["x"].shape(), [2, 3].into());
/// assert_eq!(tensors["labels"].to_u32_vec()?, [7, 9]);
/// # Ok::<(), meganeura::Error>(())
/// ```
///
/// # Errors
///
/// Fails with [`Io`](crate::ErrorKind::Io) if the file cannot be read; with
/// [`Checkpoint`](crate::ErrorKind::Checkpoint) if it is truncated or malformed; and if the device fails.
#[cfg(not(target_family = "wasm"))]
#[track_caller]
pub fn load_tensors(path: impl AsRef<Path>, device: &Device) -> Result<Tensors> {
    here(|| {
        let path = path.as_ref();
        let bytes = disk::read(path).map_err(|error| io_error("read", path, error))?;
        let bytes = super::as_safetensors(bytes).map_err(|error| error.context(path.display()))?;
        let tensors = read_all(&bytes, device).map_err(|error| error.context(path.display()))?;
        Ok(Tensors { path: Some(path.to_owned()), ..tensors })
    })
}

/// Like [`load_tensors`], from the bytes of a file.
///
/// # Errors
///
/// Fails like [`load_tensors`].
#[track_caller]
pub fn tensors_from_safetensors(bytes: &[u8], device: &Device) -> Result<Tensors> {
    here(|| read_all(bytes, device))
}

/// The tensors under all of their names. Names that share memory share a tensor, or the reason why it was refused.
fn read_all(bytes: &[u8], device: &Device) -> Result<Tensors> {
    let (Tensors { mut tensors, mut refused, path }, words) = format::read_all(bytes, device)?;
    for (alias, name) in words {
        if tensors.contains_key(&alias) || refused.contains_key(&alias) {
            continue;
        }
        if let Some(tensor) = tensors.get(&name).cloned() {
            tensors.insert(alias, tensor);
        } else if let Some(why) = refused.get(&name).cloned() {
            refused.insert(alias, why);
        }
    }
    Ok(Tensors { tensors, refused, path })
}

/// Writes tensors to a safetensors file, each under its name and with its own element type.
///
/// The file gets its name only when it is complete.
///
/// # Errors
///
/// Fails with [`Argument`](crate::ErrorKind::Argument) if two tensors have the same name. Fails if the file cannot be
/// written, or if the device was lost.
#[cfg(not(target_family = "wasm"))]
#[track_caller]
pub fn save_tensors<'a, N: Into<String>>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (N, &'a Tensor)>,
) -> Result<()> {
    here(|| {
        let (path, bytes) = (path.as_ref(), tensors_to_safetensors(tensors)?);
        disk::replace_file(path, &bytes).map_err(|error| io_error("written", path, error))
    })
}

/// The bytes of the file that [`save_tensors`] writes.
///
/// # Errors
///
/// Fails like [`save_tensors`].
#[cfg(not(target_family = "wasm"))]
#[track_caller]
pub fn tensors_to_safetensors<'a, N: Into<String>>(
    tensors: impl IntoIterator<Item = (N, &'a Tensor)>,
) -> Result<Vec<u8>> {
    block_on(tensors_to_safetensors_async(tensors))
}

/// Like [`tensors_to_safetensors`], without blocking the thread.
///
/// # Errors
///
/// Fails like [`save_tensors`].
#[track_caller]
pub fn tensors_to_safetensors_async<'a, N: Into<String>>(
    tensors: impl IntoIterator<Item = (N, &'a Tensor)>,
) -> impl Future<Output = Result<Vec<u8>>> {
    here_async(async {
        let mut all = BTreeMap::new();
        for (name, tensor) in tensors {
            let name = name.into();
            if all.contains_key(&name) {
                bail!(Argument, "two tensors are called `{name}`");
            }
            all.insert(name, vec![tensor.clone()]);
        }
        format::write(all, BTreeMap::new()).await
    })
}

#[cfg(test)]
mod tests {
    use safetensors::Dtype;
    use safetensors::tensor::TensorView;

    use super::*;
    use crate::Precision;

    #[test]
    fn every_bit_comes_back() {
        let device = Device::cpu_with(Precision::Double);
        let numbers = [1.0 / 3.0, -0.0, f64::NAN, f64::INFINITY];
        let tensors = [
            ("a.weight", Tensor::from_f64(&device, [2, 2], &numbers).unwrap()),
            ("", Tensor::indices(&device, [1, 2], &[0, u32::MAX]).unwrap()),
            ("scalar", Tensor::from_f64(&device, [], &[1e-310]).unwrap()),
        ];
        let bytes = tensors_to_safetensors(tensors.each_ref().map(|(name, tensor)| (*name, tensor))).unwrap();
        let again = tensors_from_safetensors(&bytes, &device).unwrap();
        assert_eq!(tensors_to_safetensors(&again).unwrap(), bytes);
        let bits = |tensor: &Tensor| tensor.to_f64_vec().unwrap().into_iter().map(f64::to_bits).collect::<Vec<_>>();
        for (name, tensor) in &tensors {
            assert_eq!(again[*name].shape(), tensor.shape());
            assert_eq!(again[*name].ty(), tensor.ty());
        }
        assert_eq!(bits(&again["a.weight"]), numbers.map(f64::to_bits));
        assert_eq!(bits(&again["scalar"]), [1e-310_f64.to_bits()]);
        assert_eq!(again[""].to_u32_vec().unwrap(), [0, u32::MAX]);
    }

    /// A file of one tensor.
    fn file(dtype: Dtype, shape: &[usize], data: &[u8]) -> Vec<u8> {
        safetensors::serialize([("x", TensorView::new(dtype, shape.to_vec(), data).unwrap())], None).unwrap()
    }

    #[test]
    fn integers_of_any_width_are_read() {
        let device = Device::cpu();
        for (dtype, data, expected) in [
            (Dtype::U8, &[0, 255][..], [0, 255]),
            (Dtype::BOOL, &[0, 1], [0, 1]),
            (Dtype::I8, &[0, 127], [0, 127]),
            (Dtype::U16, &[1, 0, 255, 255], [1, 65_535]),
            (Dtype::I16, &[1, 0, 255, 127], [1, 32_767]),
            (Dtype::I32, &[1, 0, 0, 0, 255, 255, 255, 127], [1, 0x7fff_ffff]),
            (Dtype::I64, &[1, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0], [1, u32::MAX]),
            (Dtype::U64, &[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0], [1, 2]),
        ] {
            let tensors = tensors_from_safetensors(&file(dtype, &[2], data), &device).unwrap();
            assert_eq!(tensors["x"].to_u32_vec().unwrap(), expected, "{dtype:?}");
        }
    }

    #[test]
    fn integers_with_a_sign_keep_their_type() {
        let (device, folder) = (Device::cpu(), tempfile::tempdir().unwrap());
        let read =
            |dtype, data: &[u8]| tensors_from_safetensors(&file(dtype, &[2], data), &device).unwrap()["x"].clone();
        for (dtype, data, expected) in [
            (Dtype::I8, &[1, 255][..], [1, -1]),
            (Dtype::I16, &[1, 0, 0, 128], [1, -32_768]),
            (Dtype::I32, &[1, 0, 0, 0, 255, 255, 255, 255], [1, -1]),
        ] {
            assert_eq!(read(dtype, data).to_i32_vec().unwrap(), expected, "{dtype:?}");
        }
        let numbers = [(1_i64 << 53) + 1, i64::MIN];
        let x = read(Dtype::I64, &numbers.map(i64::to_le_bytes).concat());
        let path = folder.path().join("x.safetensors");
        save_tensors(&path, [("y", &x)]).unwrap();
        let y = load_tensors(&path, &device).unwrap()["y"].clone();
        assert_eq!((y.ty().dtype, y.to_i64_vec().unwrap()), (crate::DType::I64, numbers.to_vec()));
        assert!(y.to_u32_vec().unwrap_err().to_string().contains("read as u32, but an element is 9007199254740993"));
    }

    #[test]
    fn unrepresentable_values_are_errors() {
        let device = Device::cpu();
        for (bytes, part) in [
            (file(Dtype::U64, &[1], &[255; 8]), "`x`: 18446744073709551615 is above 9223372036854775807"),
            (file(Dtype::C64, &[1], &[1; 8]), "`x`: C64 in the file"),
            (file(Dtype::F32, &[0, 3], &[]), "`x`: it has no elements"),
            (file(Dtype::U8, &[1; 9], &[1]), "`x`: it has 9 axes, 8 are the most"),
            (vec![1, 2, 3], "not a safetensors file, or not all of one"),
        ] {
            let read = tensors_from_safetensors(&bytes, &device);
            if let Ok(tensors) = &read {
                assert!(tensors.is_empty() && tensors.refused().len() == 1);
                assert_eq!(
                    tensors.tensor("x").unwrap_err().message(),
                    tensors.clone().complete().unwrap_err().message()
                );
            }
            let error = read.and_then(Tensors::complete).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Checkpoint, "{error}");
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
        let x = Tensor::full(&device, [1], 0.0).unwrap();
        let error = tensors_to_safetensors([("x", &x), ("x", &x)]).unwrap_err();
        assert_eq!((error.kind(), error.message()), (ErrorKind::Argument, "two tensors are called `x`"));
    }

    #[test]
    fn errors_name_the_path() {
        let (device, folder) = (Device::cpu(), tempfile::tempdir().unwrap());
        let path = folder.path().join("x.safetensors");
        let error = load_tensors(&path, &device).unwrap_err();
        assert!(error.kind() == ErrorKind::Io && error.to_string().contains("x.safetensors"), "{error}");
        std::fs::write(&path, "no tensors").unwrap();
        let error = load_tensors(&path, &device).unwrap_err();
        assert!(error.kind() == ErrorKind::Checkpoint && error.to_string().contains("x.safetensors"), "{error}");
        let x = Tensor::full(&device, [1], 0.0).unwrap();
        let error = save_tensors(folder.path().join("none/x.safetensors"), [("x", &x)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        save_tensors(&path, [("y", &x)]).unwrap();
        assert_eq!(load_tensors(&path, &device).unwrap().keys().collect::<Vec<_>>(), ["y"]);
    }
}
