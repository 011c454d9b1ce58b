//! From the bytes of a file into a model: everything is read and checked before anything changes.

use std::collections::{BTreeMap, HashMap};

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use super::names::{Names, Part};
use super::peft::{self, Settings};
use super::report::{LISTED, Lone, and_more};
use super::{LoadReport, format};
use crate::error::{bail, shortened};
use crate::module::{Leaf, Module, ModuleExt, Role, tie};
use crate::{Error, ErrorKind, Result, Tensor};

/// The counter of PyTorch's batch normalisation in its files. It is not used in computations, unless the momentum is
/// `None`.
const COUNTER: &str = "num_batches_tracked";

/// The values that a model gets from a file, on the model's devices: every error there is ruled out.
pub(crate) struct Loaded {
    /// By the leaf's first path.
    tensors: HashMap<String, Tensor>,
    /// The paths of tied tensors, if ties are restored.
    ties: Vec<Vec<String>>,
    pub(super) report: LoadReport,
}

impl Loaded {
    /// Reads the values in `bytes` for a model. If `exactly`, both sides must have the same names, and
    /// [`put`](Self::put) restores the ties of the saved model.
    pub(super) fn read<M: Module + ?Sized>(module: &M, bytes: &[u8], names: &Names, exactly: bool) -> Result<Self> {
        Self::read_adapted(module, bytes, names, exactly, || Ok(None))
    }

    /// Like [`read`](Self::read). If the file has adapters of PEFT, their scales are those of these settings.
    pub(super) fn read_adapted<M: Module + ?Sized>(
        module: &M,
        bytes: &[u8],
        names: &Names,
        exactly: bool,
        settings: impl FnOnce() -> Result<Option<Settings>>,
    ) -> Result<Self> {
        names.check()?;
        let file = format::parse(bytes)?;
        let mut found = Found::new(&file, &format::aliases(bytes, &file)?, names)?;
        found.refuse(format::not_converted(&format::words(bytes)?), names);
        for leaf in module.leaves().iter().filter(|leaf| leaf.role != Role::Constant) {
            found.read(leaf, names)?;
        }
        let is_of_peft = file.names().iter().any(|name| peft::is_peft(name));
        if let (true, Some(settings)) = (is_of_peft, if is_of_peft { settings()? } else { None }) {
            found.scale(module, &settings)?;
        }
        let ties = if exactly { found.ties() } else { Vec::new() };
        let (tensors, mut report) = found.finish()?;
        expect_adapters_placed(&report, is_of_peft)?;
        if exactly {
            report.strict().map_err(|error| error.context("the file is of another model; nothing was loaded"))?;
            report.shared.clear();
        }
        Ok(Self { tensors, ties, report })
    }

    /// Puts the values into the model that they were read for. An error changes nothing.
    pub(crate) fn put<M: Module + ?Sized>(self, module: &mut M) -> Result<LoadReport> {
        tie(module, &self.ties).map_err(|error| {
            Error::new(ErrorKind::Checkpoint, format!("the file is of another model; nothing was loaded: {error}"))
        })?;
        for leaf in module.leaves() {
            if let Some(tensor) = self.tensors.get(&leaf.path) {
                leaf.cell().set(tensor.clone());
            }
        }
        Ok(self.report)
    }
}

/// The identity of data in a file: the name under which it is stored, and the part.
type Data = (String, Part);

/// Refuses a file whose adapters, or what was trained with them, find no place: the model would compute something else
/// than the one that was saved.
fn expect_adapters_placed(report: &LoadReport, is_of_peft: bool) -> Result<()> {
    let Some(name) = report.unexpected.iter().find(|name| is_of_peft || peft::is_part(name)) else { return Ok(()) };
    let reason = match peft::is_part(name) {
        true => "is a part of an adapter, and the model has no place for it",
        false => "was trained with the adapters of the file, and the model has no place for it",
    };
    bail!(
        Checkpoint,
        "`{}` {reason}; nothing was loaded. `Lora::attach` makes places, the rules of `Names` lead there, and `Names::ignore` \
         leaves it out on purpose\n{}",
        shortened(name),
        report.difference()
    )
}

/// A name in the file, or a part of its tensor.
struct Entry<'a> {
    /// The name in the file.
    name: String,
    /// Several names may have the same data.
    data: Data,
    view: TensorView<'a>,
}

/// The contents of a file for a model.
struct Found<'a> {
    /// By the paths that the rules make of the names.
    entries: BTreeMap<String, Entry<'a>>,
    /// The names and reasons of tensors that were not converted, by the paths that the rules make of the names.
    refused: BTreeMap<String, (String, String)>,
    ignored: Vec<String>,
    /// By the leaf's first path.
    tensors: HashMap<String, Tensor>,
    /// The data that was used, and the first path of each leaf that uses it.
    used: HashMap<Data, Vec<String>>,
    loaded: Vec<String>,
    missing: Vec<Lone>,
    mismatched: Vec<Mismatch>,
}

/// A leaf and an entry of its name that do not fit.
struct Mismatch {
    leaf: Lone,
    message: String,
}

