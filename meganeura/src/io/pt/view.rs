//! Tensors as views of storages.

use std::hash::{Hash, Hasher};

use safetensors::Dtype;

use super::value::{self, Bytes, Global, Object, Place, Value, Values};
use super::work::Work;
use crate::error::{bail, shortened};
use crate::{Error, Result};

/// The maximum number of axes of a tensor, as in PyTorch.
const MOST_AXES: usize = 64;

/// The place of a tensor's numbers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Source {
    /// The storage with this key.
    Storage(Vec<u8>),
    /// Bytes in the pickle: those of a NumPy array.
    Pickle(Bytes),
}

/// A view of a storage, counted in elements.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct View {
    pub(super) dtype: Dtype,
    pub(super) source: Source,
    offset: usize,
    pub(super) shape: Vec<usize>,
    strides: Vec<usize>,
    /// The numbers are those of the storage with the other sign.
    is_negated: bool,
}

impl Hash for View {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // All but the type, which has no hash.
        let Self { dtype: _, source, offset, shape, strides, is_negated } = self;
        (source, offset, shape, strides, is_negated).hash(state);
    }
}

/// The reason that a tensor is not converted.
pub(super) enum Refusal {
    /// Its kind of tensor is not supported. Others of the file are.
    Unsupported(String),
    /// The file is damaged.
    Invalid(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Invalid(error)
    }
}

impl View {
    /// Checks the arguments of a call that rebuilds a tensor.
    pub(super) fn read(view: &value::View, values: &Values<'_>, work: &mut Work) -> Result<Self, Refusal> {
        let dtype = dtype(view, values)?;
        let (shape, strides) = (extents(view.shape, values, work)?, extents(view.strides, values, work)?);
        let (Ok(offset), Some(shape), Some(strides)) = (usize::try_from(view.offset), shape, strides) else {
            return Err(invalid());
        };
        if shape.len() != strides.len() {
            return Err(invalid());
        }
        let is_negated = is_negated(view, values, work)?;
        if is_negated && negate(dtype).is_none() {
            return Err(Refusal::Unsupported(format!("its numbers are negated, and {dtype} has no negative ones")));
        }
        work.spend(view.storage.key.len())?;
        let source = Source::Storage(values.text(view.storage.key).to_vec());
        Ok(Self { dtype, source, offset, shape, strides, is_negated })
    }

    /// Checks the values from which a NumPy array would be made.
    pub(super) fn of_array(object: &Object, values: &Values<'_>, work: &mut Work) -> Result<Self, Refusal> {
        let unsupported = || Refusal::Unsupported("a NumPy array of a form that is not supported".to_owned());
        let tuple = |place: Place| match values.get(place) {
            Value::Tuple(items) => Some(&items[..]),
            _ => None,
        };
        let [data, dtype, shape, order] = match (tuple(object.arguments), object.state.and_then(tuple)) {
            (_, Some(&[_, shape, dtype, order, data])) => [data, dtype, shape, order],
            (Some(&[data, dtype, shape, order]), None) => [data, dtype, shape, order],
            _ => return Err(unsupported()),
        };
        let source = match *values.get(data) {
            Value::Bytes(bytes) => bytes,
            // The bytes of Python 2.
            Value::Text(text) => Bytes::plain(text),
            _ => return Err(unsupported()),
        };
        let is_column_major = match *values.get(order) {
            Value::Bool(is_fortran) => is_fortran,
            Value::Text(text) => values.text(text) == b"F",
            _ => return Err(unsupported()),
        };
        let dtype = array_dtype(dtype, values)?;
        let Some(shape) = extents(shape, values, work)? else { return Err(invalid()) };
        let mut strides = vec![0; shape.len()];
        let mut stride = 1_usize;
        for at in 0..shape.len() {
            let axis = if is_column_major { at } else { shape.len() - 1 - at };
            strides[axis] = stride;
            stride = stride.saturating_mul(shape[axis]);
        }
        Ok(Self { dtype, source: Source::Pickle(source), offset: 0, shape, strides, is_negated: false })
    }

    /// The size of the elements in bytes.
    pub(super) fn width(&self) -> usize {
        self.dtype.bitsize() / 8
    }

    /// The size of all elements in bytes, unless it overflows.
    pub(super) fn bytes(&self) -> Option<usize> {
        if self.shape.contains(&0) {
            return Some(0);
        }
        self.shape.iter().try_fold(self.width(), |product, &extent| product.checked_mul(extent))
    }

