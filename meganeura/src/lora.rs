//! Fine-tuning with low-rank matrices beside frozen weights.
//!
//! Knows modules, parameters and their adapters, but no layers: layers ask their parameters.

#[cfg(not(target_family = "wasm"))]
mod file;
#[cfg(not(target_family = "wasm"))]
mod peft;

use std::collections::{HashMap, HashSet};

use crate::error::{bail, here};
use crate::init::Initializer;
use crate::module::{At, Leaf, Module, ModuleExt, Seed, Selection, Slot, SlotMut};
use crate::param::{Adapter, Use};
use crate::{Buffer, Device, Param, Precision, Result, Shape, Tape, Tensor};

/// Low-rank adaptation: trains `B·A` beside a frozen weight `W`, which acts as `W + α/r·B·A`.
/// [Hu et al., 2021](https://arxiv.org/abs/2106.09685).
///
/// [`attach`](Self::attach) adds adapters to the matrices and kernels of a model, by a pattern of their paths, without
/// a change to its struct. An adapter's factors are additional leaves below the weight, `head.weight.lora_a` and
/// `head.weight.lora_b`. Optimizers, checkpoints, averages and summaries see them like any other leaves.
/// [`Linear`](crate::nn::Linear), [`Conv`](crate::nn::Conv) and [`ConvTranspose`](crate::nn::ConvTranspose) multiply by
/// one factor after the other, so no gradient of the weight's size is computed. Other layers use the sum.
///
/// ```
/// use meganeura::prelude::*;
///
/// # fn main() -> meganeura::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("adapters.safetensors");
/// let device = Device::cpu();
/// let mut net = (Linear::new(16, 32), Relu, Linear::new(32, 4)).init(&device, Seed::new(1))?;
/// let before = net.2.weight.value().to_vec()?;
///
/// Lora::new(2).alpha(4.0).attach(&mut net, "*.weight", 7)?;
/// assert_eq!(net.counts().trained, 2 * (16 + 32) + 2 * (32 + 4));
///
/// let mut optimizer = AdamW::new(1e-2);
/// let x = Tensor::randn(&device, [8, 16], 3)?;
/// for _ in 0..3 {
///     let tape = Tape::new(&device);
///     let grads = tape.backward(&net.forward(&tape.input(&x)).square().mean())?;
///     optimizer.step(&mut net, &grads)?;
/// }
/// assert_eq!(net.2.weight.value().to_vec()?, before); // frozen
///
/// Adapters::of(&net).save(&path)?; // the factors alone
/// Lora::merge(&mut net)?; // into the weights
/// assert_ne!(net.2.weight.value().to_vec()?, before);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct Lora {
    rank: usize,
    alpha: f64,
    dropout: f64,
}

impl Lora {
    /// Adapters of this rank, with `α = rank`, which makes the factor 1.
    pub fn new(rank: usize) -> Self {
        Self { rank, alpha: rank as f64, dropout: 0.0 }
    }

    /// Sets α, the numerator of the factor `α/rank` of `B·A`.
    pub fn alpha(self, alpha: f64) -> Self {
        Self { alpha, ..self }
    }

    /// Drops elements of the input of `A` with probability `p` in training, as PEFT's `lora_dropout` does; 0 by
    /// default.
    ///
    /// As in PEFT, the adapters of embeddings drop nothing. It is no part of a file of [`Adapters`].
    pub fn dropout(self, p: f64) -> Self {
        Self { dropout: p, ..self }
    }

    /// Adds an adapter to each matrix and kernel whose path matches the pattern, as for [`freeze`](ModuleExt::freeze).
    /// Vectors that match get none. Returns the number of adapters.
    ///
    /// Every other parameter of the module is frozen. [Thaw](ModuleExt::thaw) those that train as a whole, such as a
    /// new head, afterwards.
    ///
    /// A kernel is a matrix of its first axis by all others. `A` is drawn uniformly from ±1/√in and `B` is 0, as in
    /// PEFT, so the model computes the same as before. A tied parameter gets one adapter, tied as well, if the module
    /// contains all places of the parameter; so call this, and [`merge`](Self::merge), on the whole model. A clone of
    /// the module has adapters of its own. A function that was [compiled](Device::compile) before does not have the
    /// adapters.
    ///
    /// # Errors
    ///
    /// Fails if the rank is 0 or α is not finite; if the pattern matches nothing (the message names paths near it) or
    /// no matrix; if a parameter already has an adapter, is a factor of one, or is in a module that several share by
    /// `Arc`; or if the device runs out of memory. On error, nothing changes.
    #[track_caller]
    pub fn attach<M: Module + ?Sized>(&self, module: &mut M, pattern: &str, seed: impl Into<Seed>) -> Result<usize> {
        let seed = seed.into();
        here(|| self.attach_at(module, pattern, seed))
    }

