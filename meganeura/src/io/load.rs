//! From the bytes of a file into a model: all of it is read and checked before anything is changed.

use std::collections::{BTreeMap, HashMap, HashSet};

use safetensors::SafeTensors;

use super::{LoadReport, format};
use crate::error::bail;
use crate::module::{Leaf, Module, ModuleExt, Role, tie};
use crate::{Error, ErrorKind, Result, Tensor};

/// Replaces what `bytes` has values for, and ties what was tied when they were saved. If `exactly`, both sides must have the
/// same names.
pub(super) fn load<M: Module + ?Sized>(module: &mut M, bytes: &[u8], exactly: bool) -> Result<LoadReport> {
    let file = format::parse(bytes)?;
    let aliases = format::aliases(bytes, &file)?;
    let groups = groups(&aliases);
    let mut found = Found::new(&file, aliases);
    for leaf in module.leaves().iter().filter(|leaf| leaf.role != Role::Constant) {
        found.read(leaf);
    }
    let (tensors, report) = found.finish()?;
    if exactly {
        report.strict().map_err(|error| error.context("the file is of another model; nothing was loaded"))?;
    }
    tie(module, &groups).map_err(|error| {
        Error::new(ErrorKind::Checkpoint, format!("the file is of another model; nothing was loaded: {error}"))
    })?;
    for leaf in module.leaves() {
        if let Some(tensor) = tensors.get(&leaf.path) {
            leaf.cell().set(tensor.clone());
        }
    }
    Ok(report)
}

/// The paths of each tensor that has several, the one that it is stored under first.
fn groups(aliases: &BTreeMap<String, String>) -> Vec<Vec<String>> {
    let mut groups: BTreeMap<&String, Vec<String>> = BTreeMap::new();
    for (alias, name) in aliases {
        groups.entry(name).or_insert_with(|| vec![name.clone()]).push(alias.clone());
    }
    groups.into_values().collect()
}

/// What a file has for a model.
struct Found<'a> {
    file: &'a SafeTensors<'a>,
    aliases: BTreeMap<String, String>,
    /// By the leaf's first path.
    tensors: HashMap<String, Tensor>,
    /// Names of the file that were looked at.
    used: HashSet<String>,
    loaded: Vec<String>,
    missing: Vec<String>,
    mismatched: Vec<String>,
    failed: Option<Error>,
}

impl<'a> Found<'a> {
    fn new(file: &'a SafeTensors<'a>, aliases: BTreeMap<String, String>) -> Self {
        let (loaded, missing, mismatched) = (Vec::new(), Vec::new(), Vec::new());
        let (tensors, used) = (HashMap::new(), HashSet::new());
        Self { file, aliases, tensors, used, loaded, missing, mismatched, failed: None }
    }

    /// Reads what will be the value of `leaf`.
    fn read(&mut self, leaf: &Leaf<'_>) {
        let stored = |path: &str| {
            let name = self.aliases.get(path).map_or(path, String::as_str);
            self.file.tensor(name).ok().map(|view| (name.to_owned(), view))
        };
        let all: Vec<_> = leaf.paths().filter_map(stored).collect();
        let Some((name, view)) = all.first() else {
            self.missing.push(leaf.path.clone());
            return;
        };
        self.used.extend(all.iter().map(|(name, _)| name.clone()));
        let is_another = |other: &&(String, safetensors::tensor::TensorView<'_>)| {
            (other.1.dtype(), other.1.shape(), other.1.data()) != (view.dtype(), view.shape(), view.data())
        };
        if let Some((other, _)) = all.iter().find(is_another) {
            self.mismatched.push(format!("`{name}` and `{other}` are tied in the model, but differ in the file"));
            return;
        }
        match format::read(view, &leaf.value()) {
            Ok(tensor) => {
                self.tensors.insert(leaf.path.clone(), tensor);
                self.loaded.push(leaf.path.clone());
            }
            Err(error) if error.kind() == ErrorKind::Checkpoint => {
                self.mismatched.push(error.context(format_args!("`{}`", leaf.path)).to_string());
            }
            Err(error) => self.failed = Some(error.context(&leaf.path)),
        }
    }

    fn finish(self) -> Result<(HashMap<String, Tensor>, LoadReport)> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        if !self.mismatched.is_empty() {
            bail!(Checkpoint, "the file is of another model; nothing was loaded:\n  {}", self.mismatched.join("\n  "));
        }
        let names = self.file.names().into_iter().filter(|name| !self.used.contains(*name)).map(str::to_owned);
        let mut unexpected: Vec<_> = names.collect();
        unexpected.sort_unstable();
        let report = LoadReport { loaded: self.loaded, missing: self.missing, unexpected };
        if report.loaded.is_empty() && !report.missing.is_empty() {
            return Err(report.difference().context("the file has no name in common with the model"));
        }
        Ok((self.tensors, report))
    }
}
