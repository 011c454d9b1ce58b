//! Files of `torch.save`: a zip archive with a pickle that describes tensors, and with entries that hold their numbers.
//!
//! They are converted to safetensors, which the rest of [`io`](super) reads. Names of the same view of the same
//! memory share one tensor.

mod opcode;
mod pickle;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{Cursor, Read};
use std::sync::Arc;

use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use zip::ZipArchive;

use super::format;
use crate::error::{bail, shortened};
use crate::host::{reserve, try_filled};
use crate::{Error, ErrorKind, Result};
use pickle::{Place, Storage, Tensor, Value, Values};

/// The maximum nesting of dictionaries, whose keys are joined to names.
const DEEPEST: usize = 64;

/// The maximum number of values: a few bytes can describe endlessly repeated lists.
const MOST: usize = 1 << 22;

/// The maximum size of all names together, that of a safetensors header.
const MOST_LETTERS: usize = 100_000_000;

/// The maximum size of the tensors as a multiple of the file's: views that repeat their numbers are larger than their
/// storage.
const GROWTH: usize = 64;

/// The size of tensors that is always allowed.
const SMALL: usize = 64 << 20;

type Archive<'a> = ZipArchive<Cursor<&'a [u8]>>;

/// Converts the tensors of a file to a safetensors file. Their names are the keys of the nested dictionaries and the
/// positions in lists and tuples, joined by dots.
pub(super) fn to_safetensors(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(|error| malformed(&error))?;
    let Some(pickle) = archive.file_names().flatten().find(|name| *name == "data.pkl" || name.ends_with("/data.pkl"))
    else {
        bail!(Checkpoint, "a zip archive without `data.pkl`: `torch.save` did not write it");
    };
    let folder = pickle.strip_suffix("data.pkl").expect("so it ends").to_owned();
    if archive.index_for_name(&format!("{folder}byteorder")).is_some()
        && entry(&mut archive, &format!("{folder}byteorder"))? != b"little"
    {
        bail!(Checkpoint, "numbers with their highest byte first; save the file again on another machine");
    }
    let pickle = entry(&mut archive, &format!("{folder}data.pkl"))?;
    let values = pickle::read(&pickle)?;
    let mut named = Named::default();
    named.find(&values, values.root, &mut Vec::new())?;
    if named.tensors.is_empty() {
        bail!(Checkpoint, "the file has no tensors");
    }
    named.write(&mut archive, &folder, bytes.len())
}

fn malformed(error: &impl ToString) -> Error {
    Error::new(ErrorKind::Checkpoint, format!("not a complete file of `torch.save`: {}", error.to_string()))
}

/// The contents of an entry. They take no more memory than there are bytes, because PyTorch does not compress.
fn entry(archive: &mut Archive<'_>, name: &str) -> Result<Vec<u8>> {
    let mut entry = archive.by_name(name).map_err(|error| malformed(&format!("`{name}`: {error}")))?;
    let mut bytes = Vec::new();
    reserve(&mut bytes, usize::try_from(entry.compressed_size()).unwrap_or(usize::MAX))?;
    entry.read_to_end(&mut bytes).map_err(|error| malformed(&format!("`{name}`: {error}")))?;
    Ok(bytes)
}

/// The tensors of a file, by name.
#[derive(Default)]
struct Named {
    tensors: BTreeMap<String, Arc<Tensor>>,
    /// The lists and dictionaries on the path of the current name.
    within: HashSet<Place>,
    /// The number of values visited.
    seen: usize,
    /// The size of all names in bytes.
    letters: usize,
}

impl Named {
    /// Collects the tensors in a value at `path`.
    fn find(&mut self, values: &Values, place: Place, path: &mut Vec<String>) -> Result<()> {
        let inner = match values.get(place) {
            Value::Dict(pairs) => pairs.len(),
            Value::List(items) | Value::Tuple(items) => items.len(),
            _ => 0,
        };
        self.seen = self.seen.saturating_add(1).saturating_add(inner);
        if self.seen > MOST {
            bail!(Checkpoint, "more than {MOST} values");
        }
        let children: Vec<(String, Place)> = match values.get(place) {
            Value::Tensor(tensor) => {
                let name = path.join(".");
                self.letters += name.len();
                if self.letters > MOST_LETTERS {
                    bail!(Checkpoint, "the names of the tensors take more than {MOST_LETTERS} bytes");
                }
                if self.tensors.insert(name.clone(), Arc::clone(tensor)).is_some() {
                    bail!(Checkpoint, "two tensors are called `{}`", shortened(&name));
                }
                return Ok(());
            }
            Value::Dict(pairs) => {
                let key = |place: Place| match values.get(place) {
                    Value::Text(text) => Some(text.to_string()),
                    Value::Int(number) => Some(number.to_string()),
                    Value::Bool(value) => Some(value.to_string()),
                    _ => None,
                };
                let holds =
                    |&&(_, value): &&(Place, Place)| !matches!(values.get(value), Value::Other | Value::Text(_));
                pairs.iter().filter(holds).filter_map(|&(name, value)| Some((key(name)?, value))).collect()
            }
            Value::List(items) | Value::Tuple(items) => {
                items.iter().enumerate().map(|(number, &item)| (number.to_string(), item)).collect()
            }
            _ => return Ok(()),
        };
        if path.len() == DEEPEST || !self.within.insert(place) {
            bail!(Checkpoint, "values are nested more than {DEEPEST} deep, or in a cycle");
        }
        for (name, child) in children {
            path.push(name);
            self.find(values, child, path)?;
            path.pop();
        }
        self.within.remove(&place);
        Ok(())
    }

