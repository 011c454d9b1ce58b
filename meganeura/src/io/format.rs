//! Conversion of tensors to and from safetensors.
//!
//! Files are little-endian on every machine.

use std::collections::BTreeMap;

use safetensors::tensor::{Metadata, TensorInfo, TensorView};
use safetensors::{Dtype, SafeTensorError, SafeTensors};

use super::narrow::{Narrow, from_bf16, from_f16};
use super::tensors::Tensors;
use crate::error::{bail, shortened};
use crate::host::{HostBuffer, reserve, try_collect};
use crate::{DType, Device, Error, ErrorKind, MAX_RANK, Result, Shape, Tensor};

/// The maximum size of a header. The format defines it, and its readers enforce it.
pub(super) const MOST_HEADER: usize = 100_000_000;

/// The start of a word of the header that says why a tensor of the original file is not in this one. Its key is the
/// tensor's name.
pub(super) const NOT_CONVERTED: &str = "not converted: ";

/// A file with these tensors. Each is joined from parts of one type; tied tensors have aliases, each with the name
/// under which the tensor is stored.
///
/// Copies one tensor at a time, into a file that has its full length from the start.
pub(super) async fn write(
    tensors: BTreeMap<String, Vec<Tensor>>,
    aliases: BTreeMap<String, String>,
) -> Result<Vec<u8>> {
    let mut tensors: Vec<_> = tensors.into_iter().map(|(name, parts)| (stored_as(&parts), name, parts)).collect();
    // The order of the format's own library, whose files start with the widest elements; the stable sort keeps the
    // order of names.
    tensors.sort_by(|(a, ..), (b, ..)| b.cmp(a));
    let mut end = 0;
    let mut infos = Vec::new();
    for (dtype, name, parts) in &tensors {
        let start = end;
        end += parts.iter().map(|part| part.ty().bytes()).sum::<usize>();
        let mut shape = parts.first().map(|part| part.shape().dims().to_vec()).unwrap_or_default();
        if let Some(first) = shape.first_mut() {
            *first *= parts.len();
        }
        infos.push((name.clone(), TensorInfo { dtype: *dtype, shape, data_offsets: (start, end) }));
    }
    let header = header(infos, &aliases)?;
    let mut file = Vec::new();
    reserve(&mut file, size_of::<u64>() + header.len() + end)?;
    file.extend((header.len() as u64).to_le_bytes());
    file.extend(header);
    for part in tensors.iter().flat_map(|(.., parts)| parts) {
        match part.to_host().await? {
            HostBuffer::F32(part) => append(&mut file, part, f32::to_le_bytes),
            HostBuffer::F64(part) => append(&mut file, part, f64::to_le_bytes),
            HostBuffer::U32(part) => append(&mut file, part, u32::to_le_bytes),
            HostBuffer::I32(part) => append(&mut file, part, i32::to_le_bytes),
            HostBuffer::I64(part) => append(&mut file, part, i64::to_le_bytes),
        }
    }
    Ok(file)
}

/// A tensor of a file in another format.
pub(super) struct Foreign<T> {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// The number of bytes that its numbers have in safetensors.
    pub(super) size: usize,
    pub(super) source: T,
}

/// A file with these tensors, whose numbers `append` adds to it, and these words.
pub(super) fn converted<T>(
    mut tensors: Vec<Foreign<T>>,
    words: &BTreeMap<String, String>,
    mut append: impl FnMut(&Foreign<T>, &mut Vec<u8>) -> Result<()>,
) -> Result<Vec<u8>> {
    // Numbers start at multiples of their size.
    tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.dtype));
    let (mut infos, mut end) = (Vec::new(), 0_usize);
    for Foreign { name, dtype, shape, size, .. } in &tensors {
        let start = end;
        end = end.saturating_add(*size);
        infos.push((name.clone(), TensorInfo { dtype: *dtype, shape: shape.clone(), data_offsets: (start, end) }));
    }
    let header = header(infos, words)?;
    let mut file = Vec::new();
    reserve(&mut file, size_of::<u64>().saturating_add(header.len()).saturating_add(end))?;
    file.extend((header.len() as u64).to_le_bytes());
    file.extend(header);
    for tensor in &tensors {
        append(tensor, &mut file).map_err(|error| error.context(shortened(&tensor.name)))?;
    }
    Ok(file)
}