    fn attach_at<M: Module + ?Sized>(&self, module: &mut M, pattern: &str, seed: Seed) -> Result<usize> {
        let Self { rank, alpha, dropout } = *self;
        if rank == 0 || !alpha.is_finite() {
            bail!(Argument, "lora: of rank {rank} and α {alpha}; the rank must be at least 1, and α a number");
        }
        expect_dropout(dropout)?;
        let adapters = {
            let leaves = module.leaves();
            let selected = Selection::Pattern(pattern.into()).among(&leaves)?;
            let selected: Vec<_> = selected.into_iter().map(|at| &leaves[at]).collect();
            expect_bare(&selected, &factors(&leaves))?;
            let mut adapters = HashMap::new();
            for leaf in &selected {
                let Some(extents) = Adapter::matrix(leaf.ty().shape) else { continue };
                expect_droppable(leaf, dropout)?;
                adapters.insert(leaf.cell().id(), self.draw(leaf, extents, seed.field(&leaf.path))?);
            }
            if adapters.is_empty() {
                let (path, ty) = (&selected[0].path, selected[0].ty());
                bail!(Argument, "lora: the pattern `{pattern}` selects no matrix and no kernel; `{path}` is {ty}");
            }
            adapters
        };
        put(module, &adapters)
    }

    fn draw(&self, leaf: &Leaf<'_>, [out, width]: [usize; 2], seed: Seed) -> Result<Adapter> {
        let value = leaf.value();
        let device = value.device();
        let a = Initializer::default().sample(device, [self.rank, width], seed.field("lora_a"));
        let b = Tensor::zeros(device, [out, self.rank]);
        let scale = Tensor::from_f64(device, Shape::SCALAR, &[self.alpha / self.rank as f64]);
        let error = |error: crate::Error| error.context(&leaf.path);
        Ok(Adapter {
            a: Param::new(a.map_err(error)?),
            b: Param::new(b.map_err(error)?),
            scale: Buffer::new(scale.map_err(error)?),
            magnitude: None,
            bias: None,
            // As in PEFT, adapters of embeddings drop nothing.
            dropout: if leaf.param().map(Param::usage) == Some(Use::Embedding) { 0.0 } else { self.dropout },
        })
    }

    /// Adds adapters from a file of saved [`Adapters`], each to the weight at its path.
    ///
    /// Freezes every other parameter, like [`attach`](Self::attach). Returns the number of adapters.
    /// [`save`](crate::io::Checkpoint::save) writes such a file.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// # fn main() -> meganeura::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("adapters.safetensors");
    /// let device = Device::cpu();
    /// let base = Linear::new(16, 4).init(&device, Seed::new(1))?;
    /// let mut tuned = base.clone();
    /// Lora::new(2).attach(&mut tuned, "weight", 7)?;
    /// Adapters::of(&tuned).save(&path)?;
    ///
    /// let mut other = base.clone();
    /// assert_eq!(Lora::load(&mut other, &path)?, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read; with [`Checkpoint`](crate::ErrorKind::Checkpoint) if it has anything but
    /// adapters, only a part of one, or one that fits no weight of the module; and like [`attach`](Self::attach) if a
    /// weight has an adapter. On error, nothing changes.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    pub fn load<M: Module + ?Sized>(module: &mut M, path: impl AsRef<std::path::Path>) -> Result<usize> {
        here(|| {
            let path = path.as_ref();
            let tensors = crate::io::load_tensors(path, &Device::cpu_with(Precision::Double))?.complete();
            let adapters = tensors.and_then(|tensors| file::read(&module.leaves(), tensors));
            let adapters = adapters.map_err(|error| error.context(path.display()))?;
            put(module, &adapters)
        })
    }

    /// Adds each adapter's product to its weight and removes the adapters. Returns their number. The sums are computed
    /// in double precision and rounded once. Frozen parameters stay frozen.
    ///
    /// # Errors
    ///
    /// Fails if there are no adapters, or the device fails. On error, nothing changes.
    #[track_caller]
    pub fn merge<M: Module + ?Sized>(module: &mut M) -> Result<usize> {
        here(|| {
            let merged =
                |param: &Param| Ok((param.cell().id(), (merged(param)?, without_effect(param)?, norms(param)?)));
            let values = expect_adapters(module)?.into_iter().map(merged).collect::<Result<HashMap<_, _>>>()?;
            expect_own(module, Param::is_adapted)?;
            each_own(module, |param| {
                if let (Some((value, zeros, norms)), Some(adapter)) = (values.get(&param.cell().id()), param.adapter())
                {
                    // Set once more where it is tied. Other holders of the adapter, such as a compiled function, add
                    // nothing from now on.
                    adapter.b.cell().set(zeros.clone());
                    if let (Some(magnitude), Some(norms)) = (&adapter.magnitude, norms) {
                        magnitude.cell().set(norms.clone());
                    }
                    param.cell().set(value.clone());
                    param.set_adapter(None);
                }
            });
            Ok(values.len())
        })
    }

    /// Removes the adapters, so that the weights act as before. Returns their number. Frozen parameters stay frozen.
    ///
    /// # Errors
    ///
    /// Fails if there are no adapters. On error, nothing changes.
    #[track_caller]
    pub fn detach<M: Module + ?Sized>(module: &mut M) -> Result<usize> {
        here(|| {
            let count = expect_adapters(module)?.len();
            expect_own(module, Param::is_adapted)?;
            each_own(module, |param| param.set_adapter(None));
            Ok(count)
        })
    }
}

