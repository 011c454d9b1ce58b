//! The numbers, texts and settings at the start of a GGUF file, read in order.

use super::malformed;
use crate::Result;
use crate::error::bail;

/// The kinds of settings.
pub(super) const U32: u32 = 4;
const TEXT: u32 = 8;
const LIST: u32 = 9;

/// The maximum depth of lists in lists.
const DEEPEST: usize = 8;

/// A position in a file. Nothing behind its end is read, and nothing is allocated.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The number of bytes that were read.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The next bytes.
    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let Some(taken) = self.at.checked_add(length).and_then(|end| self.bytes.get(self.at..end)) else {
            return Err(malformed("it ends within its header"));
        };
        self.at += length;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("so many were taken"))
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A text behind its length.
    pub(super) fn text(&mut self) -> Result<&'a str> {
        let bytes = self.counted(1)?;
        std::str::from_utf8(bytes).map_err(|error| malformed(&format!("a name is not UTF-8: {error}")))
    }

    /// The elements of so many bytes behind their number.
    fn counted(&mut self, width: usize) -> Result<&'a [u8]> {
        let length = usize::try_from(self.u64()?).ok().and_then(|count| count.checked_mul(width));
        self.take(length.unwrap_or(usize::MAX))
    }

    /// Passes over the value of a setting of this kind.
    pub(super) fn skip(&mut self, kind: u32) -> Result<()> {
        self.skip_within(kind, DEEPEST)
    }

    fn skip_within(&mut self, kind: u32, depth: usize) -> Result<()> {
        if let Some(width) = width(kind) {
            self.take(width)?;
            return Ok(());
        }
        match (kind, depth) {
            (TEXT, _) => drop(self.counted(1)?),
            (LIST, 0) => bail!(Checkpoint, "lists of settings are nested more than {DEEPEST} deep"),
            (LIST, _) => {
                let kind = self.u32()?;
                match width(kind) {
                    Some(width) => drop(self.counted(width)?),
                    None => {
                        for _ in 0..self.u64()? {
                            self.skip_within(kind, depth - 1)?;
                        }
                    }
                }
            }
            _ => return Err(malformed(&format!("a setting has the type {kind}, which there is not"))),
        }
        Ok(())
    }
}

/// The number of bytes of a number or a truth value.
fn width(kind: u32) -> Option<usize> {
    Some(match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        U32 | 5 | 6 => 4,
        10..=12 => 8,
        _ => return None,
    })
}
