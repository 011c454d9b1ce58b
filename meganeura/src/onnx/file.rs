//! A model as the bytes of a file, with its weights inside or in a separate file.

use std::collections::BTreeSet;
use std::fmt;
#[cfg(not(target_family = "wasm"))]
use std::path::Path;

use prost::Message;
use prost::bytes::Bytes;

use super::proto;
use crate::Result;
use crate::error::{bail, here};
use crate::host::{HostBuffer, reserve};
#[cfg(not(target_family = "wasm"))]
use crate::io::{disk, io_error};

/// The most bytes in a protocol buffer message.
const LARGEST: usize = i32::MAX as usize;

/// Weights of fewer bytes stay inside the model.
#[cfg(not(target_family = "wasm"))]
const SMALL: usize = 1 << 10;

/// The alignment in bytes of weights in a separate file: a page, so that they can be memory-mapped.
#[cfg(not(target_family = "wasm"))]
const PAGE: usize = 1 << 12;

/// An ONNX model to be saved: see [`export`](super::export()).
#[derive(Clone)]
pub struct Onnx {
    /// The model, without the numbers of `weights`.
    model: proto::Model,
    /// The numbers of initializers, by index.
    weights: Vec<(usize, Bytes)>,
}

/// Numbers in the byte order of the file; indices become `int64`.
pub(super) fn bytes(host: HostBuffer) -> Result<Bytes> {
    let mut bytes = Vec::new();
    match host {
        HostBuffer::U32(data) => {
            reserve(&mut bytes, data.len().saturating_mul(size_of::<i64>()))?;
            data.iter().for_each(|&index| bytes.extend_from_slice(&i64::from(index).to_le_bytes()));
        }
        floats => {
            reserve(&mut bytes, floats.bytes().len())?;
            bytes.extend_from_slice(floats.bytes());
        }
    }
    Ok(Bytes::from(bytes))
}

impl Onnx {
    pub(super) fn new(model: proto::Model, weights: Vec<(usize, Bytes)>) -> Self {
        Self { model, weights }
    }

    fn graph(&mut self) -> &mut proto::Graph {
        self.model.graph.as_mut().expect("what is exported has a graph")
    }

    /// The names of the operators in the file.
    #[doc(hidden)]
    pub fn operators(&self) -> BTreeSet<&str> {
        self.model.graph.iter().flat_map(|graph| &graph.node).map(|node| &*node.op_type).collect()
    }

    /// The bytes of the file that [`save`](Self::save) writes.
    ///
    /// # Errors
    ///
    /// [`Argument`](crate::ErrorKind::Argument) if there are more than 2 GiB, the limit of the format.
    #[track_caller]
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        here(|| {
            let mut whole = self.clone();
            for (at, bytes) in std::mem::take(&mut whole.weights) {
                whole.graph().initializer[at].raw_data = bytes;
            }
            encoded(&whole.model)
        })
    }

    /// Writes a single file with model and weights. The name appears only when the file is complete.
    ///
    /// # Errors
    ///
    /// Fails like [`to_bytes`](Self::to_bytes), and if the file cannot be written.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        here(|| write(path.as_ref(), &self.to_bytes()?))
    }

    /// Writes the weights to a separate file, for models of more than 2 GiB.
    ///
    /// The weights go to `name.onnx.data` for `name.onnx`, then the model is written, which refers to them by that
    /// name. The two must stay in one folder. Each name appears only when its file is complete. If a model of that name
    /// exists already, do not read it in the meantime.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be written, or if the file name is not valid Unicode.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    pub fn save_with_weights_beside(&self, path: impl AsRef<Path>) -> Result<()> {
        here(|| {
            let path = path.as_ref();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                bail!(
                    Argument,
                    "{} is not a file name in Unicode, which the model needs to refer to its weights",
                    path.display()
                );
            };
            let location = format!("{name}.data");
            let mut whole = self.clone();
            let (mut data, weights) = (Vec::new(), std::mem::take(&mut whole.weights));
            let sizes = weights.iter().filter(|(_, bytes)| bytes.len() >= SMALL).map(|(_, bytes)| bytes.len());
            reserve(&mut data, sizes.map(|size| size.next_multiple_of(PAGE)).sum())?;
            for (at, bytes) in weights {
                let tensor = &mut whole.graph().initializer[at];
                if bytes.len() < SMALL {
                    tensor.raw_data = bytes;
                    continue;
                }
                data.resize(data.len().next_multiple_of(PAGE), 0);
                let entry = |key: &str, value: String| proto::Entry { key: key.to_owned(), value };
                tensor.external_data = vec![
                    entry("location", location.clone()),
                    entry("offset", data.len().to_string()),
                    entry("length", bytes.len().to_string()),
                ];
                tensor.data_location = proto::EXTERNAL;
                data.extend_from_slice(&bytes);
            }
            write(&path.with_file_name(&location), &data)?;
            write(path, &encoded(&whole.model)?)
        })
    }
}

fn encoded(model: &proto::Model) -> Result<Vec<u8>> {
    let length = model.encoded_len();
    if length > LARGEST {
        bail!(
            Argument,
            "the model takes {length} bytes, and an ONNX file holds at most {LARGEST}; use `save_with_weights_beside`"
        );
    }
    let mut bytes = Vec::new();
    reserve(&mut bytes, length)?;
    model.encode_raw(&mut bytes);
    Ok(bytes)
}

#[cfg(not(target_family = "wasm"))]
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    disk::replace_file(path, bytes).map_err(|error| io_error("written", path, error))
}

impl fmt::Debug for Onnx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let graph = self.model.graph.as_ref();
        let nodes = graph.map_or(0, |graph| graph.node.len());
        let bytes: usize = self.weights.iter().map(|(_, bytes)| bytes.len()).sum();
        write!(f, "Onnx({nodes} nodes, {} weights of {bytes} bytes)", self.weights.len())
    }
}