/// The element type of these tensors in a file.
fn stored_as(parts: &[Tensor]) -> Dtype {
    match parts.first().map_or(DType::F32, |part| part.ty().dtype) {
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::U32 => Dtype::U32,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        other => unreachable!("tensors of {other} cannot be made"),
    }
}

fn append<T, const N: usize>(bytes: &mut Vec<u8>, numbers: Vec<T>, le: impl Fn(T) -> [u8; N]) {
    bytes.extend(numbers.into_iter().flat_map(le));
}

/// A header with these words, in order. The crate would shuffle them, so that a model saved twice would not give the
/// same bytes.
fn header(infos: Vec<(String, TensorInfo)>, words: &BTreeMap<String, String>) -> Result<Vec<u8>> {
    let count = infos.len();
    let tensors = Metadata::new(None, infos).map_err(malformed)?;
    let text = serde_json::to_string(&tensors).map_err(|error| malformed(error.into()))?;
    let mut header = if words.is_empty() { text.into_bytes() } else { with_words(&text, words) };
    // Numbers start at multiples of 8.
    header.resize(header.len().next_multiple_of(8), b' ');
    if header.len() > MOST_HEADER {
        bail!(
            Checkpoint,
            "the names, types and shapes of the tensors ({count} of them) take more than {} MB, which is the most that the \
             header of a safetensors file may have; shorter names take less, and so do parts of the model in files of their own",
            MOST_HEADER / 1_000_000
        );
    }
    Ok(header)
}

/// `{"name":…}` as `{"__metadata__":{…},"name":…}`.
fn with_words(header: &str, words: &BTreeMap<String, String>) -> Vec<u8> {
    let entries: Vec<_> = words.iter().map(|(key, value)| format!("{}:{}", quoted(key), quoted(value))).collect();
    let comma = if header[1..].starts_with('}') { "" } else { "," };
    format!("{{\"__metadata__\":{{{}}}{comma}{}", entries.join(","), &header[1..]).into_bytes()
}

/// A text as a JSON string.
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

/// The contents of a file: its tensors, on `device`, and the words of its header.
pub(super) fn read_all(bytes: &[u8], device: &Device) -> Result<(Tensors, BTreeMap<String, String>)> {
    let file = parse(bytes)?;
    let words: BTreeMap<_, _> = metadata(bytes)?.collect();
    let (mut tensors, mut refused) = (BTreeMap::new(), not_converted(&words));
    for (name, view) in file.iter() {
        match read_one(&view, device) {
            Ok(tensor) => drop(tensors.insert(name.to_owned(), tensor)),
            Err(error) if error.kind() == ErrorKind::Checkpoint => {
                refused.insert(name.to_owned(), error.message().to_owned());
            }
            Err(error) => return Err(error.context(name)),
        }
    }
    Ok((Tensors::new(tensors, refused), words))
}

/// A stored tensor by itself: floats in the device's precision, or integers.
fn read_one(view: &TensorView<'_>, device: &Device) -> Result<Tensor> {
    if view.shape().len() > MAX_RANK {
        bail!(Checkpoint, "it has {} axes, {MAX_RANK} are the most", view.shape().len());
    }
    if view.shape().contains(&0) {
        bail!(Checkpoint, "it has no elements: {:?}", view.shape());
    }
    let shape = Shape::new(view.shape());
    let dtype = match view.dtype() {
        Dtype::I8 | Dtype::I16 | Dtype::I32 => DType::I32,
        Dtype::I64 | Dtype::U64 => DType::I64,
        _ => DType::U32,
    };
    integers(view, dtype, device, shape).unwrap_or_else(|| floats(view, device, shape))
}