    /// Appends the elements, row by row. There is room for them.
    pub(super) fn gather(&self, storage: &[u8], file: &mut Vec<u8>) -> Result<()> {
        let (width, begin) = (self.width(), file.len());
        if self.shape.contains(&0) {
            return Ok(());
        }
        let axes = || self.shape.iter().copied().zip(self.strides.iter().copied()).filter(|&(extent, _)| extent > 1);
        let reach =
            axes().try_fold(self.offset, |last, (extent, stride)| last.checked_add((extent - 1).checked_mul(stride)?));
        let fits =
            reach.and_then(|last| last.checked_add(1)?.checked_mul(width)).is_some_and(|end| end <= storage.len());
        if !fits {
            let key = match &self.source {
                Source::Storage(key) => format!(" `{}`", shortened(&String::from_utf8_lossy(key))),
                Source::Pickle(_) => String::new(),
            };
            bail!(Checkpoint, "it reaches beyond its storage{key} of {} bytes", storage.len());
        }
        // From the last axis: consecutive elements are one run.
        let (mut run, mut outer) = (1, axes().collect::<Vec<_>>());
        while let Some(&(extent, stride)) = outer.last()
            && stride == run
        {
            outer.pop();
            run *= extent;
        }
        let (mut index, mut at) = (vec![0; outer.len()], self.offset);
        'runs: loop {
            file.extend_from_slice(&storage[at * width..(at + run) * width]);
            for (index, &(extent, stride)) in index.iter_mut().zip(&outer).rev() {
                if *index + 1 < extent {
                    (*index, at) = (*index + 1, at + stride);
                    continue 'runs;
                }
                at -= *index * stride;
                *index = 0;
            }
            break;
        }
        if let Some(negate) = negate(self.dtype).filter(|_| self.is_negated) {
            file[begin..].chunks_exact_mut(width).for_each(negate);
        }
        Ok(())
    }
}

/// `true` for an object that would be a NumPy array.
pub(super) fn is_array(object: &Object, values: &Values<'_>) -> bool {
    object.class.is_some_and(|class| {
        values.is(class, &[b"numpy._core.multiarray", b"numpy.core.multiarray"], b"_reconstruct")
            || values.is(class, &[b"numpy._core.numeric", b"numpy.core.numeric"], b"_frombuffer")
    })
}

/// The element type of an array: `numpy.dtype('f4', …)`, whose state begins with a number and the order of bytes.
fn array_dtype(place: Place, values: &Values<'_>) -> Result<Dtype, Refusal> {
    let Value::Object(object) = values.get(place) else { return Err(invalid()) };
    let first = |place: Place, at: usize| match values.get(place) {
        Value::Tuple(items) => match *values.get(*items.get(at)?) {
            Value::Text(text) => Some(values.text(text)),
            _ => None,
        },
        _ => None,
    };
    let Some(name) = first(object.arguments, 0) else { return Err(invalid()) };
    let order = object.state.and_then(|state| first(state, 1)).unwrap_or(b"|");
    let dtype = match name {
        b"f8" => Dtype::F64,
        b"f4" => Dtype::F32,
        b"f2" => Dtype::F16,
        b"i8" => Dtype::I64,
        b"i4" => Dtype::I32,
        b"i2" => Dtype::I16,
        b"i1" => Dtype::I8,
        b"u8" => Dtype::U64,
        b"u4" => Dtype::U32,
        b"u2" => Dtype::U16,
        b"u1" => Dtype::U8,
        b"b1" => Dtype::BOOL,
        other => {
            let other = String::from_utf8_lossy(&other[..other.len().min(256)]);
            return Err(Refusal::Unsupported(format!("elements of a NumPy array of type `{other}` are not read")));
        }
    };
    if order == b">" && dtype.bitsize() > 8 {
        return Err(Refusal::Unsupported("a NumPy array with the highest byte of its numbers first".to_owned()));
    }
    Ok(dtype)
}

/// The size in bytes of the elements of a storage of this class.
pub(super) fn width(class: &[u8]) -> Option<usize> {
    Some(match class {
        b"ComplexDoubleStorage" => 16,
        b"DoubleStorage" | b"LongStorage" | b"ComplexFloatStorage" => 8,
        b"FloatStorage" | b"IntStorage" | b"QInt32Storage" | b"ComplexHalfStorage" => 4,
        b"HalfStorage" | b"BFloat16Storage" | b"ShortStorage" => 2,
        b"CharStorage" | b"ByteStorage" | b"BoolStorage" | b"UntypedStorage" | b"QInt8Storage" | b"QUInt8Storage"
        | b"QUInt4x2Storage" | b"QUInt2x4Storage" => 1,
        _ => return None,
    })
}

