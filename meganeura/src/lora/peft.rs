//! Adapters in the files of PEFT, Hugging Face's library: `adapter_config.json` and `adapter_model.safetensors` in a
//! folder.

mod save;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use super::{Lora, expect_bare, put};
use crate::error::{bail, here, shortened};
use crate::io::peft::{CONFIG, Settings, is_part, parsed};
use crate::io::{Names, Part, load_tensors};
use crate::module::{Leaf, Module, ModuleExt};
use crate::param::{Adapter, Use};
use crate::{Buffer, Device, Param, Precision, Result, Shape, Tensor};

/// The names of the file with the tensors.
const FILES: [&str; 2] = ["adapter_model.safetensors", "adapter_model.bin"];

/// The counter of PyTorch's batch normalisation, which is skipped in any file.
const COUNTER: &str = "num_batches_tracked";

impl Lora {
    /// Adds adapters from a folder that PEFT wrote, or from the file with its tensors. Returns their number.
    ///
    /// Ranks, scales and dropout are those of `adapter_config.json`: `r`, `lora_alpha`, their patterns, `use_rslora`
    /// and `lora_dropout`. Adapters of linear layers, convolutions with and without groups, and embeddings are read,
    /// with the magnitudes of DoRA (`use_dora`), but for convolutions in groups, and with biases (`lora_bias`).
    /// Biases and whole modules that were trained with the adapters replace the model's.
    ///
    /// `names` maps the names of PyTorch's model to the paths of this one, as for
    /// [`load_with`](crate::io::Checkpoint::load_with), so the same rules load the weights and the adapters. A rule
    /// that [splits](Names::split) a weight splits its adapter. What [`Names::ignore`] matches is left out.
    ///
    /// Freezes every parameter that was not trained, like [`attach`](Self::attach).
    ///
    /// ```
    /// use meganeura::io::Names;
    /// use meganeura::prelude::*;
    ///
    /// # fn main() -> meganeura::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let folder = directory.path();
    /// let device = Device::cpu();
    /// let base = (Linear::new(16, 32), Relu, Linear::new(32, 4)).init(&device, Seed::new(1))?;
    /// let mut tuned = base.clone();
    /// Lora::new(2).dropout(0.1).attach(&mut tuned, "*.weight", 7)?;
    /// Lora::save_peft(&tuned, &folder, &Names::new())?; // for `PeftModel.from_pretrained`
    ///
    /// let mut other = base.clone();
    /// assert_eq!(Lora::load_peft(&mut other, &folder, &Names::new())?, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if a file is missing or cannot be read. Fails with [`Checkpoint`](crate::ErrorKind::Checkpoint) if a
    /// tensor finds no place in the model or does not fit; if a setting changes what the adapters compute and is not
    /// supported, such as `target_parameters`, or is not known; or if an adapter is of a convolution that PEFT
    /// computes in another way: with dilation, or with padding that is not zeros. Fails like
    /// [`attach`](Self::attach) if a weight has an adapter. On error, nothing changes.
    #[track_caller]
    pub fn load_peft<M: Module + ?Sized>(module: &mut M, path: impl AsRef<Path>, names: &Names) -> Result<usize> {
        here(|| {
            let path = path.as_ref();
            let file = match FILES.iter().map(|name| path.join(name)).find(|file| file.is_file()) {
                Some(file) => file,
                None if path.is_dir() => bail!(Io, "{}: neither `{}` nor `{}`", path.display(), FILES[0], FILES[1]),
                None => path.to_owned(),
            };
            let tensors = load_tensors(&file, &Device::cpu_with(Precision::Double))?;
            let Some(settings) = Settings::beside(&file)? else {
                bail!(Io, "{}: no `{CONFIG}` beside it, which has the scale of the adapters", file.display());
            };
            let read = || {
                names.check()?;
                Found::new(&module.leaves(), tensors.complete()?, &settings, names)
            };
            let found = read().map_err(|error| error.context(file.display()))?;
            let count = put(module, &found.adapters)?;
            for leaf in module.leaves() {
                if let Some(value) = found.replaced.get(&leaf.cell().id()) {
                    leaf.cell().set(value.clone());
                    if leaf.param().is_some() {
                        leaf.cell().set_frozen(false);
                    }
                }
            }
            Ok(count)
        })
    }