/// The reasons that tensors of the original file are not in this one, by name.
pub(super) fn not_converted(words: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let reasons =
        words.iter().filter_map(|(name, why)| Some((name.clone(), why.strip_prefix(NOT_CONVERTED)?.to_owned())));
    reasons.collect()
}

/// The words of the header of a file.
pub(super) fn words(bytes: &[u8]) -> Result<BTreeMap<String, String>> {
    Ok(metadata(bytes)?.collect())
}

/// The aliases of tied tensors, each with the name under which the tensor is stored.
pub(super) fn aliases(bytes: &[u8], file: &SafeTensors<'_>) -> Result<BTreeMap<String, String>> {
    // Other programs write other words there.
    Ok(metadata(bytes)?.filter(|(alias, name)| file.tensor(alias).is_err() && file.tensor(name).is_ok()).collect())
}

/// The tensors of a file. The header is checked against the length: offsets neither overlap nor leave gaps.
pub(super) fn parse(bytes: &[u8]) -> Result<SafeTensors<'_>> {
    SafeTensors::deserialize(bytes).map_err(malformed)
}

pub(super) fn malformed(error: SafeTensorError) -> Error {
    use SafeTensorError::{HeaderTooLarge, HeaderTooSmall, InvalidHeader, InvalidHeaderLength};
    let is_foreign = matches!(error, HeaderTooLarge | HeaderTooSmall | InvalidHeader(_) | InvalidHeaderLength);
    let what = if is_foreign { "not a safetensors file, or not all of one" } else { "not a complete safetensors file" };
    Error::new(ErrorKind::Checkpoint, format!("{what}: {error}")).caused_by(error)
}

/// A stored tensor that can replace `current`, on its device.
pub(super) fn read(stored: &TensorView<'_>, current: &Tensor) -> Result<Tensor> {
    if stored.shape() != current.shape().dims() {
        bail!(Checkpoint, "{:?} in the file, {} in the model", stored.shape(), current.shape());
    }
    let shape: Shape = current.shape();
    if !current.ty().dtype.is_float() {
        // PyTorch's indices have 64 bits.
        return integers(stored, current.ty().dtype, current.device(), shape).unwrap_or_else(|| {
            bail!(Checkpoint, "{} in the file, {} in the model", stored.dtype(), current.ty().dtype);
        });
    }
    floats(stored, current.device(), shape)
}

fn floats(stored: &TensorView<'_>, device: &Device, shape: Shape) -> Result<Tensor> {
    let data = stored.data();
    let host = match stored.dtype() {
        Dtype::F32 => HostBuffer::F32(numbers(data, f32::from_le_bytes)?),
        Dtype::F64 => HostBuffer::F64(numbers(data, f64::from_le_bytes)?),
        Dtype::F16 => HostBuffer::F32(numbers(data, from_f16)?),
        Dtype::BF16 => HostBuffer::F32(numbers(data, from_bf16)?),
        Dtype::F8_E4M3 => HostBuffer::F32(numbers(data, |[byte]| Narrow::E4M3Fn.decode(byte))?),
        Dtype::F8_E5M2 => HostBuffer::F32(numbers(data, |[byte]| Narrow::E5M2.decode(byte))?),
        Dtype::F8_E4M3FNUZ => HostBuffer::F32(numbers(data, |[byte]| Narrow::E4M3Fnuz.decode(byte))?),
        Dtype::F8_E5M2FNUZ => HostBuffer::F32(numbers(data, |[byte]| Narrow::E5M2Fnuz.decode(byte))?),
        Dtype::F8_E8M0 => HostBuffer::F32(numbers(data, |[byte]| Narrow::E8M0.decode(byte))?),
        other => bail!(Checkpoint, "{other} in the file; floats of 64, 32, 16 and 8 bits and BF16 are read"),
    };
    Tensor::from_host(device, shape, host.try_cast(device.precision().dtype())?)
}