fn invalid() -> Refusal {
    Refusal::Invalid(Error::new(crate::ErrorKind::Checkpoint, "the pickle describes a tensor with invalid extents"))
}

/// The extents or strides in a tuple; `None` if it has anything else.
fn extents(place: Place, values: &Values<'_>, work: &mut Work) -> Result<Option<Vec<usize>>> {
    let Value::Tuple(items) = values.get(place) else { return Ok(None) };
    if items.len() > MOST_AXES {
        bail!(Checkpoint, "a tensor of {} axes, {MOST_AXES} are the most", items.len());
    }
    work.spend(items.len())?;
    let number = |&place: &Place| match *values.get(place) {
        Value::Int(number) => usize::try_from(number).ok(),
        _ => None,
    };
    Ok(items.iter().map(number).collect())
}

/// The type of the elements: the storage's, or that of the call if the storage has none.
fn dtype(view: &value::View, values: &Values<'_>) -> Result<Dtype, Refusal> {
    let text = |global: Global| {
        let name = values.text(global.name);
        String::from_utf8_lossy(&name[..name.len().min(256)])
    };
    let class = text(view.storage.class);
    let Some(place) = view.dtype else {
        return Ok(match &*class {
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
            other => return Err(Refusal::Unsupported(format!("elements of a `{other}` are not read"))),
        });
    };
    let &Value::Global(global) = values.get(place) else { return Err(invalid()) };
    Ok(match &*text(global) {
        "float64" => Dtype::F64,
        "float32" => Dtype::F32,
        "float16" => Dtype::F16,
        "bfloat16" => Dtype::BF16,
        "float8_e4m3fn" => Dtype::F8_E4M3,
        "float8_e5m2" => Dtype::F8_E5M2,
        "float8_e4m3fnuz" => Dtype::F8_E4M3FNUZ,
        "float8_e5m2fnuz" => Dtype::F8_E5M2FNUZ,
        "float8_e8m0fnu" => Dtype::F8_E8M0,
        "int64" => Dtype::I64,
        "int32" => Dtype::I32,
        "int16" => Dtype::I16,
        "int8" => Dtype::I8,
        "uint64" => Dtype::U64,
        "uint32" => Dtype::U32,
        "uint16" => Dtype::U16,
        "uint8" => Dtype::U8,
        "bool" => Dtype::BOOL,
        other => return Err(Refusal::Unsupported(format!("elements of type `torch.{other}` are not read"))),
    })
}

/// `true` if the flag `neg` is set. PyTorch negates lazily, and saves the numbers as they were.
fn is_negated(view: &value::View, values: &Values<'_>, work: &mut Work) -> Result<bool, Refusal> {
    let flags = match view.metadata.map(|place| values.get(place)) {
        None | Some(Value::None) => return Ok(false),
        Some(Value::Dict(flags)) => flags,
        Some(_) => return Err(Refusal::Unsupported("its metadata is no dictionary".to_owned())),
    };
    let mut is_negated = false;
    for &(key, value) in flags {
        work.spend(1)?;
        let name = match *values.get(key) {
            Value::Text(text) => values.text(text),
            _ => b"a flag without a name",
        };
        match (name, values.get(value)) {
            (b"neg", &Value::Bool(value)) => is_negated = value,
            (_, Value::Bool(false) | Value::None) => {}
            _ => {
                let name = String::from_utf8_lossy(&name[..name.len().min(256)]);
                return Err(Refusal::Unsupported(format!("its flag `{name}` is not supported")));
            }
        }
    }
    Ok(is_negated)
}

/// Negates an element of a type in place; `None` if the type has no negative numbers.
fn negate(dtype: Dtype) -> Option<fn(&mut [u8])> {
    Some(match dtype {
        Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::F8_E4M3 | Dtype::F8_E5M2 => |element| {
            if let Some(last) = element.last_mut() {
                *last ^= 0x80;
            }
        },
        // As PyTorch: two's complement, also for bytes, which wrap.
        Dtype::I64 | Dtype::I32 | Dtype::I16 | Dtype::I8 | Dtype::U8 => |element| {
            let mut carry = true;
            for byte in element {
                (*byte, carry) = (!*byte).overflowing_add(carry.into());
            }
        },
        _ => return None,
    })
}
