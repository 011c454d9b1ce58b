//! From the bytes of a file to its messages and numbers. All are checked here, so later code may trust counts and
//! extents.

#[cfg(not(target_family = "wasm"))]
use std::collections::{BTreeMap, HashMap};
#[cfg(not(target_family = "wasm"))]
use std::io::{Read, Seek, SeekFrom};
#[cfg(not(target_family = "wasm"))]
use std::path::{Component, Path, PathBuf};

use prost::Message;
use prost::bytes::Bytes;

use super::proto::{self, element, element_name};
use super::wire;
use crate::error::{bail, shortened};
use crate::host::{reserve, try_collect};
use crate::io::narrow::{Narrow, from_bf16, from_f16};
use crate::{Error, ErrorKind, Result};

/// The most axes of a tensor in a file.
const MOST_AXES: usize = 64;

/// The folder for numbers in separate files, and what was read of them.
pub(super) struct Beside<'a> {
    /// `None` if there are only bytes.
    #[cfg(not(target_family = "wasm"))]
    folder: Option<&'a Path>,
    /// The parts of files that tensors own.
    #[cfg(not(target_family = "wasm"))]
    taken: HashMap<PathBuf, BTreeMap<u64, u64>>,
    #[cfg(target_family = "wasm")]
    without: std::marker::PhantomData<&'a ()>,
}

impl Beside<'_> {
    /// There are only bytes.
    pub(super) fn nowhere() -> Self {
        #[cfg(not(target_family = "wasm"))]
        return Self { folder: None, taken: HashMap::new() };
        #[cfg(target_family = "wasm")]
        return Self { without: std::marker::PhantomData };
    }
}

#[cfg(not(target_family = "wasm"))]
impl<'a> Beside<'a> {
    /// Files in this folder.
    pub(super) fn folder(folder: &'a Path) -> Self {
        Self { folder: Some(folder), taken: HashMap::new() }
    }

    /// Takes a part of a file. No tensor may read what another has, so that all of them take no more memory than the
    /// files; equal tensors are read once by the caller.
    fn take(&mut self, path: &Path, first: u64, end: u64) -> Result<()> {
        if first == end {
            return Ok(());
        }
        let parts = self.taken.entry(path.to_owned()).or_default();
        if let Some((other, _)) = parts.range(..end).next_back().filter(|&(_, &other_end)| other_end > first) {
            bail!(
                Checkpoint,
                "its bytes {first}..{end} of {} overlap those of another tensor, from {other} on",
                path.display()
            );
        }
        parts.insert(first, end);
        Ok(())
    }
}

/// The numbers of a tensor.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Numbers {
    F32(Vec<f32>),
    F64(Vec<f64>),
    /// Integers, or conditions as 0 and 1. Those of `uint64` are their 64 bits.
    Ints(Vec<i64>),
    Texts(Vec<String>),
}

impl Numbers {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::F32(numbers) => numbers.len(),
            Self::F64(numbers) => numbers.len(),
            Self::Ints(numbers) => numbers.len(),
            Self::Texts(texts) => texts.len(),
        }
    }
}

/// The messages of a file.
pub(super) fn model(bytes: Bytes) -> Result<proto::Model> {
    wire::check(&bytes)?;
    let model = proto::Model::decode(bytes).map_err(|error| {
        Error::new(ErrorKind::Checkpoint, format!("not a complete ONNX file: {error}")).caused_by(error)
    })?;
    if model.graph.is_none() {
        bail!(Checkpoint, "not a complete ONNX file: it has no graph");
    }
    Ok(model)
}

/// The extents of a tensor.
pub(super) fn dims(tensor: &proto::Tensor) -> Result<Vec<usize>> {
    if tensor.dims.len() > MOST_AXES {
        bail!(Checkpoint, "{} axes, more than {MOST_AXES}", tensor.dims.len());
    }
    let extent = |&extent: &i64| usize::try_from(extent);
    tensor
        .dims
        .iter()
        .map(extent)
        .collect::<Result<_, _>>()
        .map_err(|_| Error::new(ErrorKind::Checkpoint, format!("one of the extents {:?} is invalid", tensor.dims)))
}

