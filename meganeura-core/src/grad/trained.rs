//! The parameters of a module that a step updates, each with its gradient.

use std::sync::Arc;

use crate::error::bail;
use crate::module::{Leaf, Module, ModuleExt, Role};
use crate::param::Cell;
use crate::{Error, ErrorKind, Grads, Result, Var};

/// A parameter to be updated.
#[derive(Debug)]
pub struct Trained {
    pub cell: Arc<Cell>,
    pub path: String,
    pub dw: Var,
    /// Its index among the module's leaves.
    pub leaf: usize,
}

/// The trained parameters, each with its gradient, without those that [may lack one](Grads::allow_unused). Refuses
/// gradients of a tape for inference.
#[doc(hidden)]
pub fn expect_gradients(leaves: &[Leaf<'_>], grads: &Grads) -> Result<Vec<Trained>> {
    if !grads.tape().is_training() {
        bail!(
            Argument,
            "the gradients are of a tape for inference, on which dropout does nothing and batch normalisation uses running \
             statistics that do not move: record steps on `Tape::new`; to train on in that mode, call `net.evaluate(\"**\")` first"
        );
    }
    let (trained, missing) = trained(leaves, grads);
    let refused: Vec<_> = missing.iter().copied().filter(|leaf| !grads.may_lack(leaf)).collect();
    if !refused.is_empty() {
        return Err(no_gradient(&refused, grads));
    }
    let left_out = |trained: &&Trained| !grads.has_sum_of(&trained.cell);
    if let Some(Trained { path, .. }) = trained.iter().find(left_out) {
        bail!(
            Argument,
            "`{path}` was left out of `accumulate`, so its gradient is that of the last micro-batch alone; give `accumulate` all \
             that is stepped"
        );
    }
    if !missing.is_empty() && !grads.reach_parameters() {
        bail!(
            NoGradient,
            "the loss depends on no parameter at all; `allow_unused` permits some without a gradient, not all"
        );
    }
    if trained.is_empty() && missing.is_empty() && leaves.iter().any(|leaf| leaf.role == Role::Frozen) {
        bail!(NoGradient, "every parameter is frozen, so the step would change nothing; `thaw` some");
    }
    Ok(trained)
}

/// The parameters that are not frozen and have gradients. There is at least one, unless all
/// [may lack one](Grads::allow_unused): gradients of another model would have no effect.
#[doc(hidden)]
pub fn expect_some(module: &dyn Module, grads: &Grads) -> Result<Vec<Trained>> {
    let leaves = module.leaves();
    let (trained, missing) = trained(&leaves, grads);
    let is_unused = !missing.is_empty() && missing.iter().all(|leaf| grads.may_lack(leaf));
    if trained.is_empty() && !is_unused { Err(grads.none_of(&leaves)) } else { Ok(trained) }
}

/// The parameters that are not frozen: those with a gradient, and those without. Gives a path to each that has none.
pub fn trained<'a>(leaves: &'a [Leaf<'a>], grads: &Grads) -> (Vec<Trained>, Vec<&'a Leaf<'a>>) {
    let (mut trained, mut missing) = (Vec::new(), Vec::new());
    for (index, leaf) in leaves.iter().enumerate() {
        // A part that is stepped separately keeps the names that it has in the whole.
        if leaf.cell().path().is_none() {
            leaf.name();
        }
        let Some(param) = leaf.param().filter(|_| leaf.role == Role::Trained) else { continue };
        match grads.get(param) {
            Some(dw) => {
                trained.push(Trained { cell: Arc::clone(leaf.cell()), path: leaf.path.clone(), dw, leaf: index });
            }
            None => missing.push(leaf),
        }
    }
    (trained, missing)
}

fn no_gradient(missing: &[&Leaf<'_>], grads: &Grads) -> Error {
    let paths = |leaves: &[&Leaf<'_>]| listed(&leaves.iter().map(|leaf| &leaf.path).collect::<Vec<_>>());
    let (frozen, unused): (Vec<&Leaf<'_>>, Vec<_>) = missing.iter().partition(|leaf| grads.was_frozen(leaf.cell()));
    let message = match &unused[..] {
        [] => format!(
            "frozen during the backward pass: {}; record the step again. If the model was assembled from parts of \
             another one, call `name_parameters` on it first",
            paths(&frozen)
        ),
        unused => format!(
            "the loss does not depend on {}, so nothing would train there; use what `forward` left out, or freeze it \
             (`#[module(frozen)]` on the field, or `freeze`), or, if it is meant to be left out, say so: \
             `grads.allow_unused(\"…\")`",
            paths(unused)
        ),
    };
    Error::new(ErrorKind::NoGradient, message)
}

/// Paths for a message; only the first few if there are many.
pub fn listed<P: AsRef<str>>(paths: &[P]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<_> = paths.iter().take(SHOWN).map(|path| format!("`{}`", path.as_ref())).collect();
    match paths.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_cut() {
        let paths: Vec<_> = (0..10).map(|i| i.to_string()).collect();
        assert_eq!(listed(&paths[..2]), "`0`, `1`");
        assert_eq!(listed(&paths), "`0`, `1`, `2`, `3`, `4`, `5`, `6`, `7` and 2 more");
    }
}