impl<'a> Found<'a> {
    /// The entries under all names, those that share the memory of another name included: each follows the rules by
    /// itself.
    ///
    /// # Errors
    ///
    /// Fails if the rules give two names with different data the same path, or split a tensor that cannot be split.
    fn new(file: &SafeTensors<'a>, aliases: &BTreeMap<String, String>, names: &Names) -> Result<Self> {
        let mut entries: BTreeMap<String, Entry<'a>> = BTreeMap::new();
        let mut ignored = Vec::new();
        let mut all: Vec<(&str, &str)> = file.names().into_iter().map(|name| (name, name)).collect();
        all.extend(aliases.iter().map(|(alias, name)| (&**alias, &**name)));
        all.sort_unstable();
        for (name, stored) in all {
            let view = file.tensor(stored).map_err(format::malformed)?;
            let paths = names.paths(name);
            if paths.is_empty() {
                ignored.push(name.to_owned());
            }
            for (path, part) in paths {
                let view = part_of(&view, part).map_err(|error| error.context(format_args!("`{name}`")))?;
                let (name, data) = (name.to_owned(), (stored.to_owned(), part));
                if let Some(other) = entries.get(&path).filter(|other| other.data != data) {
                    bail!(Checkpoint, "the rules make both `{}` and `{name}` of the file `{path}`", other.name);
                }
                entries.entry(path).or_insert(Entry { name, data, view });
            }
        }
        let (loaded, missing, mismatched) = (Vec::new(), Vec::new(), Vec::new());
        let (tensors, used, refused) = (HashMap::new(), HashMap::new(), BTreeMap::new());
        Ok(Self { entries, refused, ignored, tensors, used, loaded, missing, mismatched })
    }

    /// Takes the tensors of the original file that were not converted. A model that needs one cannot be loaded.
    fn refuse(&mut self, refused: BTreeMap<String, String>, names: &Names) {
        for (name, why) in refused {
            let paths = names.paths(&name);
            if paths.is_empty() {
                self.ignored.push(name.clone());
            }
            self.refused.extend(paths.into_iter().map(|(path, _)| (path, (name.clone(), why.clone()))));
        }
    }

    /// The paths of each tensor that has several, first the one under which it is stored.
    fn ties(&self) -> Vec<Vec<String>> {
        let mut groups: BTreeMap<&Data, Vec<(bool, &String)>> = BTreeMap::new();
        for (path, Entry { name, data, .. }) in &self.entries {
            groups.entry(data).or_default().push((*name != data.0, path));
        }
        let sorted = |mut group: Vec<(bool, &String)>| {
            group.sort();
            group.into_iter().map(|(_, path)| path.clone()).collect()
        };
        groups.into_values().filter(|group| group.len() > 1).map(sorted).collect()
    }

    /// Reads the new value of `leaf`. A value that does not fit is recorded; an error comes from the device.
    fn read(&mut self, leaf: &Leaf<'_>, names: &Names) -> Result<()> {
        let lone = || Lone { path: leaf.path.clone(), name: None, shape: leaf.ty().shape.dims().to_vec() };
        let all: Vec<_> = leaf.paths().filter_map(|path| self.entries.get_key_value(path)).collect();
        let Some((name, Entry { view, data, .. })) = all.first() else {
            match leaf.paths().find_map(|path| Some((path, self.refused.remove(path)?))) {
                Some((_, (name, why))) => {
                    let message = format!("`{}`: {}", shortened(&name), shortened(&why));
                    self.mismatched.push(Mismatch { leaf: lone(), message });
                }
                None => self.missing.push(lone()),
            }
            return Ok(());
        };
        for (_, entry) in &all {
            let users = self.used.entry(entry.data.clone()).or_default();
            if users.last() != Some(&leaf.path) {
                users.push(leaf.path.clone());
            }
        }
        let is_another = |(_, other): &&(&String, &Entry<'a>)| {
            let bits = |view: &TensorView<'a>| (view.dtype(), view.shape().to_vec(), view.data());
            other.data != *data && bits(&other.view) != bits(view)
        };
        if let Some((other, _)) = all.iter().find(is_another) {
            let message = format!("`{name}` and `{other}` are tied in the model, but differ in the file");
            self.mismatched.push(Mismatch { leaf: lone(), message });
            return Ok(());
        }
        let value = leaf.value();
        let Entry { name: stored, .. } = &all[0].1;
        let view = match names.rank_of(stored).and_then(|rank| of_rank(view, rank, value.shape().dims())) {
            Some(view) => view?,
            None => view.clone(),
        };
        match format::read(&view, &value) {
            Ok(tensor) => {
                self.tensors.insert(leaf.path.clone(), tensor);
                self.loaded.push(leaf.path.clone());
            }
            Err(error) if error.kind() == ErrorKind::Checkpoint => {
                let message = error.context(format_args!("`{}`", leaf.path)).to_string();
                self.mismatched.push(Mismatch { leaf: lone(), message });
            }
            Err(error) => return Err(error.context(&leaf.path)),
        }
        Ok(())
    }