/// The number of elements of these extents. `None` if it cannot be counted; if there are none, also if the other
/// extents are as large, so that products of them fit.
pub(super) fn elements(dims: &[usize]) -> Option<usize> {
    let others = dims.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent.max(1)))?;
    Some(if dims.contains(&0) { 0 } else { others })
}

/// The numbers of a tensor; their count matches its extents.
pub(super) fn numbers(tensor: &proto::Tensor, beside: &mut Beside<'_>) -> Result<Numbers> {
    let dims = dims(tensor)?;
    let Some(elements) = elements(&dims) else { bail!(Checkpoint, "the extents {dims:?} are too large") };
    let beside = if tensor.data_location == proto::EXTERNAL { Some(external(tensor, beside)?) } else { None };
    let raw = beside.as_ref().unwrap_or(&tensor.raw_data);
    let numbers = if raw.is_empty() { typed(tensor, elements)? } else { untyped(tensor.data_type, raw, elements)? };
    if numbers.len() != elements {
        bail!(Checkpoint, "{} numbers for extents {dims:?}, which need {elements}", numbers.len());
    }
    Ok(numbers)
}

/// Numbers from the field of their type.
fn typed(tensor: &proto::Tensor, elements: usize) -> Result<Numbers> {
    let small = || try_collect(tensor.int32_data.iter().copied().map(i64::from));
    let bytes = |number: &i32| {
        let [low, high, ..] = number.to_le_bytes();
        [low, high]
    };
    Ok(match tensor.data_type {
        element::FLOAT => Numbers::F32(try_collect(tensor.float_data.iter().copied())?),
        element::DOUBLE => Numbers::F64(try_collect(tensor.double_data.iter().copied())?),
        element::INT64 => Numbers::Ints(try_collect(tensor.int64_data.iter().copied())?),
        element::INT32 | element::INT16 | element::INT8 | element::UINT16 | element::UINT8 => Numbers::Ints(small()?),
        element::UINT32 | element::UINT64 => {
            Numbers::Ints(try_collect(tensor.uint64_data.iter().map(|number| number.cast_signed()))?)
        }
        element::BOOL => Numbers::Ints(small()?.into_iter().map(|number| i64::from(number != 0)).collect()),
        element::STRING => Numbers::Texts(texts(&tensor.string_data)?),
        element::FLOAT16 => Numbers::F32(try_collect(tensor.int32_data.iter().map(bytes).map(from_f16))?),
        element::BFLOAT16 => Numbers::F32(try_collect(tensor.int32_data.iter().map(bytes).map(from_bf16))?),
        other => match Packed::of(other) {
            Some(packed) => packed.numbers(tensor.int32_data.iter().map(|number| bytes(number)[0]), elements)?,
            None => return Err(unread(other)),
        },
    })
}

/// Texts, which must be Unicode.
pub(super) fn texts(all: &[Bytes]) -> Result<Vec<String>> {
    let text = |(k, bytes): (usize, &Bytes)| match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => bail!(Checkpoint, "text {k} is not in UTF-8"),
    };
    all.iter().enumerate().map(text).collect()
}

/// Elements of at most 8 bits, of which a byte may hold several, the first in its lowest bits.
#[derive(Clone, Copy)]
enum Packed {
    Float(Narrow),
    /// The number of bits, and `true` if there is a sign.
    Int(u32, bool),
}

