//! The layers of a chain and their order: `sequential`, `residual`, `before`, `then` and `recompute`.

use quote::ToTokens;
use syn::{Ident, Type};

use super::contents::ungroup;
use crate::ast::{Field, Input};
use crate::attr::{Given, nearest};
use crate::ctxt::Ctxt;

/// The options of a struct that has a `forward`, or should have one.
pub fn check(ctxt: &Ctxt, input: &Input<'_>, fields: &[Field<'_>]) {
    match &input.options.sequential {
        Some(sequential) => {
            let shortcut = input.shortcut();
            let is_shortcut = |field: &Field<'_>| shortcut.is_some_and(|shortcut| shortcut.member == field.member);
            if fields.iter().all(|field| field.is_skipped() || is_shortcut(field)) {
                ctxt.error(&sequential.name, "there is no field to apply; remove `sequential`, or add a layer");
            }
            if check_residual(ctxt, input, fields) {
                let chained = fields.iter().filter(|field| !field.is_skipped() && !is_shortcut(field));
                chained.for_each(|field| check_option(ctxt, field));
            }
        }
        None if input.options.is_unclear => {}
        None => {
            for name in options_of_sequential(input).chain(steps(fields)) {
                let message = format!("nothing applies `{name}`; put `#[module(sequential)]` above `struct`");
                ctxt.error(name, message);
            }
            for field in fields {
                let Some(name) = recompute(field) else { continue };
                let message = format!(
                    "nothing applies the field; write `self.{}.recompute(&x)` in your `forward`, or put \
                     `#[module(sequential)]` above `struct`",
                    field.name()
                );
                ctxt.error(name, message);
            }
        }
    }
}

/// Options that only a sequential struct can have.
pub fn options_of_sequential<'a>(input: &'a Input<'_>) -> impl Iterator<Item = &'a Ident> {
    let options = &input.options;
    options.residual.iter().map(|given| &given.name).chain(options.then.iter().map(|given| &given.name))
}

/// The `before` and `then` of fields that are visited.
pub fn steps<'a>(fields: impl IntoIterator<Item = &'a Field<'a>>) -> impl Iterator<Item = &'a Ident> {
    fields.into_iter().filter(|field| !field.is_skipped()).flat_map(|field| {
        let options = [&field.options.before, &field.options.then];
        options.into_iter().flatten().map(|given| &given.name)
    })
}

/// The `recompute` of a field that is visited.
pub fn recompute<'a>(field: &'a Field<'_>) -> Option<&'a Ident> {
    field.options.recompute.as_ref().filter(|_| !field.is_skipped()).map(|given| &given.name)
}

/// In a chain, `None` is ambiguous: the layer may pass its input on, or be a shortcut in the wrong place.
fn check_option(ctxt: &Ctxt, field: &Field<'_>) {
    let Type::Path(path) = ungroup(field.ty()) else { return };
    if path.path.segments.last().is_none_or(|last| last.ident != "Option" || last.arguments.is_none()) {
        return;
    }
    let message = format!(
        "a sequential struct cannot apply `None`: for a shortcut around the other fields, write \
         `#[module(sequential, residual = {})]`; for a layer that may be missing, use a `Vec`, which may be empty",
        field.name()
    );
    ctxt.error(field.ty(), message);
}

/// The field of `residual = field` must exist, and is applied to the input only. Returns `true` if the field was found.
fn check_residual(ctxt: &Ctxt, input: &Input<'_>, fields: &[Field<'_>]) -> bool {
    let Some(Given { value: Some(member), .. }) = &input.options.residual else { return true };
    let Some(field) = input.shortcut() else {
        let given = member.to_token_stream().to_string();
        let names = fields.iter().filter(|field| field.original.ident.is_some()).map(Field::name);
        let message = match nearest(&given, names) {
            Some(nearest) => format!("there is no field `{given}`; did you mean `{nearest}`?"),
            None => format!("there is no field `{given}`; name the field of the shortcut"),
        };
        ctxt.error(member, message);
        return false;
    };
    if let Some(skip) = &field.options.skip {
        ctxt.error(&skip.name, "a skipped field is not applied; remove `skip`, or name another field in `residual`");
    }
    for name in steps([field]) {
        let message = format!(
            "`{name}` is ambiguous if the shortcut is `None`; use a tuple of layers instead, such as `(Conv2d, Relu)`"
        );
        ctxt.error(name, message);
    }
    if let Some(name) = recompute(field) {
        ctxt.error(name, "a shortcut is too short to be worth recomputing; remove `recompute`");
    }
    true
}
