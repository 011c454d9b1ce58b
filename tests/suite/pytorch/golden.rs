//! The files with PyTorch's numbers; `make_golden.py` describes them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use libtest_mimic::Failed;
use meganeura::{Device, Result, Shape, Tensor};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use super::Numbers;

/// Numbers of any type, as `f64`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Array {
    pub(super) shape: Vec<usize>,
    pub(super) data: Vec<f64>,
    is_integer: bool,
}

impl Array {
    pub(super) fn read(tensor: &Tensor) -> Result<Self> {
        Ok(Self { shape: tensor.shape().dims().to_vec(), data: tensor.to_f64_vec()?, is_integer: false })
    }

    pub(super) fn decode(view: &TensorView<'_>) -> Result<Self, Failed> {
        let bytes = view.data();
        let data = match view.dtype() {
            Dtype::F64 => bytes.as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect(),
            Dtype::F32 => bytes.as_chunks().0.iter().map(|&bytes| f64::from(f32::from_le_bytes(bytes))).collect(),
            Dtype::I64 => bytes.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes) as f64).collect(),
            other => return Err(format!("{other} in a golden file").into()),
        };
        Ok(Self { shape: view.shape().to_vec(), data, is_integer: view.dtype() == Dtype::I64 })
    }
}

/// A case of a file.
pub(super) struct Golden {
    pub(super) name: String,
    /// By the keys after the number.
    tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
}

/// A file beside the script.
pub(super) fn path_of(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("pytorch").join(format!("{file}.safetensors"))
}

/// All cases of a file.
pub(super) fn cases_of(file: &str) -> Result<Vec<Golden>, Failed> {
    let bytes = std::fs::read(path_of(file))?;
    let (_, header) = SafeTensors::read_metadata(&bytes)?;
    let names = header.metadata().as_ref().and_then(|words| words.get("cases")).ok_or("the cases have no names")?;
    let names: Vec<_> = names.lines().collect();
    let mut cases: BTreeMap<String, Golden> = BTreeMap::new();
    for (key, view) in SafeTensors::deserialize(&bytes)?.iter() {
        let (number, key) = key.split_once('.').ok_or_else(|| format!("{key} is of no case"))?;
        let name = names.get(number.parse::<usize>()?).ok_or_else(|| format!("case {number} has no name"))?;
        let new = || Golden { name: (*name).to_owned(), tensors: BTreeMap::new() };
        let case = cases.entry(number.to_owned()).or_insert_with(new);
        case.tensors.insert(key.to_owned(), (view.dtype(), view.shape().to_vec(), view.data().to_vec()));
    }
    Ok(cases.into_values().collect())
}

/// The case of this name.
pub(super) fn case_of(file: &str, name: &str) -> Result<Golden, Failed> {
    let missing = || Failed::from(format!("no case of {file}.safetensors has this name: run make_golden.py"));
    let mut case = cases_of(file)?.into_iter().find(|case| case.name == name).ok_or_else(missing)?;
    if file == "models" {
        // The parameters of a model are in a separate file, as users have them.
        let bytes = std::fs::read(path_of(name.trim_end_matches(".eval()")))?;
        let state = SafeTensors::deserialize(&bytes)?;
        let own = state
            .iter()
            .map(|(key, view)| (format!("state.{key}"), (view.dtype(), view.shape().to_vec(), view.data().to_vec())));
        case.tensors.extend(own);
    }
    Ok(case)
}

impl Golden {
    pub(super) fn has(&self, key: &str) -> bool {
        self.tensors.contains_key(key)
    }

    /// The bytes of a file with the module's `state_dict`, under its keys.
    pub(super) fn state(&self) -> Result<Vec<u8>, Failed> {
        let mut views = Vec::new();
        for (key, (dtype, shape, data)) in &self.tensors {
            if let Some(key) = key.strip_prefix("state.") {
                views.push((key, TensorView::new(*dtype, shape.clone(), data)?));
            }
        }
        Ok(safetensors::serialize(views, None)?)
    }

    /// The names of the inputs.
    pub(super) fn inputs(&self) -> impl Iterator<Item = String> {
        self.tensors.keys().filter_map(|key| key.strip_prefix("input.")).map(str::to_owned)
    }

    pub(super) fn array(&self, key: &str) -> Result<Array, Failed> {
        let (dtype, shape, data) = self.tensors.get(key).ok_or_else(|| format!("{} has no {key}", self.name))?;
        Array::decode(&TensorView::new(*dtype, shape.clone(), data)?)
    }

    /// Floats in the device's precision, or indices.
    pub(super) fn tensor(&self, device: &Device, key: &str) -> Result<Tensor, Failed> {
        let Array { shape, data, is_integer } = self.array(key)?;
        let shape = Shape::new(&shape);
        Ok(match is_integer {
            true => Tensor::indices(device, shape, &data.into_iter().map(|x| x as u32).collect::<Vec<_>>())?,
            false => Tensor::from_f64(device, shape, &data)?,
        })
    }

    /// The results, by key.
    pub(super) fn results(&self) -> Result<Numbers, Failed> {
        let comes_out = |key: &str| !["state.", "input.", "cotangent"].iter().any(|start| key.starts_with(start));
        let keys = self.tensors.keys().filter(|key| comes_out(key));
        keys.map(|key| Ok((key.clone(), self.array(key)?))).collect()
    }
}