impl Packed {
    /// The type with this number, if it is one of these, but for whole bytes of integers.
    fn of(data_type: i32) -> Option<Self> {
        Some(match data_type {
            element::FLOAT8E4M3FN => Self::Float(Narrow::E4M3Fn),
            element::FLOAT8E4M3FNUZ => Self::Float(Narrow::E4M3Fnuz),
            element::FLOAT8E5M2 => Self::Float(Narrow::E5M2),
            element::FLOAT8E5M2FNUZ => Self::Float(Narrow::E5M2Fnuz),
            element::FLOAT8E8M0 => Self::Float(Narrow::E8M0),
            element::FLOAT4E2M1 => Self::Float(Narrow::E2M1),
            element::INT4 => Self::Int(4, true),
            element::UINT4 => Self::Int(4, false),
            element::INT2 => Self::Int(2, true),
            element::UINT2 => Self::Int(2, false),
            _ => return None,
        })
    }

    /// The numbers in these bytes; `elements` of them, if the bytes have so many and less than a byte is left.
    fn numbers(self, bytes: impl ExactSizeIterator<Item = u8>, elements: usize) -> Result<Numbers> {
        let bits = match self {
            Self::Float(Narrow::E2M1) => 4,
            Self::Float(_) => 8,
            Self::Int(bits, _) => bits,
        };
        let each = 8 / bits as usize;
        let held = bytes.len().saturating_mul(each);
        let count = if held >= elements && held - elements < each { elements } else { held };
        let mut codes = Vec::new();
        reserve(&mut codes, held)?;
        for byte in bytes {
            codes.extend((0..8).step_by(bits as usize).map(|first| (byte >> first) & (0xff >> (8 - bits))));
        }
        codes.truncate(count);
        Ok(match self {
            Self::Float(format) => Numbers::F32(try_collect(codes.into_iter().map(|code| format.decode(code)))?),
            Self::Int(bits, is_signed) => {
                let beyond = if is_signed { 1 << (bits - 1) } else { i64::MAX };
                let number = |code| match i64::from(code) {
                    code if code >= beyond => code - (1 << bits),
                    code => code,
                };
                Numbers::Ints(try_collect(codes.into_iter().map(number))?)
            }
        })
    }
}

/// Numbers from raw bytes.
fn untyped(data_type: i32, raw: &[u8], elements: usize) -> Result<Numbers> {
    macro_rules! each {
        ($ty:ty, $kind:ident, $to:expr) => {{
            const WIDTH: usize = size_of::<$ty>();
            let (chunks, rest) = raw.as_chunks::<WIDTH>();
            if !rest.is_empty() {
                bail!(Checkpoint, "{} bytes of numbers with {WIDTH} bytes each", raw.len());
            }
            Numbers::$kind(try_collect(chunks.iter().map(|&chunk| $to(<$ty>::from_le_bytes(chunk))))?)
        }};
    }
    Ok(match data_type {
        element::FLOAT => each!(f32, F32, |number| number),
        element::DOUBLE => each!(f64, F64, |number| number),
        element::INT64 => each!(i64, Ints, |number| number),
        element::INT32 => each!(i32, Ints, i64::from),
        element::INT16 => each!(i16, Ints, i64::from),
        element::INT8 => each!(i8, Ints, i64::from),
        element::UINT64 => each!(u64, Ints, u64::cast_signed),
        element::UINT32 => each!(u32, Ints, i64::from),
        element::UINT16 => each!(u16, Ints, i64::from),
        element::UINT8 => each!(u8, Ints, i64::from),
        element::BOOL => each!(u8, Ints, |byte| i64::from(byte != 0)),
        element::FLOAT16 => each!(u16, F32, |bits: u16| from_f16(bits.to_le_bytes())),
        element::BFLOAT16 => each!(u16, F32, |bits: u16| from_bf16(bits.to_le_bytes())),
        other => match Packed::of(other) {
            Some(packed) => packed.numbers(raw.iter().copied(), elements)?,
            None => return Err(unread(other)),
        },
    })
}

fn unread(data_type: i32) -> Error {
    let message = format!("elements of type {data_type}, {}, are not supported", element_name(data_type));
    Error::new(ErrorKind::Checkpoint, message)
}

