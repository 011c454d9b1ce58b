//! Files of NumPy: an array of `numpy.save` is a short header in Python's syntax and the numbers; `numpy.savez` and
//! `numpy.savez_compressed` write a zip archive of arrays.
//!
//! They are converted to safetensors, which the rest of [`io`](super) reads.

mod header;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Cursor, Read};

use flate2::Crc;
use flate2::read::DeflateDecoder;
use zip::read::{ArchiveOffset, Config};
use zip::{CompressionMethod, ZipArchive};

use self::header::Header;
use super::format::{self, Foreign};
use crate::error::{bail, shortened};
use crate::host::reserve;
use crate::{Error, ErrorKind, Result};

/// The start of an array.
pub(super) const MAGIC: &[u8] = b"\x93NUMPY";

/// The name of an array that is a file by itself: the name that `numpy.savez` gives an array without one.
const UNNAMED: &str = "arr_0";

/// The end of an entry's name.
const NPY: &str = ".npy";

/// The largest factor by which Deflate compresses.
const DENSEST: usize = 1032;

/// `true` if the first entry of an archive is an array.
pub(super) fn is_npz(bytes: &[u8]) -> bool {
    // The length of the name is behind 26 bytes of the first entry's header, the name behind 30.
    let length = bytes.get(26..28).map_or(0, |length| usize::from(u16::from_le_bytes([length[0], length[1]])));
    bytes.get(30..).and_then(|rest| rest.get(..length)).is_some_and(|name| name.ends_with(NPY.as_bytes()))
}

/// Converts the arrays of a file to a safetensors file. Arrays that are not supported are left out; the words of the
/// header say why.
pub(super) fn to_safetensors<'a>(bytes: &'a [u8]) -> Result<Vec<u8>> {
    let (mut arrays, mut words) = (Vec::new(), BTreeMap::new());
    let mut add = |name: String, contents: Cow<'a, [u8]>| {
        match Header::parse(&contents).map_err(|error| error.context(shortened(&name)))? {
            Ok((header, start)) => arrays.push(Foreign {
                name,
                dtype: header.dtype,
                shape: header.shape.clone(),
                size: contents.len() - start,
                source: (header, start, contents),
            }),
            Err(why) => drop(words.insert(name, format!("{}{why}", format::NOT_CONVERTED))),
        }
        Ok(())
    };
    if bytes.starts_with(MAGIC) {
        add(UNNAMED.to_owned(), bytes.into())?;
    } else {
        entries(bytes, &mut add)?;
    }
    if arrays.is_empty() && words.is_empty() {
        bail!(Checkpoint, "the file has no arrays");
    }
    format::converted(arrays, &words, |array, file| {
        let (header, start, contents) = &array.source;
        header.append(&contents[*start..], file);
        Ok(())
    })
}

/// Calls `add` with the name and the contents of each array of an archive.
fn entries<'a>(bytes: &'a [u8], mut add: impl FnMut(String, Cow<'a, [u8]>) -> Result<()>) -> Result<()> {
    let config = Config { archive_offset: ArchiveOffset::Known(0) };
    let mut archive = ZipArchive::with_config(config, Cursor::new(bytes)).map_err(|error| malformed(&error))?;
    let (mut names, mut left) = (BTreeSet::new(), bytes.len());
    for index in 0..archive.len() {
        let Some((name, contents)) = entry(&mut archive, index, bytes, &mut left)? else { continue };
        if !names.insert(name.clone()) {
            bail!(Checkpoint, "two arrays are called `{}`", shortened(&name));
        }
        add(name, contents)?;
    }
    Ok(())
}

fn malformed(error: &impl ToString) -> Error {
    let error = error.to_string();
    Error::new(ErrorKind::Checkpoint, format!("not a complete npz file: {}", shortened(&error)))
}

/// The name and the contents of an entry; `None` if it is no array. Entries that overlap would have more bytes than are
/// `left`.
fn entry<'a>(
    archive: &mut ZipArchive<Cursor<&'a [u8]>>,
    index: usize,
    bytes: &'a [u8],
    left: &mut usize,
) -> Result<Option<(String, Cow<'a, [u8]>)>> {
    let entry = archive.by_index_raw(index).map_err(|error| malformed(&error))?;
    let Some(name) = entry.name().ok().and_then(|name| name.strip_suffix(NPY).map(str::to_owned)) else {
        return Ok(None);
    };
    let damaged = |why: &str| malformed(&format!("`{}`: {why}", shortened(&name)));
    let whole = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
    let start = entry.data_start().map_or(usize::MAX, whole);
    let (packed, size) = (whole(entry.compressed_size()), whole(entry.size()));
    let raw = start.checked_add(packed).and_then(|end| bytes.get(start..end));
    let raw = raw.ok_or_else(|| damaged("it ends behind the file"))?;
    *left = left.checked_sub(packed).ok_or_else(|| damaged("it overlaps with another entry"))?;
    let contents = match entry.compression() {
        CompressionMethod::Stored => Cow::Borrowed(raw),
        CompressionMethod::DEFLATE => {
            if size > packed.saturating_mul(DENSEST).saturating_add(1 << 10) {
                return Err(damaged("it is larger than its compressed form can be"));
            }
            let mut contents = Vec::new();
            reserve(&mut contents, size)?;
            let read = DeflateDecoder::new(raw).take(size as u64 + 1).read_to_end(&mut contents);
            read.map_err(|error| damaged(&error.to_string()))?;
            Cow::Owned(contents)
        }
        other => return Err(damaged(&format!("it is compressed with {other}"))),
    };
    let mut checksum = Crc::new();
    checksum.update(&contents);
    if contents.len() != size || checksum.sum() != entry.crc32() {
        return Err(damaged("it is damaged"));
    }
    Ok(Some((name, contents)))
}

#[cfg(test)]
mod tests;
