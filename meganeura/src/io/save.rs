//! From a model to the bytes of a file.

use std::collections::{BTreeMap, HashSet};

use super::format;
use super::load::without_ones;
use super::names::{Names, Part};
use crate::error::bail;
use crate::module::{Module, ModuleExt, Role};
use crate::{Result, Tensor};

/// The parameters and buffers of a model, except constants, under the names that `names` maps to their paths.
pub(super) fn to_safetensors<M: Module + ?Sized>(
    module: &M,
    names: &Names,
) -> impl Future<Output = Result<Vec<u8>>> + use<M> {
    let contents = Contents::of(module, names).and_then(|Contents { tensors, aliases }| {
        let joined = |(name, parts): (String, Parts)| {
            let parts = parts.joined(&name)?.into_iter().map(|part| of_rank(part, names.rank_of(&name), &name));
            Ok((name.clone(), parts.collect::<Result<_>>()?))
        };
        Ok((tensors.into_iter().map(joined).collect::<Result<_>>()?, aliases))
    });
    async {
        let (tensors, aliases) = contents?;
        format::write(tensors, aliases).await
    }
}

/// A tensor with the number of axes that it has in the file, if a rule gives it.
fn of_rank(tensor: Tensor, rank: Option<usize>, name: &str) -> Result<Tensor> {
    let Some(rank) = rank else { return Ok(tensor) };
    let shape = tensor.shape();
    let mut dims = without_ones(shape.dims()).to_vec();
    if dims.len() > rank {
        bail!(Argument, "the rules give `{name}` {rank} axes, and it is {shape} in the model");
    }
    dims.resize(rank, 1);
    tensor.reshape(&dims[..])
}

/// The contents of a file.
#[derive(Default)]
struct Contents {
    tensors: BTreeMap<String, Parts>,
    /// The aliases of tied tensors, each with the name under which the tensor is stored.
    aliases: BTreeMap<String, String>,
}

/// The parts of one tensor in the file, with their paths.
struct Parts(Vec<Option<(String, Tensor)>>);

impl Contents {
    fn of<M: Module + ?Sized>(module: &M, names: &Names) -> Result<Self> {
        names.check()?;
        let mut contents = Self::default();
        let mut known = HashSet::new();
        for leaf in module.leaves().into_iter().filter(|leaf| leaf.role != Role::Constant) {
            if let Some(path) = leaf.paths().find(|path| !known.insert((*path).to_owned())) {
                bail!(
                    Checkpoint,
                    "two parameters have the path `{path}`, so one of them would be lost; rename a field"
                );
            }
            let first = names.name(&leaf.path)?;
            contents.add(&leaf.path, &first, leaf.value())?;
            for alias in &leaf.aliases {
                let other = names.name(alias)?;
                // A tie holds between whole tensors of a file; parts are stored at each of their places.
                match (first.1, other.1) {
                    (Part::WHOLE, Part::WHOLE) => drop(contents.aliases.insert(other.0, first.0.clone())),
                    _ => contents.add(alias, &other, leaf.value())?,
                }
            }
        }
        Ok(contents)
    }

    fn add(&mut self, path: &str, (name, part): &(String, Part), tensor: Tensor) -> Result<()> {
        let Parts(parts) = self.tensors.entry(name.clone()).or_insert_with(|| Parts(vec![None; part.of]));
        if let Some((other, _)) = parts.get(part.index).and_then(Option::as_ref) {
            bail!(
                Argument,
                "both `{other}` and `{path}` would be saved as `{name}`; another rule must tell them apart"
            );
        }
        if parts.len() != part.of {
            bail!(
                Argument,
                "`{path}` would be a part of `{name}`, but the rules split `{name}` into different numbers of parts"
            );
        }
        parts[part.index] = Some((path.to_owned(), tensor));
        Ok(())
    }
}

impl Parts {
    /// All parts, in order.
    fn joined(self, name: &str) -> Result<Vec<Tensor>> {
        let Self(parts) = self;
        let of = parts.len();
        let there: Vec<_> = parts.into_iter().flatten().collect();
        let [(first, tensor), ..] = &there[..] else { unreachable!("what has no part is not noted") };
        if there.len() < of {
            bail!(
                Argument,
                "`{name}` needs {of} parts, but the model has only {} (`{first}`, for one); add the others or change the rule",
                there.len()
            );
        }
        if let Some((other, _)) = there.iter().find(|(_, other)| of > 1 && !can_join(tensor, other)) {
            bail!(
                Argument,
                "`{first}` and `{other}` cannot be joined as `{name}`: parts must have equal shapes and at least one axis"
            );
        }
        Ok(there.into_iter().map(|(_, tensor)| tensor).collect())
    }
}

fn can_join(a: &Tensor, b: &Tensor) -> bool {
    a.ty() == b.ty() && a.shape().rank() > 0
}
