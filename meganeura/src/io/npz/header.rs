//! The header of an array: `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`.

use safetensors::Dtype;

use crate::Result;
use crate::error::{bail, shortened};

/// The maximum number of axes of an array, as in NumPy.
const MOST_AXES: usize = 64;

/// The description of an array.
#[derive(Debug, PartialEq)]
pub(super) struct Header {
    pub(super) dtype: Dtype,
    is_column_major: bool,
    pub(super) shape: Vec<usize>,
}

impl Header {
    /// The header of an array and its length, or the reason why the array is not supported.
    pub(super) fn parse(bytes: &[u8]) -> Result<std::result::Result<(Self, usize), String>> {
        let Some((text, length)) = text(bytes) else { bail!(Checkpoint, "not a complete array of NumPy") };
        let mut words = Words(text);
        let (mut descr, mut order, mut shape) = (None, None, None);
        let mut read = || {
            words.expect('{')?;
            while words.expect('}').is_none() {
                let key = words.quoted()?;
                words.expect(':')?;
                match key {
                    "descr" => descr = Some(words.quoted().or_else(|| words.list())?),
                    "fortran_order" => order = Some(words.truth()?),
                    "shape" => shape = Some(words.extents()?),
                    _ => return None,
                }
                words.expect(',');
            }
            words.0.trim().is_empty().then_some(())
        };
        let is_whole = read().is_some();
        let (true, Some(descr), Some(is_column_major), Some(shape)) = (is_whole, descr, order, shape) else {
            bail!(Checkpoint, "the header `{}` does not describe an array", shortened(text));
        };
        let dtype = match dtype(descr) {
            Ok(dtype) => dtype,
            Err(why) => return Ok(Err(why)),
        };
        let size = shape.iter().try_fold(dtype.bitsize() / 8, |size, &extent| size.checked_mul(extent));
        if size != Some(bytes.len() - length) {
            bail!(Checkpoint, "{} bytes for numbers {dtype} of extents {shape:?}", bytes.len() - length);
        }
        Ok(Ok((Self { dtype, is_column_major, shape }, length)))
    }

    /// Appends the numbers, row by row. There is room for them.
    pub(super) fn append(&self, data: &[u8], file: &mut Vec<u8>) {
        if !self.is_column_major || self.shape.len() < 2 || data.is_empty() {
            file.extend_from_slice(data);
            return;
        }
        let width = self.dtype.bitsize() / 8;
        // The first axis is the innermost.
        let strides: Vec<usize> = (0..self.shape.len()).map(|axis| self.shape[..axis].iter().product()).collect();
        let (mut index, mut at) = (vec![0; self.shape.len()], 0);
        'elements: loop {
            file.extend_from_slice(&data[at * width..][..width]);
            for (axis, index) in index.iter_mut().enumerate().rev() {
                if *index + 1 < self.shape[axis] {
                    (*index, at) = (*index + 1, at + strides[axis]);
                    continue 'elements;
                }
                at -= *index * strides[axis];
                *index = 0;
            }
            return;
        }
    }
}

/// The text of a header, and its length with the magic number before it.
fn text(bytes: &[u8]) -> Option<(&str, usize)> {
    let rest = bytes.strip_prefix(super::MAGIC)?;
    let (start, length) = match *rest {
        [1, _, a, b, ..] => (10, usize::from(u16::from_le_bytes([a, b]))),
        [2 | 3, _, a, b, c, d, ..] => (12, u32::from_le_bytes([a, b, c, d]) as usize),
        _ => return None,
    };
    let text = bytes.get(start..)?.get(..length)?;
    Some((std::str::from_utf8(text).ok()?, start + length))
}

/// The element type of `<f4` and the like.
fn dtype(descr: &str) -> std::result::Result<Dtype, String> {
    let (order, name) = descr.split_at_checked(1).unwrap_or(("", descr));
    let dtype = match name {
        "f8" => Dtype::F64,
        "f4" => Dtype::F32,
        "f2" => Dtype::F16,
        "i8" => Dtype::I64,
        "i4" => Dtype::I32,
        "i2" => Dtype::I16,
        "i1" => Dtype::I8,
        "u8" => Dtype::U64,
        "u4" => Dtype::U32,
        "u2" => Dtype::U16,
        "u1" => Dtype::U8,
        "b1" => Dtype::BOOL,
        _ => return Err(format!("elements of a NumPy array of type `{}` are not read", shortened(descr))),
    };
    if order == ">" && dtype.bitsize() > 8 {
        return Err("a NumPy array with the highest byte of its numbers first".to_owned());
    }
    Ok(dtype)
}

/// The rest of a header.
struct Words<'a>(&'a str);

impl<'a> Words<'a> {
    fn expect(&mut self, character: char) -> Option<()> {
        self.0 = self.0.trim_start().strip_prefix(character)?;
        Some(())
    }

    fn quoted(&mut self) -> Option<&'a str> {
        let text = self.0.trim_start();
        let quote = text.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
        let (word, rest) = text[1..].split_once(quote)?;
        self.0 = rest;
        Some(word)
    }

    /// The fields of a record, as they are.
    fn list(&mut self) -> Option<&'a str> {
        let text = self.0.trim_start();
        let end = text.starts_with('[').then(|| text.rfind(']'))??;
        let (list, rest) = text.split_at(end + 1);
        self.0 = rest;
        Some(list)
    }

    fn truth(&mut self) -> Option<bool> {
        let text = self.0.trim_start();
        let (value, rest) = match text.strip_prefix("True") {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix("False")?),
        };
        self.0 = rest;
        Some(value)
    }

    fn extents(&mut self) -> Option<Vec<usize>> {
        let mut extents = Vec::new();
        self.expect('(')?;
        while self.expect(')').is_none() {
            let text = self.0.trim_start();
            let digits = text.find(|c: char| !c.is_ascii_digit()).filter(|_| extents.len() < MOST_AXES)?;
            extents.push(text[..digits].parse().ok()?);
            // Python 2 wrote `3L`.
            self.0 = text[digits..].trim_start_matches('L');
            self.expect(',');
        }
        Some(extents)
    }
}