    /// A safetensors file with these tensors. Of several names for one view, the first is stored.
    fn write(self, archive: &mut Archive<'_>, folder: &str, size: usize) -> Result<Vec<u8>> {
        let mut stored: Vec<(String, Arc<Tensor>, Dtype)> = Vec::new();
        let (mut aliases, mut known) = (BTreeMap::new(), HashMap::<Arc<Tensor>, String>::new());
        for (name, tensor) in self.tensors {
            let dtype = dtype(&tensor.storage).map_err(|error| error.context(&name))?;
            match known.get(&tensor) {
                Some(first) => drop(aliases.insert(name, first.clone())),
                None => {
                    known.insert(Arc::clone(&tensor), name.clone());
                    stored.push((name, tensor, dtype));
                }
            }
        }
        stored.sort_by_key(|(_, _, dtype)| std::cmp::Reverse(*dtype));
        let most = size.saturating_mul(GROWTH).max(SMALL);
        let (mut infos, mut end) = (Vec::new(), 0usize);
        for (name, tensor, dtype) in &stored {
            let elements = tensor.shape.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));
            let bytes = elements.and_then(|elements| elements.checked_mul(dtype.bitsize() / 8));
            let next = bytes.and_then(|bytes| end.checked_add(bytes)).filter(|&next| next <= most);
            let Some(next) = next else {
                bail!(
                    Checkpoint,
                    "with `{name}` {:?}, the tensors are more than {most} bytes, {GROWTH} times the file",
                    tensor.shape
                );
            };
            let shape = tensor.shape.clone();
            infos.push((
                name.clone(),
                TensorInfo { dtype: *dtype, shape, data_offsets: (std::mem::replace(&mut end, next), next) },
            ));
        }
        let header = format::header(infos, &aliases)?;
        let mut file = Vec::new();
        reserve(&mut file, size_of::<u64>().saturating_add(header.len()).saturating_add(end))?;
        file.extend((header.len() as u64).to_le_bytes());
        file.extend(header);
        let (mut storages, mut taken) = (HashMap::new(), 0);
        for (name, tensor, dtype) in &stored {
            let key = &tensor.storage.key;
            if !storages.contains_key(key) {
                let storage = entry(archive, &format!("{folder}data/{key}"))?;
                taken += storage.len();
                if taken > size {
                    bail!(Checkpoint, "entries of the archive overlap: together they are larger than it");
                }
                storages.insert(Arc::clone(key), storage);
            }
            gather(tensor, dtype.bitsize() / 8, &storages[key], &mut file).map_err(|error| error.context(name))?;
        }
        Ok(file)
    }
}

/// The type of a storage's elements.
fn dtype(storage: &Storage) -> Result<Dtype> {
    Ok(match &storage.class[..] {
        "DoubleStorage" => Dtype::F64,
        "FloatStorage" => Dtype::F32,
        "HalfStorage" => Dtype::F16,
        "BFloat16Storage" => Dtype::BF16,
        "LongStorage" => Dtype::I64,
        "IntStorage" => Dtype::I32,
        "ShortStorage" => Dtype::I16,
        "CharStorage" => Dtype::I8,
        "ByteStorage" => Dtype::U8,
        "BoolStorage" => Dtype::BOOL,
        other => bail!(Checkpoint, "elements of a `{}` are not read", shortened(other)),
    })
}

/// Adds a tensor's elements of `width` bytes, row by row.
fn gather(tensor: &Tensor, width: usize, storage: &[u8], file: &mut Vec<u8>) -> Result<()> {
    let Tensor { offset, shape, strides, .. } = tensor;
    if shape.contains(&0) {
        return Ok(());
    }
    let reach = shape
        .iter()
        .zip(strides)
        .try_fold(*offset, |last, (extent, stride)| last.checked_add((extent - 1).checked_mul(*stride)?));
    let fits = reach.and_then(|last| last.checked_add(1)?.checked_mul(width)).is_some_and(|end| end <= storage.len());
    if !fits {
        bail!(Checkpoint, "it reaches beyond its storage `{}` of {} bytes", tensor.storage.key, storage.len());
    }
    // From the last axis: consecutive elements are one run.
    let mut run = 1;
    let mut outer = shape.len();
    while outer > 0 && (strides[outer - 1] == run || shape[outer - 1] == 1) {
        outer -= 1;
        run *= shape[outer];
    }
    let mut index = try_filled(outer, 0usize)?;
    loop {
        let at = index.iter().zip(strides).map(|(index, stride)| index * stride).sum::<usize>() + offset;
        file.extend_from_slice(&storage[at * width..(at + run) * width]);
        let Some(axis) = (0..outer).rev().find(|&axis| index[axis] + 1 < shape[axis]) else { return Ok(()) };
        index[axis] += 1;
        index[axis + 1..].fill(0);
    }
}

#[cfg(test)]
mod tests;
