//! Tensors to and from safetensors.
//!
//! Files are little-endian whatever the machine.

use std::collections::BTreeMap;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError, SafeTensors};

use crate::error::bail;
use crate::host::HostBuffer;
use crate::{Device, Error, ErrorKind, MAX_RANK, Result, Shape, Tensor};

/// A file with these tensors, each put together of parts of one type, and of tied ones the other names: each alias with the name
/// under which the tensor is.
pub(super) async fn write(
    tensors: BTreeMap<String, Vec<Tensor>>,
    aliases: BTreeMap<String, String>,
) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(tensors.len());
    for (name, parts) in &tensors {
        let (mut dtype, mut data) = (Dtype::F32, Vec::new());
        for part in parts {
            dtype = match Device::download_async(part).await? {
                HostBuffer::F32(part) => append(&mut data, part, Dtype::F32, f32::to_le_bytes),
                HostBuffer::F64(part) => append(&mut data, part, Dtype::F64, f64::to_le_bytes),
                HostBuffer::U32(part) => append(&mut data, part, Dtype::U32, u32::to_le_bytes),
            };
        }
        let mut shape = parts.first().map(|part| part.shape().dims().to_vec()).unwrap_or_default();
        if let Some(first) = shape.first_mut() {
            *first *= parts.len();
        }
        bytes.push((name, dtype, shape, data));
    }
    let views: Vec<_> = bytes
        .iter()
        .map(|(name, dtype, shape, data)| Ok((name, TensorView::new(*dtype, shape.clone(), data)?)))
        .collect::<Result<_, SafeTensorError>>()
        .map_err(malformed)?;
    let count = views.len();
    let file = safetensors::serialize(views, None).map_err(|error| match error {
        SafeTensorError::HeaderTooLarge => header_too_large(count),
        error => malformed(error),
    })?;
    if aliases.is_empty() {
        return Ok(file);
    }
    let file = with_metadata(&file, &aliases);
    if header_length(&file) > MOST_HEADER { Err(header_too_large(count)) } else { Ok(file) }
}

/// Bytes that a header may have. The format says so, and whatever reads it holds files to it.
const MOST_HEADER: u64 = 100_000_000;

fn header_too_large(count: usize) -> Error {
    let message = format!(
        "the names, types and shapes of the tensors ({count} of them) take more than {} MB, which is the most that the header \
         of a safetensors file may have; shorter names take less, and so do parts of the model in files of their own",
        MOST_HEADER / 1_000_000
    );
    Error::new(ErrorKind::Checkpoint, message)
}

/// Bytes of a file's header, without those that say so.
fn header_length(file: &[u8]) -> u64 {
    u64::from_le_bytes(*file.first_chunk().expect("a header"))
}

fn append<T, const N: usize>(bytes: &mut Vec<u8>, numbers: Vec<T>, dtype: Dtype, le: impl Fn(T) -> [u8; N]) -> Dtype {
    bytes.extend(numbers.into_iter().flat_map(le));
    dtype
}

/// The same file with these words in its header, in their order: the crate would shuffle them, and a model saved twice would
/// not give the same bytes.
fn with_metadata(file: &[u8], words: &BTreeMap<String, String>) -> Vec<u8> {
    let (length, rest) = file.split_first_chunk().expect("a header");
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let entries: Vec<_> = words.iter().map(|(key, value)| format!("{}:{}", quoted(key), quoted(value))).collect();
    // `{"name":…}` to `{"__metadata__":{…},"name":…}`.
    let comma = if header[1..].starts_with(b"}") { "" } else { "," };
    let words = format!("{{\"__metadata__\":{{{}}}{comma}", entries.join(","));
    let mut header = [words.as_bytes(), &header[1..]].concat();
    // Numbers begin at multiples of 8.
    header.resize(header.len().next_multiple_of(8), b' ');
    [&(header.len() as u64).to_le_bytes()[..], &header, data].concat()
}

/// As a string of JSON.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\0'..='\x1f' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The words of the header.
fn metadata(bytes: &[u8]) -> Result<impl Iterator<Item = (String, String)>> {
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(malformed)?;
    Ok(header.metadata().clone().unwrap_or_default().into_iter())
}

/// All that [`write`] wrote: the tensors, now on `device`, and the words.
pub(super) fn read_all(bytes: &[u8], device: &Device) -> Result<(BTreeMap<String, Tensor>, BTreeMap<String, String>)> {
    let file = parse(bytes)?;
    let tensor = |(name, view): (&str, TensorView<'_>)| {
        if view.shape().len() > MAX_RANK {
            bail!(Checkpoint, "`{name}` has {} axes, {MAX_RANK} are the most", view.shape().len());
        }
        let tensor = floats(&view, device, Shape::new(view.shape())).map_err(|error| error.context(name))?;
        Ok((name.to_owned(), tensor))
    };
    Ok((file.iter().map(tensor).collect::<Result<_>>()?, metadata(bytes)?.collect()))
}

/// The other names of tied tensors, each with the name under which the tensor is in the file.
pub(super) fn aliases(bytes: &[u8], file: &SafeTensors<'_>) -> Result<BTreeMap<String, String>> {
    // Others note other things there.
    Ok(metadata(bytes)?.filter(|(alias, name)| file.tensor(alias).is_err() && file.tensor(name).is_ok()).collect())
}

