//! Parts of a model in evaluation, selected by path. The mode is kept with each leaf.

use super::near::nearest;
use super::pattern::matches;
use super::{At, Module};
use crate::Result;
use crate::error::{bail, shortened};

/// `true` if everything in the module is in evaluation; `None` if it has nothing with a mode.
pub(super) fn is_evaluated<M: Module + ?Sized>(module: &M) -> Option<bool> {
    let mut all = None;
    module.visit(At::root(), &mut |_, slot| {
        if let Some(mode) = slot.mode() {
            all = Some(all.unwrap_or(true) && mode.is_evaluated());
        }
    });
    all
}

/// Sets the mode of the parts whose paths match, and of everything below them.
pub(super) fn set_evaluated<M: Module + ?Sized>(module: &M, pattern: &str, evaluated: bool) -> Result<()> {
    let whole = if pattern.is_empty() { "**" } else { pattern };
    // A part of the model is a leaf's path without its last segment, or without several.
    let below = format!("{whole}.**.*");
    let (mut leaves, mut is_named) = (Vec::new(), false);
    module.visit(At::root(), &mut |at, slot| {
        let Some(mode) = slot.mode() else { return };
        let path = at.path();
        if matches(&below, &path) {
            mode.set_evaluated(evaluated);
            is_named = true;
        } else if !is_named {
            // For the message, if no part matches.
            leaves.push(path);
        }
    });
    if is_named { Ok(()) } else { no_part(pattern, &leaves) }
}

fn no_part(pattern: &str, leaves: &[String]) -> Result<()> {
    const SHOWN: usize = 4;
    let shown = shortened(pattern);
    if leaves.is_empty() {
        bail!(Argument, "the pattern `{shown}` names no part: there are no parameters, buffers or modes");
    }
    let leaf = leaves.iter().find(|path| matches(pattern, path));
    let hint = match leaf.map(|path| path.rsplit_once('.').map_or("**", |(part, _)| part)) {
        Some(part) => format!("; what it names is a leaf, whose part is `{}`", shortened(part)),
        None => String::new(),
    };
    let near = nearest(pattern, parts(leaves).map(|part| (part, 0, part)));
    let near: Vec<_> = near.into_iter().take(SHOWN).map(|(_, part)| format!("`{part}`, ")).collect();
    bail!(Argument, "the pattern `{shown}` names no part of the model{hint}; there are {}`**`", near.concat())
}

/// The parts that contain leaves, each once, if the leaves come in the order of a tree.
fn parts(leaves: &[String]) -> impl Iterator<Item = &str> {
    leaves.iter().enumerate().flat_map(|(index, path)| {
        let before = index.checked_sub(1).map_or("", |before| &*leaves[before]);
        let known = before.bytes().zip(path.bytes()).take_while(|(a, b)| a == b).count();
        path.match_indices('.').map(|(dot, _)| dot).filter(move |&dot| dot >= known).map(|dot| &path[..dot])
    })
}
