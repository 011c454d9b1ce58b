//! Files of `torch.save`, `torch.jit.save` and `torch.package`: a zip archive with a pickle that describes tensors, and
//! with entries that hold their numbers; or, before PyTorch 1.6, pickles with the numbers behind them.
//!
//! They are converted to safetensors, which the rest of [`io`](super) reads. Names of the same view of the same
//! memory share one tensor.

mod call;
mod legacy;
mod named;
mod opcode;
mod pickle;
mod value;
mod view;
mod work;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Cursor, Read};
use std::rc::Rc;

use zip::ZipArchive;
use zip::read::{ArchiveOffset, Config};

use super::format::{self, Foreign};
use crate::error::{bail, shortened};
use crate::{Error, ErrorKind, Result};
use named::Named;
use value::Values;
use view::{Source, View};
use work::Work;

/// The maximum size of the tensors as a multiple of the file's: views that repeat their numbers are larger than their
/// storage.
const GROWTH: usize = 8;

/// The size of tensors that is always allowed.
const SMALL: usize = 4 << 20;

/// The folder of programs in an archive of `torch.package`.
const PROGRAMS: &str = ".data/ts_code/";

type Archive<'a> = ZipArchive<Cursor<&'a [u8]>>;

/// Converts the tensors of a file to a safetensors file. Their names are the keys of the nested dictionaries and the
/// positions in lists and tuples, joined by dots. Tensors that are not supported are left out; the words of the header
/// say why.
///
/// Time and memory are proportional to the size of the file.
pub(super) fn to_safetensors(bytes: &[u8]) -> Result<Vec<u8>> {
    convert(bytes, &mut Work::of(bytes.len()))
}

/// Like [`to_safetensors`]; also returns the number of steps that it took.
#[cfg(feature = "testing")]
pub(super) fn counted(bytes: &[u8]) -> (Result<Vec<u8>>, usize) {
    let mut work = Work::of(bytes.len());
    let result = convert(bytes, &mut work);
    (result, work.done())
}

fn convert(bytes: &[u8], work: &mut Work) -> Result<Vec<u8>> {
    if super::is_legacy(bytes) {
        let (values, storages) = legacy::read(bytes, work)?;
        return gathered(bytes.len(), &values, &mut Storages::Sequence(storages), work);
    }
    // The crate's guess at the place of the entries goes by the distance from the end, where PyTorch has a record that
    // the crate does not count.
    let config = Config { archive_offset: ArchiveOffset::Known(0) };
    let mut archive = ZipArchive::with_config(config, Cursor::new(bytes)).map_err(|error| malformed(&error))?;
    let pickles: Vec<_> = archive.file_names().flatten().filter(|name| is_pickle(name)).map(Cow::into_owned).collect();
    let Some(folder) = pickles.first().and_then(|name| name.strip_suffix("data.pkl")) else {
        let is_package = archive.file_names().flatten().any(|name| name.ends_with(".data/extern_modules"));
        match is_package {
            true => bail!(
                Checkpoint,
                "an archive of `torch.package` without a program in TorchScript; save the `state_dict()` of its module"
            ),
            false => bail!(Checkpoint, "a zip archive without `data.pkl`: `torch.save` did not write it"),
        }
    };
    let root = folder.find(PROGRAMS).map_or(folder, |at| &folder[..at]);
    let is_package = root.len() < folder.len();
    if is_package && pickles.len() > 1 {
        bail!(Checkpoint, "an archive of `torch.package` with {} programs; save each by itself", pickles.len());
    }
    let storages = format!("{root}{}", if is_package { ".data/" } else { "data/" });
    let mut entries = Entries { left: bytes.len(), bytes, storages: &storages };
    let order = format!("{root}byteorder");
    if archive.index_for_name(&order).is_some() && entries.read(&mut archive, &order)? != b"little" {
        bail!(Checkpoint, "numbers with their highest byte first; save the file again on another machine");
    }
    let values = pickle::read(entries.read(&mut archive, &format!("{folder}data.pkl"))?, work)?;
    gathered(bytes.len(), &values, &mut Storages::Archive(archive, entries), work)
}

/// The storages of a file.
enum Storages<'a, 'e> {
    Archive(Archive<'a>, Entries<'e>),
    Sequence(legacy::Sequence<'a>),
}

impl<'a: 'e, 'e> Storages<'a, 'e> {
    fn read(&mut self, key: &[u8]) -> Result<&'e [u8]> {
        let shown = String::from_utf8_lossy(key);
        match self {
            Self::Archive(archive, entries) => entries.read(archive, &format!("{}{shown}", entries.storages)),
            Self::Sequence(storages) => match storages.get(key) {
                Some(storage) => Ok(storage),
                None => Err(malformed(&format!("there is no storage `{}`", shortened(&shown)))),
            },
        }
    }
}

