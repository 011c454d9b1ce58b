//! Files in GGUF, llama.cpp's format: a header with a program's settings, and the names, shapes and places of tensors,
//! followed by their numbers, which may be quantised in blocks.
//!
//! They are converted to safetensors, which the rest of [`io`](super) reads.

mod blocks;
mod cursor;

use std::collections::{BTreeMap, BTreeSet};

use safetensors::Dtype;

use self::blocks::{Blocks, MOST_ELEMENTS};
use self::cursor::Cursor;
use super::format::{self, Foreign};
use crate::error::{bail, shortened};
use crate::{Error, ErrorKind, Result};

/// The start of a file.
pub(super) const MAGIC: &[u8] = b"GGUF";

/// The versions that are read. They have the same form; the first one counted with 32 bits.
const VERSIONS: [u32; 2] = [2, 3];

/// The key of the setting that says at which multiples tensors start.
const ALIGNMENT: &str = "general.alignment";

/// The maximum number of axes. llama.cpp has 4.
const MOST_AXES: u32 = 64;

/// A quantised form that is not read.
struct Other {
    code: u32,
    name: &'static str,
    elements: usize,
    bytes: usize,
}

/// Every one, by its number in a file, with the numbers and the bytes of a block.
static OTHERS: [Other; 19] = [
    Other::new(9, "Q8_1", 32, 40),
    Other::new(15, "Q8_K", 256, 292),
    Other::new(16, "IQ2_XXS", 256, 66),
    Other::new(17, "IQ2_XS", 256, 74),
    Other::new(18, "IQ3_XXS", 256, 98),
    Other::new(19, "IQ1_S", 256, 50),
    Other::new(20, "IQ4_NL", 32, 18),
    Other::new(21, "IQ3_S", 256, 110),
    Other::new(22, "IQ2_S", 256, 82),
    Other::new(23, "IQ4_XS", 256, 136),
    Other::new(29, "IQ1_M", 256, 56),
    Other::new(31, "Q4_0_4_4", 32, 18),
    Other::new(32, "Q4_0_4_8", 32, 18),
    Other::new(33, "Q4_0_8_8", 32, 18),
    Other::new(34, "TQ1_0", 256, 54),
    Other::new(35, "TQ2_0", 256, 66),
    Other::new(39, "MXFP4", 32, 17),
    Other::new(40, "NVFP4", 64, 36),
    Other::new(41, "Q1_0", 128, 18),
];

impl Other {
    const fn new(code: u32, name: &'static str, elements: usize, bytes: usize) -> Self {
        Self { code, name, elements, bytes }
    }
}

/// The form of a tensor's numbers.
#[derive(Clone, Copy)]
enum Form {
    Plain(Dtype),
    Quantised(&'static Blocks),
    Other(&'static Other),
    /// A form of this number, of which nothing is known.
    Unknown(u32),
}

impl Form {
    fn of(code: u32) -> Self {
        Self::Plain(match code {
            0 => Dtype::F32,
            1 => Dtype::F16,
            24 => Dtype::I8,
            25 => Dtype::I16,
            26 => Dtype::I32,
            27 => Dtype::I64,
            28 => Dtype::F64,
            30 => Dtype::BF16,
            _ => {
                let other = || OTHERS.iter().find(|other| other.code == code).map(Self::Other);
                return Blocks::of(code).map(Self::Quantised).or_else(other).unwrap_or(Self::Unknown(code));
            }
        })
    }

    /// The type of the numbers in safetensors, or the reason that they are not read.
    fn dtype(self) -> std::result::Result<Dtype, String> {
        let unread = |name: &str| Err(format!("it is quantised as {name}; {}", Blocks::names()));
        match self {
            Self::Plain(dtype) => Ok(dtype),
            Self::Quantised(_) => Ok(Dtype::F32),
            Self::Other(other) => unread(other.name),
            Self::Unknown(code) => unread(&format!("type {code}")),
        }
    }

    /// The number of bytes of a tensor in the file; `None` if rows do not fall into blocks, or if it is beyond the
    /// machine's. An unknown form counts as nothing.
    fn bytes(self, shape: &[usize]) -> Option<usize> {
        let size = product(shape)?;
        let (elements, bytes) = match self {
            Self::Plain(dtype) => (1, dtype.bitsize() / 8),
            Self::Quantised(blocks) => (blocks.elements, blocks.bytes),
            Self::Other(other) => (other.elements, other.bytes),
            Self::Unknown(_) => return Some(0),
        };
        let row = shape.last().copied().unwrap_or(1);
        row.is_multiple_of(elements).then(|| (size / elements).checked_mul(bytes))?
    }
}

fn product(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1_usize, |size, &extent| size.checked_mul(extent))
}

/// A tensor's form and its bytes in the file.
type Source<'a> = (Form, &'a [u8]);