/// A stored tensor of integers, on a device, as the device's integers of a type; `None` if its elements are others.
fn integers(stored: &TensorView<'_>, dtype: DType, device: &Device, shape: Shape) -> Option<Result<Tensor>> {
    Some(match dtype {
        DType::I32 => narrowed(stored)?.and_then(|data| Tensor::from_host(device, shape, HostBuffer::I32(data))),
        DType::I64 => narrowed(stored)?.and_then(|data| Tensor::from_host(device, shape, HostBuffer::I64(data))),
        _ => narrowed(stored)?.and_then(|data| Tensor::from_host(device, shape, HostBuffer::U32(data))),
    })
}

/// The integers of a stored tensor, if all of them fit; `None` if its elements are others.
fn narrowed<T: TryFrom<i128> + Bounded>(stored: &TensorView<'_>) -> Option<Result<Vec<T>>> {
    fn all<T: TryFrom<i128> + Bounded, U: Into<i128>, const N: usize>(
        bytes: &[u8],
        number: impl Fn([u8; N]) -> U,
    ) -> Result<Vec<T>> {
        let (chunks, _) = bytes.as_chunks();
        let mut data = Vec::new();
        reserve(&mut data, chunks.len())?;
        for &chunk in chunks {
            let number: i128 = number(chunk).into();
            let Ok(fitting) = T::try_from(number) else {
                let beyond =
                    if number < T::LEAST { format!("below {}", T::LEAST) } else { format!("above {}", T::MOST) };
                bail!(Checkpoint, "{number} is {beyond}; it is read as {}", std::any::type_name::<T>());
            };
            data.push(fitting);
        }
        Ok(data)
    }
    let data = stored.data();
    Some(match stored.dtype() {
        Dtype::BOOL | Dtype::U8 => all(data, u8::from_le_bytes),
        Dtype::I8 => all(data, i8::from_le_bytes),
        Dtype::U16 => all(data, u16::from_le_bytes),
        Dtype::I16 => all(data, i16::from_le_bytes),
        Dtype::U32 => all(data, u32::from_le_bytes),
        Dtype::I32 => all(data, i32::from_le_bytes),
        Dtype::U64 => all(data, u64::from_le_bytes),
        Dtype::I64 => all(data, i64::from_le_bytes),
        _ => return None,
    })
}

/// The least and the greatest integer of a type.
trait Bounded {
    const LEAST: i128;
    const MOST: i128;
}

macro_rules! bounded {
    ($($T:ident)+) => {
        $(impl Bounded for $T {
            const LEAST: i128 = $T::MIN as i128;
            const MOST: i128 = $T::MAX as i128;
        })+
    };
}

bounded!(u32 i32 i64);