    /// Writes the adapters of a model, and what was trained with them, to a folder from which PEFT loads them.
    ///
    /// `names` maps the names of PyTorch's model to the paths of this one, as for
    /// [`save_with`](crate::io::Checkpoint::save_with). Parameters that are not frozen are saved with the adapters:
    /// biases of adapted layers as `bias="lora_only"`, others as `modules_to_save`, with their whole module. An adapter
    /// of a convolution in groups that [`attach`](Self::attach) made is written in PEFT's form, with a higher rank.
    ///
    /// The settings name no base model; `PeftModel.from_pretrained(model, folder)` does not need it.
    ///
    /// # Errors
    ///
    /// Fails if there are no adapters, if PEFT has no form for one of them (the message names it), or if a file cannot
    /// be written.
    #[track_caller]
    pub fn save_peft<M: Module + ?Sized>(module: &M, folder: impl AsRef<Path>, names: &Names) -> Result<()> {
        here(|| save::save(&module.leaves(), folder.as_ref(), names))
    }
}

/// A matrix by rows.
#[derive(Clone, Debug, PartialEq)]
struct Matrix {
    rows: usize,
    columns: usize,
    values: Vec<f64>,
}

impl Matrix {
    /// A tensor whose first axis are the rows.
    fn of(tensor: &Tensor) -> Result<Self> {
        let shape = tensor.shape();
        let (rows, columns) = match shape.dims() {
            [] => (1, 1),
            [rows, rest @ ..] => (*rows, rest.iter().product()),
        };
        Ok(Self { rows, columns, values: tensor.to_f64_vec()? })
    }

    fn transposed(&self) -> Self {
        let value = |at: usize| self.values[at % self.rows * self.columns + at / self.rows];
        Self { rows: self.columns, columns: self.rows, values: (0..self.values.len()).map(value).collect() }
    }

    /// One of several equal parts of the rows.
    fn part(&self, Part { index, of }: Part) -> Option<Self> {
        let rows = self.rows.is_multiple_of(of).then(|| self.rows / of)?;
        let length = rows * self.columns;
        let values = self.values[index * length..][..length].to_vec();
        Some(Self { rows, columns: self.columns, values })
    }

    fn to_tensor(&self, device: &Device) -> Result<Tensor> {
        Tensor::from_f64(device, [self.rows, self.columns], &self.values)
    }
}

/// The contents of a file, for a model.
#[derive(Default)]
struct Found {
    /// By the identity of the weight.
    adapters: HashMap<u64, Adapter>,
    /// New values, by identity.
    replaced: HashMap<u64, Tensor>,
}

/// The factors of an adapter in a file.
#[derive(Default)]
struct Factors {
    a: Option<Tensor>,
    b: Option<Tensor>,
    magnitude: Option<Tensor>,
    bias: Option<Tensor>,
    is_embedding: bool,
}

