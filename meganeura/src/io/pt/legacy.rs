//! Files of `torch.save` before PyTorch 1.6, and of `_use_new_zipfile_serialization=False`: pickles one after the
//! other, then the storages.
//!
//! The pickles are a magic number, the version of the protocol, facts on the machine, the values, and the keys of the
//! storages. A storage is the number of its elements in 64 bits, then these.

use std::collections::HashMap;

use super::value::{Place, Value, Values};
use super::work::Work;
use super::{malformed, pickle, view};
use crate::Result;
use crate::error::{bail, shortened};

/// The bytes of storages by their keys.
pub(super) type Sequence<'a> = HashMap<&'a [u8], &'a [u8]>;

/// The values of a file, and the bytes of its storages by their keys.
pub(super) fn read<'a>(bytes: &'a [u8], work: &mut Work) -> Result<(Values<'a>, Sequence<'a>)> {
    let mut rest = bytes;
    let mut next = |work: &mut Work| -> Result<Values<'a>> {
        let values = pickle::read(rest, work)?;
        rest = &rest[values.end..];
        Ok(values)
    };
    next(work)?;
    let version = next(work)?;
    let &Value::Int(1001) = version.get(version.root) else {
        bail!(Checkpoint, "a file of `torch.save` of an unknown protocol, before PyTorch 1.6");
    };
    let system = next(work)?;
    if let Value::Dict(pairs) = system.get(system.root)
        && let Some(Value::Bool(false)) = system.entry(pairs, "little_endian")
    {
        bail!(Checkpoint, "numbers with their highest byte first; save the file again on another machine");
    }
    let values = next(work)?;
    let keys = next(work)?;
    let storages = storages(&values, &keys, rest)?;
    Ok((values, storages))
}

fn storages<'a>(values: &Values<'a>, keys: &Values<'a>, mut rest: &'a [u8]) -> Result<Sequence<'a>> {
    let mut widths: HashMap<&[u8], Option<usize>> = HashMap::new();
    for value in &values.all {
        if let Value::Storage(storage) = value {
            widths.insert(values.text(storage.key), view::width(values.text(storage.class.name)));
        }
    }
    let Value::List(places) = keys.get(keys.root) else { bail!(Checkpoint, "the file has no list of storages") };
    let mut storages = HashMap::new();
    for &place in places {
        let key = key(keys, place)?;
        let shown = || shortened(&String::from_utf8_lossy(key)).into_owned();
        let width = match widths.get(key) {
            Some(&Some(width)) => width,
            Some(None) => bail!(Checkpoint, "storage `{}` has elements of an unknown size", shown()),
            // Nothing refers to it, and only its references tell the size of elements.
            None => bail!(Checkpoint, "storage `{}` belongs to no tensor", shown()),
        };
        let short = || malformed(&format!("storage `{}` ends behind the file", shown()));
        let (count, behind) = rest.split_first_chunk().ok_or_else(short)?;
        let size = usize::try_from(u64::from_le_bytes(*count)).ok().and_then(|count| count.checked_mul(width));
        let (contents, behind) = size.and_then(|size| behind.split_at_checked(size)).ok_or_else(short)?;
        storages.insert(key, contents);
        rest = behind;
    }
    Ok(storages)
}

fn key<'a>(keys: &Values<'a>, place: Place) -> Result<&'a [u8]> {
    match *keys.get(place) {
        Value::Text(text) => Ok(keys.text(text)),
        _ => bail!(Checkpoint, "the key of a storage is not a text"),
    }
}
