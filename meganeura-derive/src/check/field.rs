//! Checks of a single field: contradicting options, a key that cannot be part of a path, a type that cannot be visited.

use syn::{LitStr, Type};

use super::contents::contents;
use crate::ast::Field;
use crate::attr::{Given, Init};
use crate::ctxt::Ctxt;

pub fn check(ctxt: &Ctxt, field: &Field<'_>) {
    check_skip(ctxt, field);
    check_rename(ctxt, field.options.rename.as_ref());
    check_type(ctxt, field);
}

/// A skipped field is not visited, saved or applied, so options for that contradict `skip`.
fn check_skip(ctxt: &Ctxt, field: &Field<'_>) {
    let options = &field.options;
    if !field.is_skipped() {
        return;
    }
    let contradictions = [
        (options.rename.as_ref().map(|given| &given.name), "a skipped field is not saved, so it has no key"),
        (options.frozen.as_ref().map(|given| &given.name), "a skipped field is not trained anyway"),
        (options.before.as_ref().map(|given| &given.name), "a skipped field is not applied"),
        (options.then.as_ref().map(|given| &given.name), "a skipped field is not applied"),
        (options.recompute.as_ref().map(|given| &given.name), "a skipped field is not applied"),
    ];
    for (name, reason) in contradictions {
        if let Some(name) = name {
            ctxt.error(name, format!("{reason}; remove `{name}` or `skip`"));
        }
    }
    if let Some(init) = &options.init
        && matches!(init.value, Init::FromSeed)
    {
        ctxt.error(&init.name, "a skipped field needs a plain value: `#[module(skip, init = 0.5)]`");
    }
}

/// A key must be a valid segment of a path.
pub fn check_rename(ctxt: &Ctxt, rename: Option<&Given<LitStr>>) {
    let Some(rename) = rename else { return };
    let key = rename.value.value();
    if key.is_empty() {
        ctxt.error(&rename.value, "a key cannot be empty; remove `rename`, or give a name");
    } else if key.contains('.') {
        ctxt.error(&rename.value, "a key cannot contain a dot, which separates the names in a path; use `_`");
    }
}

/// Types whose values can never be visited, whatever they refer to. The compiler, which knows traits, finds the others.
fn check_type(ctxt: &Ctxt, field: &Field<'_>) {
    if field.is_skipped() || field.options.is_unclear {
        return;
    }
    for ty in contents(field.ty()) {
        let message = match ty {
            Type::Reference(_) => "a module owns its parameters: hold this by value, or add `#[module(skip)]`",
            Type::Ptr(_) => "a pointer cannot be visited: hold this by value, or add `#[module(skip)]`",
            Type::FnPtr(_) => "a function has nothing to train: add `#[module(skip)]`",
            _ => continue,
        };
        ctxt.error(ty, message);
    }
}