/// A module's adapters as a module of their own, to save, load, count or print them without the rest.
///
/// Its leaves are the factors and the scales `α/r`, and what [`Lora::load_peft`] read beside them.
///
/// ```
/// use meganeura::prelude::*;
///
/// # fn main() -> meganeura::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("adapters.safetensors");
/// let device = Device::cpu();
/// let base = Linear::new(16, 4).init(&device, Seed::new(1))?;
///
/// let mut tuned = base.clone();
/// Lora::new(2).attach(&mut tuned, "weight", 7)?;
/// Adapters::of(&tuned).save(&path)?; // `weight.lora_a`, `weight.lora_b` and `weight.lora_scale`
///
/// let mut other = base.clone();
/// Lora::new(2).attach(&mut other, "weight", 8)?;
/// Adapters::of(&other).load(&path)?.strict()?;
/// # Ok(())
/// # }
/// ```
pub struct Adapters<'m> {
    module: &'m dyn Module,
    /// The tensors of adapters, by identity.
    cells: HashSet<u64>,
}

impl<'m> Adapters<'m> {
    /// The adapters of a module, none if it has none. Values are behind locks, so loading needs no exclusive borrow.
    #[must_use]
    pub fn of(module: &'m dyn Module) -> Self {
        let leaves = module.leaves();
        let tensors = leaves.iter().filter_map(|leaf| leaf.param()?.adapter()).flat_map(Adapter::cells);
        Self { module, cells: tensors.map(|cell| cell.id()).collect() }
    }
}

impl Module for Adapters<'_> {
    fn visit<'a>(&'a self, at: At<'_>, f: &mut dyn FnMut(At<'_>, Slot<'a>)) {
        self.module.visit(at, &mut |at, slot| {
            if slot.cell().is_some_and(|cell| self.cells.contains(&cell.id())) {
                f(at, slot);
            }
        });
    }

    fn visit_mut<'a>(&'a mut self, at: At<'_>, f: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {
        self.visit(at, &mut |at, slot| {
            if let Some(slot) = slot.shared() {
                f(at, slot);
            }
        });
    }
}

impl std::fmt::Debug for Adapters<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Adapters({} tensors)", self.cells.len())
    }
}

/// Puts these adapters on the parameters with their identities, and freezes every parameter that is not a factor.
fn put<M: Module + ?Sized>(module: &mut M, adapters: &HashMap<u64, Adapter>) -> Result<usize> {
    expect_own(module, |param| adapters.contains_key(&param.cell().id()))?;
    each_own(module, |param| {
        if let Some(adapter) = adapters.get(&param.cell().id()) {
            param.set_adapter(Some(adapter.tied()));
        }
    });
    let leaves = module.leaves();
    let factors = factors(&leaves);
    for leaf in &leaves {
        leaf.name();
        if leaf.param().is_some() {
            leaf.cell().set_frozen(!factors.contains(&leaf.cell().id()));
        }
    }
    Ok(adapters.len())
}

fn expect_dropout(p: f64) -> Result<()> {
    match p {
        0.0..1.0 => Ok(()),
        _ => bail!(Argument, "lora: dropout with probability {p}; it must be at least 0 and below 1"),
    }
}

/// Refuses dropout where no layer multiplies its input by one factor after the other.
fn expect_droppable(leaf: &Leaf<'_>, p: f64) -> Result<()> {
    let usage = leaf.param().map(Param::usage);
    if p > 0.0 && usage == Some(Use::Other) {
        let path = &leaf.path;
        bail!(
            Argument,
            "lora: `{path}` is not the weight of a linear layer, a convolution or an embedding, so there is no input whose \
             elements dropout could drop; attach adapters without dropout to it"
        );
    }
    Ok(())
}