/// The bytes of a tensor in a separate file.
#[cfg(not(target_family = "wasm"))]
fn external(tensor: &proto::Tensor, beside: &mut Beside<'_>) -> Result<Bytes> {
    let entry = |key: &str| tensor.external_data.iter().find(|entry| entry.key == key).map(|entry| &entry.value[..]);
    let Some(location) = entry("location") else {
        bail!(Checkpoint, "its numbers are in another file, which is not named");
    };
    let Some(folder) = beside.folder else {
        bail!(
            Checkpoint,
            "its numbers are in another file, `{}`; load the model from its path rather than from bytes",
            shortened(location)
        );
    };
    let number = |key: &str| match entry(key).map(str::parse::<u64>) {
        None => Ok(None),
        Some(Ok(number)) => Ok(Some(number)),
        Some(Err(_)) => bail!(Checkpoint, "its `{key}` in another file is not a number"),
    };
    let (offset, length) = (number("offset")?.unwrap_or(0), number("length")?);
    let path = inside(folder, location)?;
    let unreadable = |error: std::io::Error| {
        Error::new(ErrorKind::Io, format!("{} could not be read: {error}", path.display())).caused_by(error)
    };
    let mut file = crate::file::open(&path).map_err(unreadable)?;
    let size = file.metadata().map_err(unreadable)?.len();
    let length = length.unwrap_or(size.saturating_sub(offset));
    if offset.checked_add(length).is_none_or(|end| end > size) {
        bail!(
            Checkpoint,
            "its {length} bytes from {offset} on are past the end of {}, which has {size}",
            path.display()
        );
    }
    beside.take(&path, offset, offset + length)?;
    let mut bytes = Vec::new();
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    reserve(&mut bytes, length)?;
    file.seek(SeekFrom::Start(offset)).map_err(unreadable)?;
    file.take(length as u64).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(Bytes::from(bytes))
}

#[cfg(target_family = "wasm")]
fn external(_: &proto::Tensor, _: Beside<'_>) -> Result<Bytes> {
    bail!(Checkpoint, "its numbers are in another file")
}

/// The path of a file in a folder. Neither `..` nor a link may lead out of it.
#[cfg(not(target_family = "wasm"))]
fn inside(folder: &Path, location: &str) -> Result<PathBuf> {
    let refuse = || {
        let message = format!("its numbers are in `{}`, which is outside the model's folder", shortened(location));
        Error::new(ErrorKind::Checkpoint, message)
    };
    let named = Path::new(location);
    if !named.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err(refuse());
    }
    let path = folder.join(named);
    let io = |path: &Path| {
        let path = path.to_owned();
        move |error: std::io::Error| {
            Error::new(ErrorKind::Io, format!("{} could not be read: {error}", path.display())).caused_by(error)
        }
    };
    let real = path.canonicalize().map_err(io(&path))?;
    let root = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    if real.starts_with(root.canonicalize().map_err(io(root))?) { Ok(real) } else { Err(refuse()) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn paths_stay_in_the_folder() {
        let folder = tempfile::tempdir().expect("a place for files");
        let model = folder.path().join("model");
        fs::create_dir(&model).expect("it is new");
        fs::write(model.join("weights"), "inside").expect("it can be written");
        fs::write(folder.path().join("secret"), "outside").expect("it can be written");
        assert!(inside(&model, "weights").is_ok() && inside(&model, "./weights").is_ok());
        let absolute = folder.path().join("secret");
        for location in ["../secret", "weights/../../secret", absolute.to_str().expect("in Unicode")] {
            let error = inside(&model, location).expect_err("it is outside");
            assert!(error.to_string().contains("outside the model's folder"), "{error}");
        }
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(absolute, model.join("link")).expect("it is new");
            assert!(inside(&model, "link").is_err());
        }
    }
}