/// `true` for the name of an archive's entry that describes tensors.
fn is_pickle(name: &str) -> bool {
    name == "data.pkl" || name.ends_with("/data.pkl")
}

fn malformed(error: &impl ToString) -> Error {
    let error = error.to_string();
    Error::new(ErrorKind::Checkpoint, format!("not a complete file of `torch.save`: {}", shortened(&error)))
}

/// Access to the contents of entries. PyTorch does not compress, so they are parts of the file.
struct Entries<'a> {
    bytes: &'a [u8],
    /// The start of the names of entries with storages.
    storages: &'a str,
    /// The bytes of the file that may be read yet. Entries that overlap would be more than there are.
    left: usize,
}

impl<'a> Entries<'a> {
    /// The contents of an entry, whose checksum is right.
    fn read(&mut self, archive: &mut Archive<'_>, name: &str) -> Result<&'a [u8]> {
        let damaged = |error: &dyn ToString| malformed(&format!("`{}`: {}", shortened(name), error.to_string()));
        let mut entry = archive.by_name(name).map_err(|error| damaged(&error))?;
        let start = entry.data_start().and_then(|start| usize::try_from(start).ok());
        let (start, size) = (start.unwrap_or(usize::MAX), usize::try_from(entry.size()).unwrap_or(usize::MAX));
        let Some(contents) = start.checked_add(size).and_then(|end| self.bytes.get(start..end)) else {
            return Err(damaged(&"it ends behind the file"));
        };
        let Some(left) = self.left.checked_sub(size) else {
            bail!(Checkpoint, "entries of the archive overlap: together they are larger than it");
        };
        self.left = left;
        // The checksum is compared at the end.
        let read = io::copy(&mut (&mut entry).take(u64::MAX), &mut io::sink()).map_err(|error| damaged(&error))?;
        if read != contents.len() as u64 {
            return Err(damaged(&"it is compressed"));
        }
        Ok(contents)
    }
}

/// A safetensors file with the tensors of these values, from a file of this size. Of several names for one view, the
/// first is stored.
fn gathered<'a: 'e, 'e>(
    length: usize,
    values: &Values<'_>,
    storages: &mut Storages<'a, 'e>,
    work: &mut Work,
) -> Result<Vec<u8>> {
    let Named { tensors, .. } = Named::of(values, work)?;
    if tensors.is_empty() {
        bail!(Checkpoint, "the file has no tensors");
    }
    let mut stored: Vec<Foreign<Rc<View>>> = Vec::new();
    let (mut words, mut known) = (BTreeMap::new(), HashMap::<Rc<View>, String>::new());
    let most = length.saturating_mul(GROWTH).max(SMALL);
    let mut size = 0;
    for (name, view) in tensors {
        let view = view.and_then(|view| {
            if known.contains_key(&view) {
                return Ok(view);
            }
            match view.bytes().and_then(|bytes| bytes.checked_add(size)).filter(|&sum| sum <= most) {
                Some(sum) => size = sum,
                None => {
                    return Err(format!(
                        "its elements {:?} repeat a part of the file: with them, the tensors are more than {most} bytes, \
                         {GROWTH} times the file; save a `clone()` of it",
                        view.shape
                    ));
                }
            }
            Ok(view)
        });
        match view {
            Err(why) => drop(words.insert(name, format!("{}{why}", format::NOT_CONVERTED))),
            Ok(view) => match known.get(&view) {
                Some(first) => drop(words.insert(name, first.clone())),
                None => {
                    known.insert(Rc::clone(&view), name.clone());
                    stored.push(Foreign {
                        name,
                        dtype: view.dtype,
                        shape: view.shape.clone(),
                        size: view.bytes().expect("added up before"),
                        source: view,
                    });
                }
            },
        }
    }
    if let (true, Some((name, why))) = (stored.is_empty(), words.first_key_value()) {
        let why = why.strip_prefix(format::NOT_CONVERTED).unwrap_or(why);
        bail!(Checkpoint, "{}: {why}; the file has no other tensors", shortened(name));
    }
    drop(known);
    let mut known: HashMap<Source, Cow<'_, [u8]>> = HashMap::new();
    format::converted(stored, &words, |Foreign { source: view, .. }, file| {
        if !known.contains_key(&view.source) {
            let bytes = match &view.source {
                Source::Storage(key) => Cow::Borrowed(storages.read(key)?),
                Source::Pickle(bytes) => bytes.decode(values)?,
            };
            known.insert(view.source.clone(), bytes);
        }
        view.gather(&known[&view.source], file)
    })
}

#[cfg(test)]
mod tests;
