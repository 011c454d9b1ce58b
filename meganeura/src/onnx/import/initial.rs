//! Constants of a file: small ones and integers are known on the host, large floats are on the device.

use std::sync::Arc;

use super::element::Element;
use super::texts::Texts;
use super::value::Array;
use crate::error::bail;
use crate::host::HostBuffer;
use crate::onnx::proto;
use crate::onnx::read::{self, Beside, Numbers};
use crate::{Device, Result, Shape, Tensor};

/// Constants with at most this many elements are also known on the host.
pub(super) const SMALL: usize = 1 << 12;

/// The initial state of a value.
#[derive(Clone)]
pub(super) enum Initial {
    Known(Arc<Array>),
    Tensor(Tensor, Element),
}

/// Where a tensor in another file is, and its type: tensors that agree in it are one.
type External = (Vec<(String, String)>, i32, Vec<i64>);

/// The place of a tensor that is in another file.
pub(super) fn external(tensor: &proto::Tensor) -> Option<External> {
    let entry = |entry: &proto::Entry| (entry.key.clone(), entry.value.clone());
    let is_external = tensor.data_location == proto::EXTERNAL;
    is_external.then(|| (tensor.external_data.iter().map(entry).collect(), tensor.data_type, tensor.dims.clone()))
}

impl Initial {
    pub(super) fn of(
        device: &Device,
        tensor: &proto::Tensor,
        beside: &mut Beside<'_>,
        texts: &mut Texts,
    ) -> Result<Self> {
        let (dims, element) = (read::dims(tensor)?, Element::of_tensor(tensor)?);
        let numbers = read::numbers(tensor, beside)?;
        if numbers.len() <= SMALL || matches!(numbers, Numbers::Ints(_) | Numbers::Texts(_)) {
            return Ok(Self::Known(Arc::new(Array::new(dims, element, numbers, texts))));
        }
        let Some(shape) = Shape::try_new(&dims) else { bail!(Checkpoint, "{} axes are too many", dims.len()) };
        let host = match numbers {
            Numbers::F32(numbers) => HostBuffer::F32(numbers),
            Numbers::F64(numbers) => HostBuffer::F64(numbers),
            Numbers::Ints(_) | Numbers::Texts(_) => unreachable!("they are known"),
        };
        let host = host.try_cast(device.precision().dtype())?;
        Ok(Self::Tensor(Tensor::from_host(device, shape, host)?, element))
    }

    pub(super) fn element(&self) -> Element {
        match self {
            Self::Known(array) => array.element,
            Self::Tensor(_, element) => *element,
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Known(array) => array.len(),
            Self::Tensor(tensor, _) => tensor.shape().elements(),
        }
    }
}