/// Refuses parameters that have an adapter, or are a factor of one.
fn expect_bare(selected: &[&Leaf<'_>], factors: &HashSet<u64>) -> Result<()> {
    for leaf in selected {
        let path = &leaf.path;
        if leaf.param().is_some_and(Param::is_adapted) {
            bail!(Argument, "lora: `{path}` has an adapter; merge or detach it before it gets another");
        }
        if factors.contains(&leaf.cell().id()) {
            bail!(Argument, "lora: `{path}` is a factor of an adapter itself");
        }
    }
    Ok(())
}

/// The factors among these leaves, by identity.
fn factors(leaves: &[Leaf<'_>]) -> HashSet<u64> {
    let adapters = leaves.iter().filter_map(|leaf| leaf.param()?.adapter());
    adapters.flat_map(Adapter::params).map(|(_, param)| param.cell().id()).collect()
}

fn expect_adapters<M: Module + ?Sized>(module: &M) -> Result<Vec<&Param>> {
    let adapted: Vec<_> = module.leaves().iter().filter_map(Leaf::param).filter(|param| param.is_adapted()).collect();
    if adapted.is_empty() {
        bail!(Argument, "lora: no parameter of the module has an adapter");
    }
    Ok(adapted)
}

/// Refuses to change parameters that several modules share.
fn expect_own<M: Module + ?Sized>(module: &mut M, is_meant: impl Fn(&Param) -> bool) -> Result<()> {
    let mut shared = None;
    module.visit_mut(At::root(), &mut |at, slot| {
        if let SlotMut::Param(param) = slot
            && is_meant(&param)
            && !param.is_own()
        {
            shared.get_or_insert_with(|| at.path());
        }
    });
    match shared {
        Some(path) => bail!(Argument, "lora: `{path}` is in a module that is shared by `Arc`, so it stays as it is"),
        None => Ok(()),
    }
}

fn each_own<M: Module + ?Sized>(module: &mut M, mut f: impl FnMut(&mut Param)) {
    module.visit_mut(At::root(), &mut |_, slot| {
        if let SlotMut::Param(mut param) = slot
            && let Some(param) = param.own_mut()
        {
            f(param);
        }
    });
}

/// The value of `B` that gives an adapter no effect.
fn without_effect(param: &Param) -> Result<Tensor> {
    let b = param.adapter().expect("it is adapted").b.value();
    Tensor::zeros(b.device(), b.shape())
}

/// The magnitudes that give an adapter no effect on the merged weight: its norms, which have no sign.
fn norms(param: &Param) -> Result<Option<Tensor>> {
    let magnitude = param.adapter().and_then(|adapter| adapter.magnitude.as_ref());
    magnitude.map(|magnitude| magnitude.value().map(|magnitude| magnitude.abs())).transpose()
}

/// `W + s·B·A` with its magnitudes, on the weight's device.
fn merged(param: &Param) -> Result<Tensor> {
    let Some(adapter) = param.adapter() else { return Ok(param.value()) };
    let (weight, double) = (param.value(), Device::cpu_with(Precision::Double));
    let tape = Tape::inference(&double);
    for cell in adapter.cells().chain([param.cell()]) {
        tape.substitute(cell, cell.value().to_device(&double)?);
    }
    tape.param(param).to_tensor()?.to_device(weight.device())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::{Conv2d, Linear};
    use crate::{Init, Layer};

    /// As in PEFT: one factor starts uniform in ±1/√width, like a linear map, the other as 0.
    #[test]
    fn adapters_start_as_no_change() {
        fn factors(mut net: impl Layer) -> [Vec<f64>; 3] {
            Lora::new(64).alpha(16.0).attach(&mut net, "weight", 7).unwrap();
            let leaves = net.leaves();
            ["lora_a", "lora_b", "lora_scale"].map(|name| {
                let leaf = leaves.iter().find(|leaf| leaf.path == format!("weight.{name}")).unwrap();
                leaf.value().to_f64_vec().unwrap()
            })
        }
        let device = Device::cpu();
        let linear = factors(Linear::new(270, 96).init(&device, 1).unwrap());
        let conv = factors(Conv2d::new(30, 96, 3).init(&device, 1).unwrap());
        for [a, b, scale] in [linear, conv] {
            let (n, bound) = (a.len() as f64, 270f64.sqrt().recip());
            let largest = a.iter().fold(0f64, |largest, x| largest.max(x.abs()));
            let std = (a.iter().map(|x| x * x).sum::<f64>() / n).sqrt();
            assert!((1.0 - 12.0 / n..=1.0 + 1e-6).contains(&(largest / bound)), "{largest} of {bound}");
            // Five standard errors.
            assert!((std * 3f64.sqrt() / bound - 1.0).abs() < 5.0 * (0.2 / n).sqrt(), "{std}");
            assert!(b.iter().all(|&b| b == 0.0) && scale == [0.25]);
        }
    }
}