/// Converts the tensors of a file to a safetensors file. Tensors of a form that is not read are left out; the words of
/// the header say why.
pub(super) fn to_safetensors(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut cursor = Cursor::new(bytes);
    if cursor.take(MAGIC.len())? != MAGIC {
        return Err(malformed("it starts with something else"));
    }
    let version = cursor.u32()?;
    if VERSIONS.contains(&version.swap_bytes()) {
        bail!(Checkpoint, "a GGUF file with the highest byte of its numbers first; convert it anew");
    }
    if !VERSIONS.contains(&version) {
        bail!(Checkpoint, "a GGUF file of version {version}; versions 2 and 3 are read");
    }
    let (count, settings) = (cursor.u64()?, cursor.u64()?);
    let mut alignment = 32;
    for _ in 0..settings {
        let (key, kind) = (cursor.text()?, cursor.u32()?);
        match (key, kind) {
            (ALIGNMENT, cursor::U32) => alignment = cursor.u32()? as usize,
            _ => cursor.skip(kind)?,
        }
    }
    if alignment == 0 {
        return Err(malformed("its tensors start at multiples of 0"));
    }
    let mut places = Vec::new();
    let mut names = BTreeSet::new();
    for _ in 0..count {
        let place = Place::read(&mut cursor)?;
        if !names.insert(place.name) {
            bail!(Checkpoint, "two tensors are called `{}`", shortened(place.name));
        }
        places.push(place);
    }
    let start = cursor.at().checked_next_multiple_of(alignment).unwrap_or(usize::MAX);
    let data = bytes.get(start..).unwrap_or_default();
    let (tensors, words) = located(places, data)?;
    format::converted(tensors, &words, |Foreign { source: (form, numbers), .. }, file| {
        let Form::Quantised(blocks) = form else {
            file.extend_from_slice(numbers);
            return Ok(());
        };
        let mut decoded = [0.0; MOST_ELEMENTS];
        let decoded = &mut decoded[..blocks.elements];
        for block in numbers.chunks_exact(blocks.bytes) {
            (blocks.decode)(block, decoded);
            for number in &*decoded {
                file.extend_from_slice(&number.to_le_bytes());
            }
        }
        Ok(())
    })
}

fn malformed(why: &str) -> Error {
    Error::new(ErrorKind::Checkpoint, format!("not a complete GGUF file: {why}"))
}

/// The entry of a tensor in the header.
struct Place<'a> {
    name: &'a str,
    shape: Vec<usize>,
    form: Form,
    /// The distance from the first tensor.
    offset: u64,
}

impl<'a> Place<'a> {
    fn read(cursor: &mut Cursor<'a>) -> Result<Self> {
        let (name, axes) = (cursor.text()?, cursor.u32()?);
        if axes > MOST_AXES {
            return Err(malformed(&format!("`{}` has {axes} axes", shortened(name))));
        }
        let mut shape = Vec::new();
        for _ in 0..axes {
            shape.push(usize::try_from(cursor.u64()?).unwrap_or(usize::MAX));
        }
        // The innermost axis is the first one.
        shape.reverse();
        Ok(Self { name, shape, form: Form::of(cursor.u32()?), offset: cursor.u64()? })
    }

    /// The tensor's bytes in the file. They start behind those of other tensors, which end at `end`.
    fn bytes(&self, data: &'a [u8], end: &mut usize) -> Result<&'a [u8]> {
        let damaged = |why: &str| malformed(&format!("`{}` {why}", shortened(self.name)));
        let Some(size) = self.form.bytes(&self.shape) else {
            return Err(damaged(&format!("has the shape {:?}, which does not fit its type", self.shape)));
        };
        let offset = usize::try_from(self.offset).unwrap_or(usize::MAX);
        let bytes = offset.checked_add(size).and_then(|end| data.get(offset..end));
        let bytes = bytes.ok_or_else(|| damaged("ends behind the file"))?;
        if offset < *end && size > 0 {
            return Err(damaged("overlaps with another tensor"));
        }
        *end = offset + size;
        Ok(bytes)
    }
}

/// Tensors, and the words for those that are not read.
type Located<'a> = (Vec<Foreign<Source<'a>>>, BTreeMap<String, String>);

/// The tensors at these places.
fn located<'a>(mut places: Vec<Place<'a>>, data: &'a [u8]) -> Result<Located<'a>> {
    places.sort_by_key(|place| place.offset);
    let (mut tensors, mut words, mut end) = (Vec::new(), BTreeMap::new(), 0);
    for place in places {
        let (numbers, name) = (place.bytes(data, &mut end)?, place.name.to_owned());
        let dtype = match place.form.dtype() {
            Ok(dtype) => dtype,
            Err(why) => {
                words.insert(name, format!("{}{why}", format::NOT_CONVERTED));
                continue;
            }
        };
        let size = product(&place.shape).and_then(|elements| elements.checked_mul(dtype.bitsize() / 8));
        let size = size.ok_or_else(|| malformed(&format!("`{}` is too large", shortened(&name))))?;
        tensors.push(Foreign { name, dtype, shape: place.shape, size, source: (place.form, numbers) });
    }
    if tensors.is_empty() {
        match words.first_key_value() {
            Some((name, why)) => {
                let why = why.strip_prefix(format::NOT_CONVERTED).unwrap_or(why);
                bail!(Checkpoint, "{}: {why}; the file has no other tensors", shortened(name));
            }
            None => bail!(Checkpoint, "the file has no tensors"),
        }
    }
    Ok((tensors, words))
}

#[cfg(test)]
mod tests;
