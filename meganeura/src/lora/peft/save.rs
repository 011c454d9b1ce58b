//! Writing the files of PEFT.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::super::factors;
use super::{CONFIG, FILES, Matrix, without_form};
use crate::error::{bail, shortened};
use crate::io::{Names, Part, disk, io_error, tensors_to_safetensors};
use crate::module::{Leaf, Role};
use crate::param::{Adapter, Use};
use crate::{DType, Device, Param, Result, Tensor};

/// The prefix of names in the files.
const PREFIX: &str = "base_model.model.";

/// An adapter, or a part of one that a rule joins with others.
#[derive(Clone)]
struct Piece {
    path: String,
    usage: Use,
    dims: Vec<usize>,
    a: Matrix,
    b: Matrix,
    magnitude: Option<Vec<f64>>,
    bias: Option<Vec<f64>>,
    scale: f64,
    /// The scale is a number of this type.
    dtype: DType,
}

/// The contents of the files.
#[derive(Default)]
struct Contents {
    tensors: BTreeMap<String, Tensor>,
    /// Rank and α of the adapter of each module.
    adapted: BTreeMap<String, (usize, f64)>,
    /// The number of adapters with magnitudes, and of those with biases.
    magnitudes: usize,
    adapter_biases: usize,
    dropout: f64,
    bias: &'static str,
    whole: BTreeSet<String>,
}