/// Each run of `N` bytes as a number.
fn numbers<T, const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> T) -> Result<Vec<T>> {
    let (chunks, _) = bytes.as_chunks();
    try_collect(chunks.iter().map(|&chunk| number(chunk)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_is_exact() {
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

    /// For all types, files equal those of the format's own library byte for byte. Each allocation that fails is an
    /// error.
    #[test]
    fn files_are_those_of_the_library() {
        let device = Device::cpu_with(crate::Precision::Double);
        let tensors = [
            ("b", Tensor::indices(&device, [3], &[1, 2, 3]).unwrap()),
            ("c", Tensor::from_f64(&device, [2, 1], &[0.5, f64::NAN]).unwrap()),
            ("a", Tensor::full(&Device::cpu(), [], 7.0).unwrap()),
            ("e", Tensor::from_i32(&device, [2], &[i32::MIN, 7]).unwrap()),
            ("f", Tensor::from_i64(&device, [2], &[i64::MIN, (1 << 53) + 1]).unwrap()),
            ("d \"quoted\"", Tensor::full(&Device::cpu(), [1, 5], -0.0).unwrap()),
        ];
        let views = tensors.each_ref().map(|(name, tensor)| {
            let bytes = match tensor.to_host_here().unwrap() {
                HostBuffer::F32(x) => x.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<_>>(),
                HostBuffer::F64(x) => x.into_iter().flat_map(f64::to_le_bytes).collect(),
                HostBuffer::U32(x) => x.into_iter().flat_map(u32::to_le_bytes).collect(),
                HostBuffer::I32(x) => x.into_iter().flat_map(i32::to_le_bytes).collect(),
                HostBuffer::I64(x) => x.into_iter().flat_map(i64::to_le_bytes).collect(),
            };
            (*name, stored_as(std::slice::from_ref(tensor)), tensor.shape().dims().to_vec(), bytes)
        });
        let views = views
            .each_ref()
            .map(|(name, dtype, shape, bytes)| (*name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
        let tensors: BTreeMap<_, _> = tensors.map(|(name, tensor)| (name.to_owned(), vec![tensor])).into();
        let write = || crate::wait::block_on(write(tensors.clone(), BTreeMap::new()));
        assert_eq!(write().unwrap(), safetensors::serialize(views, None).unwrap());
        let mut failed = 0;
        while let (result, true) = crate::host::shortage::at(failed, write) {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::OutOfMemory);
            failed += 1;
        }
        assert_eq!(failed, 7, "the file, and each tensor");
    }

    #[test]
    fn words_of_the_header_are_read_as_they_were_written() {
        let odd = ["plain", "a \"quote\"", "back\\slash", "new\nline \u{1}", "Umlaut ä ∞ 🦀", ""];
        let words: BTreeMap<_, _> = odd.iter().map(|&word| (word.to_owned(), format!("{word}!"))).collect();
        let w = Tensor::full(&Device::cpu(), [1], 0.0).unwrap();
        let written = crate::wait::block_on(write([("w".to_owned(), vec![w])].into(), words.clone())).unwrap();
        let (length, header) = SafeTensors::read_metadata(&written).unwrap();
        assert_eq!(header.metadata().clone().unwrap().into_iter().collect::<BTreeMap<_, _>>(), words);
        assert_eq!((length + 8) % 8, 0);
        assert_eq!(SafeTensors::deserialize(&written).unwrap().tensor("w").unwrap().data(), [0; 4]);
    }

    #[test]
    fn integers_of_any_width_become_indices_if_they_fit() {
        let current = Tensor::indices(&Device::cpu(), [2], &[7, 7]).unwrap();
        let load = |dtype, data: &[u8]| read(&TensorView::new(dtype, vec![2], data).unwrap(), &current);
        let longs = |numbers: [i64; 2]| numbers.map(i64::to_le_bytes).concat();
        assert_eq!(load(Dtype::I64, &longs([0, 4_294_967_295])).unwrap().to_u32_vec().unwrap(), [0, u32::MAX]);
        assert_eq!(load(Dtype::I32, &[1, 0, 0, 0, 2, 0, 0, 0]).unwrap().to_u32_vec().unwrap(), [1, 2]);
        assert_eq!(load(Dtype::U8, &[255, 0]).unwrap().to_u32_vec().unwrap(), [255, 0]);
        for (dtype, data, part) in [
            (Dtype::I64, longs([0, -1]), "-1 is below 0"),
            (Dtype::I64, longs([0, 1 << 32]), "4294967296 is above"),
            (Dtype::F32, vec![0; 8], "F32 in the file, u32 in the model"),
        ] {
            let error = load(dtype, &data).unwrap_err();
            assert!(error.kind() == ErrorKind::Checkpoint && error.message().contains(part), "{error}");
        }
    }
}