impl Found {
    fn new(leaves: &[Leaf<'_>], tensors: BTreeMap<String, Tensor>, settings: &Settings, names: &Names) -> Result<Self> {
        let mut by_path = HashMap::new();
        for leaf in leaves {
            by_path.extend(leaf.paths().map(|path| (path, leaf)));
        }
        let (mut factors, mut others): (BTreeMap<String, Factors>, Vec<_>) = Default::default();
        for (name, tensor) in tensors {
            let (module, part) = parsed(&name);
            let entry = factors.entry(module.to_owned());
            match part {
                Some("lora_A.weight") => entry.or_default().a = Some(tensor),
                Some("lora_B.weight") => entry.or_default().b = Some(tensor),
                Some("lora_B.bias") => entry.or_default().bias = Some(tensor),
                Some("lora_magnitude_vector" | "lora_magnitude_vector.weight") => {
                    entry.or_default().magnitude = Some(tensor);
                }
                Some("lora_embedding_A" | "lora_embedding_B") => {
                    let factors = entry.or_default();
                    factors.is_embedding = true;
                    let factor = if name.ends_with('A') { &mut factors.a } else { &mut factors.b };
                    *factor = Some(tensor);
                }
                None if !is_part(&name) => others.push((module.replace(".base_layer.", "."), tensor)),
                _ => bail!(
                    Checkpoint,
                    "`{}` changes what the adapter computes, and is not supported; merge the adapters in PEFT and save \
                     the model",
                    shortened(&name)
                ),
            }
        }
        let mut found = Self::default();
        for (module, factors) in factors {
            found.add(&module, &factors, &by_path, settings, names)?;
        }
        for (name, tensor) in others {
            found.replace(&name, &tensor, &by_path, names)?;
        }
        if found.adapters.is_empty() {
            bail!(Checkpoint, "there are no adapters");
        }
        Ok(found)
    }

    fn add(
        &mut self,
        module: &str,
        factors: &Factors,
        by_path: &HashMap<&str, &Leaf<'_>>,
        settings: &Settings,
        names: &Names,
    ) -> Result<()> {
        let shown = shortened(module);
        let (Some(a), Some(b)) = (&factors.a, &factors.b) else {
            bail!(Checkpoint, "the adapter of `{shown}` is incomplete; nothing was loaded");
        };
        for (setting, is_set, part) in [
            ("use_dora", settings.has_magnitudes, &factors.magnitude),
            ("lora_bias", settings.has_biases, &factors.bias),
        ] {
            if is_set != part.is_some() {
                let has = if part.is_some() { "has" } else { "lacks" };
                bail!(
                    Checkpoint,
                    "`{setting}` is {is_set}, and the adapter of `{shown}` {has} its tensor; nothing was loaded"
                );
            }
        }
        let weight = if module.is_empty() { "weight".to_owned() } else { format!("{module}.weight") };
        for (path, part) in names.paths(&weight) {
            let Some(leaf) = by_path.get(&*path).filter(|leaf| leaf.param().is_some()) else {
                bail!(
                    Checkpoint,
                    "the file has an adapter of `{shown}`, and the model has no parameter `{}`; nothing was loaded. The rules of \
                     `Names` lead there, and `Names::ignore` leaves it out on purpose",
                    shortened(&path)
                );
            };
            expect_bare(&[leaf], &HashSet::new())?;
            let adapter = adapter(leaf, [a, b], factors, part, module, settings)
                .map_err(|error| error.context(format_args!("the adapter of `{shown}`")))?;
            if self.adapters.insert(leaf.cell().id(), adapter).is_some() {
                bail!(Checkpoint, "`{path}` is tied, and there is another adapter of it; nothing was loaded");
            }
        }
        Ok(())
    }

    /// Takes a tensor that was trained with the adapters.
    fn replace(
        &mut self,
        name: &str,
        tensor: &Tensor,
        by_path: &HashMap<&str, &Leaf<'_>>,
        names: &Names,
    ) -> Result<()> {
        for (path, part) in names.paths(name) {
            let Some(leaf) = by_path.get(&*path) else {
                if path.rsplit('.').next() == Some(COUNTER) {
                    continue;
                }
                bail!(
                    Checkpoint,
                    "`{}` was trained with the adapters of the file, and the model has no place for it, `{}`; nothing was loaded. \
                     The rules of `Names` lead there, and `Names::ignore` leaves it out on purpose",
                    shortened(name),
                    shortened(&path)
                );
            };
            let current = leaf.value();
            let mut dims = tensor.shape().dims().to_vec();
            if let Some(first) = dims.first_mut().filter(|first| first.is_multiple_of(part.of)) {
                *first /= part.of;
            }
            if dims != current.shape().dims() || tensor.ty().dtype.is_float() != current.ty().dtype.is_float() {
                let (ty, place) = (tensor.ty(), current.ty());
                bail!(
                    Checkpoint,
                    "`{}` is {ty}, and `{path}` in the model is {place}; nothing was loaded",
                    shortened(name)
                );
            }
            let value = match current.ty().dtype.is_float() {
                true => {
                    let whole = Matrix::of(tensor)?;
                    let values = if part == Part::WHOLE { Some(whole) } else { whole.part(part) };
                    let values = values.map(|matrix| matrix.values).unwrap_or_default();
                    Tensor::from_f64(current.device(), current.shape(), &values)?
                }
                false => Tensor::indices(current.device(), current.shape(), &tensor.to_u32_vec()?)?,
            };
            self.replaced.insert(leaf.cell().id(), value);
        }
        Ok(())
    }
}

/// The adapter of a parameter, or of a part of the file's weight, from PEFT's factors.
fn adapter(
    leaf: &Leaf<'_>,
    [a, b]: [&Tensor; 2],
    factors: &Factors,
    part: Part,
    module: &str,
    settings: &Settings,
) -> Result<Adapter> {
    let (ty, usage) = (leaf.ty(), leaf.param().map(Param::usage).unwrap_or_default());
    let (path, dims, is_embedding) = (&leaf.path, ty.shape.dims(), factors.is_embedding);
    let is_float = a.ty().dtype.is_float() && b.ty().dtype.is_float();
    let (file_a, file_b) = (a.shape(), b.shape());
    let misfit = || -> Result<Adapter> {
        bail!(Checkpoint, "factors of {file_a} and {file_b} do not fit `{path}` {ty}; nothing was loaded")
    };
    let is_matrix = file_b.dims().get(2..).is_some_and(|rest| rest.iter().all(|&extent| extent == 1));
    if !is_float || !is_matrix || file_a.rank() < 2 {
        return misfit();
    }
    if let Some(why) = without_form(usage) {
        bail!(Checkpoint, "{why}, `{path}` in the model; nothing was loaded");
    }
    if is_embedding != (usage == Use::Embedding) && usage != Use::Other {
        let kind = if is_embedding { "an embedding" } else { "a product" };
        bail!(Checkpoint, "it is of {kind}, and `{path}` in the model is not; nothing was loaded");
    }
    let rank = file_a.dims()[0];
    let scale = settings.scale(module, rank)?;
    let (mut a, mut b) = (Matrix::of(a)?, Matrix::of(b)?);
    // PEFT takes the transpose of an embedding's, and of weights `[in, out]`.
    let is_transposed = is_embedding || (settings.fan_in_fan_out && usage == Use::Other && dims.len() == 2);
    if is_transposed {
        (a, b) = (b.transposed(), a.transposed());
    }
    let Some(rows) = b.part(part) else { return misfit() };
    b = rows;
    let Some([out, width]) = Adapter::matrix(ty.shape) else { return misfit() };
    let groups = match usage {
        Use::Conv { groups, .. } if part == Part::WHOLE => groups,
        Use::Conv { groups: 2.., .. } => return misfit(),
        _ => 1,
    };
    let is_kernel = is_embedding || dims.len() == 2 || file_a.dims()[2..] == dims[2..];
    let fits = a.rows == rank
        && rank.is_multiple_of(groups)
        && (a.columns, b.rows, b.columns) == (groups * width, out, rank / groups);
    if !fits || !is_kernel {
        return misfit();
    }
    let device = leaf.value().device().clone();
    // A number for each output of the file's layer, and of its part that this is.
    let numbers = |tensor: &Option<Tensor>, name: &str, is_row: bool| {
        let Some(tensor) = tensor else { return Ok(None) };
        let whole = Matrix { rows: tensor.shape().elements(), columns: 1, values: tensor.to_f64_vec()? };
        let own = if is_row { Some(whole).filter(|_| part == Part::WHOLE) } else { whole.part(part) };
        let expected = if is_row { width } else { out };
        match own.filter(|own| own.rows == expected && tensor.ty().dtype.is_float()) {
            Some(own) if is_row => Ok(Some(Param::new(own.transposed().to_tensor(&device)?))),
            Some(own) => Ok(Some(Param::new(own.to_tensor(&device)?))),
            None => bail!(
                Checkpoint,
                "its {name} {} are not the {expected} of `{path}` {ty}; nothing was loaded",
                tensor.ty()
            ),
        }
    };
    if groups > 1 && factors.magnitude.is_some() {
        bail!(
            Checkpoint,
            "magnitudes of a convolution in groups, `{path}` in the model, are not supported; merge the adapters in PEFT and \
             save the model"
        );
    }
    let magnitude = numbers(&factors.magnitude, "magnitudes", is_transposed)?;
    if is_transposed && factors.bias.is_some() {
        bail!(Checkpoint, "a bias of an embedding, or of a weight `[in, out]`, is not supported; nothing was loaded");
    }
    let bias = match numbers(&factors.bias, "biases", false)? {
        Some(bias) => Some(Param::new(bias.value().map(|bias| bias.reshape([out]))?)),
        None => None,
    };
    Ok(Adapter {
        magnitude,
        bias,
        a: Param::new(a.to_tensor(&device)?),
        b: Param::new(b.to_tensor(&device)?),
        scale: Buffer::new(Tensor::from_f64(&device, Shape::SCALAR, &[scale])?),
        dropout: if is_embedding { 0.0 } else { settings.dropout },
    })
}

/// The reason why PEFT has no adapter with the result of ours for such a layer.
fn without_form(usage: Use) -> Option<&'static str> {
    match usage {
        Use::ConvTranspose => Some("PEFT has no adapters of transposed convolutions"),
        Use::Conv { is_plain: false, .. } => Some(
            "PEFT's adapters of convolutions ignore dilation, and pad with zeros; the result would be another one for",
        ),
        _ => None,
    }
}