pub(super) fn save(leaves: &[Leaf<'_>], folder: &Path, names: &Names) -> Result<()> {
    names.check()?;
    let mut contents = Contents { bias: "none", ..Contents::default() };
    let all = modules(leaves, names);
    for (module, parts) in pieces(leaves, names)? {
        let piece = joined(&module, parts)?;
        contents.add(module, piece)?;
    }
    for leaf in leaves.iter().filter_map(Leaf::param).filter_map(Param::adapter) {
        contents.dropout = contents.dropout.max(leaf.dropout);
    }
    for (what, count) in [("magnitudes", contents.magnitudes), ("biases", contents.adapter_biases)] {
        if !(count == 0 || count == contents.adapted.len()) {
            bail!(
                Checkpoint,
                "{count} of {} adapters have {what}; PEFT has all of them or none",
                contents.adapted.len()
            );
        }
    }
    contents.add_trained(leaves, names)?;
    let tensors = tensors_to_safetensors(contents.tensors.iter().map(|(name, tensor)| (name.clone(), tensor)))?;
    let settings = serde_json::to_vec_pretty(&contents.settings(&all)).expect("a tree of texts and numbers");
    let files = [(folder.join(FILES[0]), tensors), (folder.join(CONFIG), settings)];
    disk::create_folders(folder).map_err(|error| io_error("created", folder, error))?;
    for (path, bytes) in files {
        disk::replace_file(&path, &bytes).map_err(|error| io_error("written", &path, error))?;
    }
    Ok(())
}

/// The names of the model's modules in PyTorch, as far as the rules give them names.
fn modules(leaves: &[Leaf<'_>], names: &Names) -> BTreeSet<String> {
    let named = leaves.iter().flat_map(Leaf::paths).filter_map(|path| names.name(path).ok());
    named.filter_map(|(name, _)| Some(name.rsplit_once('.')?.0.to_owned())).collect()
}

/// The parts of each adapter, by the module of the file.
fn pieces(leaves: &[Leaf<'_>], names: &Names) -> Result<BTreeMap<String, Vec<Option<Piece>>>> {
    let mut pieces: BTreeMap<String, Vec<Option<Piece>>> = BTreeMap::new();
    for leaf in leaves {
        let Some((param, adapter)) = leaf.param().and_then(|param| Some((param, param.adapter()?))) else { continue };
        let path = &leaf.path;
        if let Some(alias) = leaf.aliases.first() {
            bail!(Checkpoint, "`{path}` is tied to `{alias}`, and PEFT has no adapter that two modules share");
        }
        let (name, part) = names.name(path)?;
        let Some(module) = name.strip_suffix(".weight") else {
            bail!(Checkpoint, "`{path}` is `{name}` in the file, and PEFT adapts the `weight` of a module");
        };
        let piece = Piece {
            path: path.clone(),
            usage: param.usage(),
            dims: leaf.ty().shape.dims().to_vec(),
            a: Matrix::of(&adapter.a.value())?,
            b: Matrix::of(&adapter.b.value())?,
            magnitude: adapter.magnitude.as_ref().map(|magnitude| magnitude.value().to_f64_vec()).transpose()?,
            bias: adapter.bias.as_ref().map(|bias| bias.value().to_f64_vec()).transpose()?,
            scale: adapter.scale.value().to_f64_vec()?[0],
            dtype: adapter.scale.ty().dtype,
        };
        let parts = pieces.entry(module.to_owned()).or_insert_with(|| vec![None; part.of]);
        match parts.get_mut(part.index) {
            Some(place) if place.is_none() => *place = Some(piece),
            _ => bail!(Checkpoint, "several adapters would be that of `{module}`; another rule must tell them apart"),
        }
    }
    if pieces.is_empty() {
        bail!(Argument, "lora: no parameter of the module has an adapter");
    }
    Ok(pieces)
}

/// The adapter of a weight that a rule joins of several: one factor is common, the rows of the other follow each other.
fn joined(module: &str, parts: Vec<Option<Piece>>) -> Result<Piece> {
    let of = parts.len();
    let mut parts = parts.into_iter().flatten();
    let mut first = parts.next().expect("a module has a part");
    let mut count = 1;
    for part in parts {
        if (&part.a, part.scale, part.dims.len()) != (&first.a, first.scale, first.dims.len()) {
            bail!(
                Checkpoint,
                "`{}` and `{}` are joined as `{module}` in the file, and their adapters differ in the factor `A` or the scale; \
                 merge them, or train adapters that were loaded from such a file together",
                first.path,
                part.path
            );
        }
        if first.magnitude.is_some() != part.magnitude.is_some() || first.bias.is_some() != part.bias.is_some() {
            bail!(
                Checkpoint,
                "`{}` and `{}` are joined as `{module}` in the file, and only one has magnitudes or a bias",
                first.path,
                part.path
            );
        }
        if let (Some(all), Some(more)) = (&mut first.magnitude, part.magnitude) {
            all.extend(more);
        }
        if let (Some(all), Some(more)) = (&mut first.bias, part.bias) {
            all.extend(more);
        }
        first.b.rows += part.b.rows;
        first.b.values.extend(part.b.values);
        first.dims[0] += part.dims[0];
        count += 1;
    }
    if count < of {
        bail!(
            Checkpoint,
            "`{}` is joined with others as `{module}` in the file, and they have no adapters",
            first.path
        );
    }
    Ok(first)
}

impl Contents {
    fn add(&mut self, module: String, piece: Piece) -> Result<()> {
        let Piece { path, usage, dims, a, b, magnitude, bias, scale, dtype } = piece;
        if let Some(why) = without_form(usage) {
            bail!(Checkpoint, "{why} `{path}`; merge its adapter");
        }
        let cpu = Device::cpu();
        let prefix = format!("{PREFIX}{module}");
        let mut rank = a.rows;
        let ones = vec![1; dims.len().saturating_sub(2)];
        if let Some(values) = magnitude {
            // Of a convolution, it has the axes of the result.
            let shape = if ones.is_empty() { vec![values.len()] } else { [&[1, values.len()], &ones[..]].concat() };
            let tensor = Tensor::from_f64(&cpu, &shape[..], &values)?;
            self.tensors.insert(format!("{prefix}.lora_magnitude_vector"), tensor);
            self.magnitudes += 1;
        }
        if let Some(values) = bias {
            let tensor = Tensor::from_f64(&cpu, [values.len()], &values)?;
            self.tensors.insert(format!("{prefix}.lora_B.bias"), tensor);
            self.adapter_biases += 1;
        }
        let (names, a, b) = match usage {
            Use::Embedding => {
                let names = ["lora_embedding_A", "lora_embedding_B"];
                (names, b.transposed().to_tensor(&cpu)?, a.transposed().to_tensor(&cpu)?)
            }
            Use::Other if dims.len() > 2 => {
                bail!(Checkpoint, "`{path}` is not the weight of a layer that PEFT adapts; merge its adapter")
            }
            _ => {
                let groups = if let Use::Conv { groups, .. } = usage { groups } else { 1 };
                let a = if groups > 1 && b.columns == rank { across_groups(&a, groups, dims[1]) } else { a };
                rank = a.rows;
                let shape = [&[rank, groups * dims[1]], &dims[2..]].concat();
                let a = Tensor::from_f64(&cpu, &shape[..], &a.values)?;
                let b = Tensor::from_f64(&cpu, &[&[b.rows, b.columns], &ones[..]].concat()[..], &b.values)?;
                (["lora_A.weight", "lora_B.weight"], a, b)
            }
        };
        self.tensors.extend(names.into_iter().map(|name| format!("{prefix}.{name}")).zip([a, b]));
        self.adapted.insert(module, (rank, alpha(scale, rank, dtype)));
        Ok(())
    }

    /// Adds the parameters that are trained beside the adapters.
    fn add_trained(&mut self, leaves: &[Leaf<'_>], names: &Names) -> Result<()> {
        let factors = factors(leaves);
        let (mut biases, mut of_adapted) = (BTreeSet::new(), BTreeSet::new());
        for leaf in leaves.iter().filter(|leaf| leaf.param().is_some() && !factors.contains(&leaf.cell().id())) {
            let is_trained = leaf.role == Role::Trained;
            let name = match names.name(&leaf.path) {
                Ok((name, Part::WHOLE)) => name,
                Ok((name, _)) if is_trained => {
                    bail!(Checkpoint, "`{}` is trained, and a part of `{name}` in the file; freeze it", leaf.path)
                }
                Err(error) if is_trained => return Err(error),
                _ => continue,
            };
            let (module, last) = name.rsplit_once('.').unwrap_or(("", &name));
            let is_adapted = self.adapted.contains_key(module);
            if is_adapted && last == "bias" {
                of_adapted.insert(name.clone());
            }
            match (is_trained, is_adapted) {
                (false, _) => {}
                (true, true) if last == "bias" => drop(biases.insert(name)),
                (true, true) => {
                    bail!(
                        Checkpoint,
                        "`{}` is trained beside its adapter, for which PEFT has no form; freeze it",
                        leaf.path
                    )
                }
                (true, false) if module.is_empty() => {
                    bail!(
                        Checkpoint,
                        "`{}` is trained, and PEFT saves whole modules, which the model itself is not",
                        leaf.path
                    )
                }
                (true, false) => drop(self.whole.insert(module.to_owned())),
            }
        }
        if let Some(name) = of_adapted.difference(&biases).next().filter(|_| !biases.is_empty()) {
            bail!(
                Checkpoint,
                "biases of adapted layers are trained, and `{}` is not; PEFT trains all of them or none",
                shortened(name)
            );
        }
        self.bias = if biases.is_empty() { "none" } else { "lora_only" };
        let skipped: HashSet<u64> = leaves
            .iter()
            .filter_map(|leaf| leaf.param()?.adapter())
            .flat_map(Adapter::cells)
            .map(|cell| cell.id())
            .collect();
        for leaf in leaves.iter().filter(|leaf| leaf.role != Role::Constant && !skipped.contains(&leaf.cell().id())) {
            let Ok((name, Part::WHOLE)) = names.name(&leaf.path) else { continue };
            let is_below = |whole: &String| name.strip_prefix(&**whole).is_some_and(|rest| rest.starts_with('.'));
            let (module, last) = name.rsplit_once('.').unwrap_or(("", &name));
            let name = match biases.contains(&name) {
                true => format!("{PREFIX}{module}.base_layer.{last}"),
                false if self.whole.iter().any(is_below) => format!("{PREFIX}{name}"),
                false => continue,
            };
            self.tensors.insert(name, leaf.value());
        }
        Ok(())
    }

    /// The settings, for a model with these modules.
    fn settings(&self, all: &BTreeSet<String>) -> Value {
        let mut counts: BTreeMap<(usize, u64), usize> = BTreeMap::new();
        self.adapted.values().for_each(|(rank, alpha)| *counts.entry((*rank, alpha.to_bits())).or_default() += 1);
        let most = counts.into_iter().max_by_key(|&(_, count)| count).expect("there is an adapter").0;
        let (rank, alpha) = (most.0, f64::from_bits(most.1));
        let (mut ranks, mut alphas) = (Map::new(), Map::new());
        for (module, &(other_rank, other_alpha)) in &self.adapted {
            // The whole name.
            let pattern = format!("^{}", escaped(module));
            if other_rank != rank {
                ranks.insert(pattern.clone(), json!(other_rank));
            }
            if other_alpha.to_bits() != alpha.to_bits() {
                alphas.insert(pattern, number(other_alpha));
            }
        }
        let targets: Vec<&String> = self.adapted.keys().collect();
        // A name in a list also stands for every name that ends with it.
        let is_meant = |name: &String| self.adapted.contains_key(name);
        let is_target = |name: &String| targets.iter().any(|target| name.ends_with(&format!(".{target}")));
        let is_exact = all.iter().all(|name| is_meant(name) || !is_target(name));
        let targets = match is_exact {
            true => json!(targets),
            false => json!(targets.iter().map(|target| escaped(target)).collect::<Vec<_>>().join("|")),
        };
        json!({
            "peft_type": "LORA",
            "task_type": null,
            "base_model_name_or_path": null,
            "r": rank,
            "lora_alpha": number(alpha),
            "lora_dropout": self.dropout,
            "target_modules": targets,
            "rank_pattern": ranks,
            "alpha_pattern": alphas,
            "bias": self.bias,
            "use_rslora": false,
            "use_dora": self.magnitudes > 0,
            "lora_bias": self.adapter_biases > 0,
            "fan_in_fan_out": false,
            "init_lora_weights": true,
            "inference_mode": true,
            "modules_to_save": if self.whole.is_empty() { Value::Null } else { json!(self.whole) },
        })
    }
}

/// The first factor that reads all channels, of one that each group applies to its own: a row for each group, with
/// zeros for the channels of the others.
fn across_groups(a: &Matrix, groups: usize, channels: usize) -> Matrix {
    let Matrix { rows, columns, values } = a;
    let elements = columns / channels;
    let width = groups * channels * elements;
    let mut across = vec![0.0; groups * rows * width];
    for group in 0..groups {
        for row in 0..*rows {
            let start = (group * rows + row) * width + group * columns;
            across[start..][..*columns].copy_from_slice(&values[row * columns..][..*columns]);
        }
    }
    Matrix { rows: groups * rows, columns: width, values: across }
}

/// The shortest α that gives a scale.
fn alpha(scale: f64, rank: usize, dtype: DType) -> f64 {
    let exact = scale * rank as f64;
    let gives = |alpha: f64| match dtype {
        #[expect(clippy::cast_possible_truncation, reason = "scales have this precision")]
        DType::F32 => (alpha / rank as f64) as f32 == scale as f32,
        _ => alpha / rank as f64 == scale,
    };
    let rounded = |digits: usize| format!("{exact:.digits$e}").parse::<f64>().ok();
    (0..=17).filter_map(rounded).find(|&alpha| gives(alpha)).unwrap_or(exact)
}

/// An integer as one, as PEFT expects α.
fn number(x: f64) -> Value {
    #[expect(clippy::cast_possible_truncation, reason = "it is an integer below 2⁵³")]
    if x.fract() == 0.0 && x.abs() < 9e15 { json!(x as i64) } else { json!(x) }
}

/// A name as a regular expression.
fn escaped(name: &str) -> String {
    let mut pattern = String::new();
    for character in name.chars() {
        if !character.is_alphanumeric() && character != '_' {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern
}
