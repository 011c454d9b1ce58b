//! Files of saved [`Adapters`](super::Adapters).

use std::collections::{BTreeMap, HashMap, HashSet};

use super::expect_bare;
use crate::error::bail;
use crate::module::Leaf;
use crate::param::{Adapter, Use};
use crate::{Buffer, Param, Result, Shape, Tensor};

/// The adapters of a file, by the identity of the weight at each path.
pub(super) fn read(leaves: &[Leaf<'_>], mut tensors: BTreeMap<String, Tensor>) -> Result<HashMap<u64, Adapter>> {
    let mut adapters = HashMap::new();
    for leaf in leaves.iter().filter(|leaf| leaf.param().is_some()) {
        for path in leaf.paths() {
            let [a, b, scale] = ["lora_a", "lora_b", "lora_scale"].map(|part| tensors.remove(&below(path, part)));
            let (a, b, scale) = match (a, b, scale) {
                (None, None, None) => continue,
                (Some(a), Some(b), Some(scale)) => (a, b, scale),
                _ => bail!(Checkpoint, "the adapter of `{path}` is incomplete; nothing was loaded"),
            };
            expect_bare(&[leaf], &HashSet::new())?;
            let found = [&a, &b, &scale].map(Tensor::shape);
            let rank = found[0].dims().first().copied().unwrap_or(0);
            let groups = match leaf.param().map(Param::usage) {
                Some(Use::Conv { groups, .. }) => groups,
                _ => 1,
            };
            // PEFT's of a convolution in groups acts across them.
            let fits = Adapter::matrix(leaf.ty().shape).is_some_and(|[out, width]| {
                [1, groups].into_iter().filter(|groups| rank.is_multiple_of(*groups)).any(|groups| {
                    let factors = [Shape::from([rank, groups * width]), Shape::from([out, rank / groups])];
                    found == [factors[0], factors[1], Shape::SCALAR]
                })
            });
            if !fits {
                let ([a, b, scale], ty) = (found, leaf.ty());
                bail!(Checkpoint, "an adapter of {a}, {b} and {scale} does not fit `{path}` {ty}; nothing was loaded");
            }
            if let Some(integer) = [&a, &b, &scale].into_iter().find(|tensor| !tensor.ty().dtype.is_float()) {
                let ty = integer.ty();
                bail!(
                    Checkpoint,
                    "the adapter of `{path}` has a part {ty}, and its numbers are floats; nothing was loaded"
                );
            }
            let device = leaf.value().device().clone();
            let mut optional = |part: &str, fits: &dyn Fn(Shape) -> bool| {
                let Some(tensor) = tensors.remove(&below(path, part)) else { return Ok(None) };
                if !fits(tensor.shape()) || !tensor.ty().dtype.is_float() {
                    let (found, ty) = (tensor.ty(), leaf.ty());
                    bail!(Checkpoint, "`{part}` {found} does not fit `{path}` {ty}; nothing was loaded");
                }
                tensor.to_device(&device).map(|tensor| Some(Param::new(tensor)))
            };
            let (out, width) = (found[1][0], found[0][1]);
            let magnitude = optional(
                "lora_magnitude",
                &|shape| matches!(*shape.dims(), [rows, columns] if [(out, 1), (1, width)].contains(&(rows, columns))),
            )?;
            let bias = optional("lora_bias", &|shape| shape.dims() == [out])?;
            let [a, b, scale] = [a, b, scale].map(|tensor| tensor.to_device(&device));
            let (a, b, scale) = (Param::new(a?), Param::new(b?), Buffer::new(scale?));
            let adapter = Adapter { a, b, scale, magnitude, bias, dropout: 0.0 };
            if adapters.insert(leaf.cell().id(), adapter).is_some() {
                bail!(Checkpoint, "`{path}` is tied, and there is another adapter of it; nothing was loaded");
            }
        }
    }
    match tensors.first_key_value() {
        Some((name, _)) => {
            bail!(Checkpoint, "`{name}` does not belong to an adapter of the module; nothing was loaded")
        }
        None if adapters.is_empty() => bail!(Checkpoint, "there are no adapters"),
        None => Ok(adapters),
    }
}

/// The path of a part of a parameter, which may be the whole module.
fn below(path: &str, part: &str) -> String {
    if path.is_empty() { part.to_owned() } else { format!("{path}.{part}") }
}