    /// Gives the adapters of a model the scales of the file's settings, unless the file has them.
    fn scale<M: Module + ?Sized>(&mut self, module: &M, settings: &Settings) -> Result<()> {
        if settings.has_magnitudes || settings.has_biases {
            let setting = if settings.has_magnitudes { "use_dora" } else { "lora_bias" };
            bail!(Checkpoint, "`{setting}` is true: load the adapters by `Lora::load_peft`; nothing was loaded");
        }
        let leaves = module.leaves();
        let ranks: HashMap<&str, usize> = leaves
            .iter()
            .filter_map(|leaf| Some((leaf.path.strip_suffix("lora_a")?, *leaf.ty().shape.dims().first()?)))
            .collect();
        for leaf in &leaves {
            let rank = leaf.path.strip_suffix("lora_scale").and_then(|adapter| ranks.get(adapter));
            let Some(&rank) = rank.filter(|_| !self.tensors.contains_key(&leaf.path)) else { continue };
            let value = leaf.value();
            // The patterns of the settings match the names in the file.
            let adapter = leaf.path.strip_suffix("lora_scale").expect("it was stripped");
            let module = match self.entries.get(&format!("{adapter}lora_a")) {
                Some(entry) => peft::parsed(&entry.name).0.to_owned(),
                None => adapter.to_owned(),
            };
            let scale = Tensor::from_f64(value.device(), value.shape(), &[settings.scale(&module, rank)?]);
            self.tensors.insert(leaf.path.clone(), scale.map_err(|error| error.context(&leaf.path))?);
            self.missing.retain(|lone| lone.path != leaf.path);
            self.loaded.push(leaf.path.clone());
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(HashMap<String, Tensor>, LoadReport)> {
        let mut unexpected = Vec::new();
        for (path, Entry { name, data, view }) in self.entries {
            // Data that was used under another name is not lost.
            if self.used.contains_key(&data) {
                continue;
            }
            match path.rsplit('.').next() {
                Some(COUNTER) => self.ignored.push(name),
                _ => unexpected.push(Lone { path, name: Some(name), shape: view.shape().to_vec() }),
            }
        }
        let refused = self.refused.into_iter();
        unexpected.extend(refused.map(|(path, (name, _))| Lone { path, name: Some(name), shape: Vec::new() }));
        let describe = |mismatch: &Mismatch| format!("  {}", mismatch.describe(&unexpected));
        let mut mismatched: Vec<_> = self.mismatched.iter().take(LISTED).map(describe).collect();
        mismatched.extend(and_more(self.mismatched.len()));
        let mut report = LoadReport::new(self.loaded, self.missing, unexpected, self.ignored);
        report.shared = self.used.into_values().filter(|leaves| leaves.len() > 1).collect();
        report.shared.sort();
        if !mismatched.is_empty() {
            let mut message = format!("the file is of another model; nothing was loaded:\n{}", mismatched.join("\n"));
            if report.strict().is_err() {
                message = format!("{message}\n{}", report.difference());
            }
            bail!(Checkpoint, "{message}");
        }
        if report.loaded.is_empty() && !report.missing.is_empty() {
            let message = format!("the file has no name in common with the model\n{}", report.difference());
            return Err(Error::new(ErrorKind::Checkpoint, message));
        }
        Ok((self.tensors, report))
    }
}

impl Mismatch {
    /// The message, with an entry of the file that would fit and that nothing else needs.
    fn describe(&self, unexpected: &[Lone]) -> String {
        let fitting = || unexpected.iter().filter(|lone| lone.shape == self.leaf.shape);
        match self.leaf.nearest(fitting(), fitting().nth(1).is_none()) {
            Some(Lone { name: Some(name), .. }) => format!("{}; did you mean `{name}`?", self.message),
            _ => self.message.clone(),
        }
    }
}

/// A tensor of this rank in the shape that a model has for it, if they differ in axes of extent 1 at the end.
fn of_rank<'a>(view: &TensorView<'a>, rank: usize, dims: &[usize]) -> Option<Result<TensorView<'a>>> {
    if view.shape().len() != rank || without_ones(view.shape()) != without_ones(dims) {
        return None;
    }
    Some(TensorView::new(view.dtype(), dims.to_vec(), view.data()).map_err(format::malformed))
}

/// The extents up to the last that is not 1.
pub(super) fn without_ones(dims: &[usize]) -> &[usize] {
    let end = dims.iter().rposition(|&extent| extent != 1).map_or(0, |last| last + 1);
    &dims[..end]
}

/// A part of a tensor along its first axis.
fn part_of<'a>(view: &TensorView<'a>, part: Part) -> Result<TensorView<'a>> {
    if part == Part::WHOLE {
        return Ok(view.clone());
    }
    let mut shape = view.shape().to_vec();
    match shape.first_mut() {
        Some(first) if first.is_multiple_of(part.of) => *first /= part.of,
        _ => bail!(Checkpoint, "{:?} in the file does not fall into {} equal parts", view.shape(), part.of),
    }
    let length = view.data().len() / part.of;
    let data = &view.data()[part.index * length..][..length];
    TensorView::new(view.dtype(), shape, data).map_err(format::malformed)
}