/// The tensors of a file. The header is checked against the length: offsets neither overlap nor leave gaps.
pub(super) fn parse(bytes: &[u8]) -> Result<SafeTensors<'_>> {
    SafeTensors::deserialize(bytes).map_err(malformed)
}

pub(super) fn malformed(error: SafeTensorError) -> Error {
    Error::new(ErrorKind::Checkpoint, format!("not a complete safetensors file: {error}")).caused_by(error)
}

/// A stored tensor that can take the place of `current`, on its device.
pub(super) fn read(stored: &TensorView<'_>, current: &Tensor) -> Result<Tensor> {
    if stored.shape() != current.shape().dims() {
        bail!(Checkpoint, "{:?} in the file, {} in the model", stored.shape(), current.shape());
    }
    let shape: Shape = current.shape();
    let data = stored.data();
    if !current.ty().dtype.is_float() {
        let Dtype::U32 = stored.dtype() else {
            bail!(Checkpoint, "{} in the file, {} in the model", stored.dtype(), current.ty().dtype);
        };
        return Tensor::indices(current.device(), shape, &numbers(data, u32::from_le_bytes));
    }
    floats(stored, current.device(), shape)
}

fn floats(stored: &TensorView<'_>, device: &Device, shape: Shape) -> Result<Tensor> {
    let data = stored.data();
    match stored.dtype() {
        Dtype::F32 => Tensor::from_slice(device, shape, &numbers(data, f32::from_le_bytes)),
        Dtype::F64 => Tensor::from_f64(device, shape, &numbers(data, f64::from_le_bytes)),
        Dtype::F16 => Tensor::from_slice(device, shape, &numbers(data, from_f16)),
        Dtype::BF16 => Tensor::from_slice(device, shape, &numbers(data, from_bf16)),
        other => bail!(Checkpoint, "{other} in the file; F64, F32, F16 and BF16 are read"),
    }
}

/// Each run of `N` bytes as a number.
fn numbers<T, const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> T) -> Vec<T> {
    let (chunks, _) = bytes.as_chunks();
    chunks.iter().map(|&chunk| number(chunk)).collect()
}

/// A brain float is the upper half of an `f32`.
fn from_bf16(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

/// An IEEE 754 half: 1 sign bit, 5 exponent bits biased by 15, 10 fraction bits.
fn from_f16(bytes: [u8; 2]) -> f32 {
    let bits = u32::from(u16::from_le_bytes(bytes));
    let (sign, exponent, fraction) = ((bits >> 15) << 31, (bits >> 10) & 0x1f, bits & 0x3ff);
    let magnitude = match exponent {
        // Subnormal, in units of 2⁻²⁴, exactly an f32.
        0 => return f32::from_bits((fraction as f32 * 2f32.powi(-24)).to_bits() | sign),
        0x1f => (0xff << 23) | (fraction << 13),
        _ => ((exponent + 127 - 15) << 23) | (fraction << 13),
    };
    f32::from_bits(sign | magnitude)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_exact() {
        for (bits, expected) in [
            (0x0000, 0.0),
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x3555, 1365.0 / 4096.0),
            (0x7bff, 65504.0),
            (0x0400, 1.0 / 16384.0),
            (0x0001, 1.0 / 16_777_216.0),
            (0x83ff, -1023.0 / 16_777_216.0),
            (0x7c00, f32::INFINITY),
            (0xfc00, f32::NEG_INFINITY),
        ] {
            assert_eq!(from_f16(u16::to_le_bytes(bits)), expected, "{bits:#x}");
        }
        assert!(from_f16(u16::to_le_bytes(0x8000)).is_sign_negative());
        assert!(from_f16(u16::to_le_bytes(0x7e01)).is_nan());
    }

    #[test]
    fn words_of_the_header_are_read_as_they_were_written() {
        let data = [0; 4];
        let view = TensorView::new(Dtype::F32, vec![1], &data).unwrap();
        let file = safetensors::serialize([("w", view)], None).unwrap();
        let odd = ["plain", "a \"quote\"", "back\\slash", "new\nline \u{1}", "Umlaut ä ∞ 🦀", ""];
        let words: BTreeMap<_, _> = odd.iter().map(|&word| (word.to_owned(), format!("{word}!"))).collect();
        let written = with_metadata(&file, &words);
        let (length, header) = SafeTensors::read_metadata(&written).unwrap();
        assert_eq!(header.metadata().clone().unwrap().into_iter().collect::<BTreeMap<_, _>>(), words);
        assert_eq!((length + 8) % 8, 0);
        assert_eq!(SafeTensors::deserialize(&written).unwrap().tensor("w").unwrap().data(), [0; 4]);
    }

    #[test]
    fn brain_floats_are_exact() {
        for (bits, expected) in [(0x3f80, 1.0), (0xc049, -3.140_625), (0x7f80, f32::INFINITY), (0x0001, 9.183_55e-41)] {
            assert_eq!(from_bf16(u16::to_le_bytes(bits)), expected, "{bits:#x}");
        }
        assert!(from_bf16(u16::to_le_bytes(0x7fc0)).is_nan());
    }
}
