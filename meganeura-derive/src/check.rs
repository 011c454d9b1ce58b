//! What makes sense: options that contradict each other, fields that cannot be visited, keys given twice.

use std::collections::HashMap;

use syn::{Ident, Type};

use crate::ast::{Data, Field, Input, Variant};
use crate::attr::Init;
use crate::ctxt::Ctxt;

/// Finds every mistake that can be seen without knowing types.
pub fn check(ctxt: &Ctxt, input: &Input<'_>) {
    match &input.data {
        Data::Struct(fields) => {
            check_keys(ctxt, fields);
            check_init(ctxt, fields);
            check_sequential(ctxt, input, fields);
        }
        Data::Enum(variants) => {
            check_enum(ctxt, input, variants);
            for variant in variants {
                check_keys(ctxt, &variant.fields);
            }
        }
        Data::Union(data) => {
            ctxt.error(data.union_token, "which field of a union holds a value is not known; make it an enum");
        }
    }
    for field in input.data.fields() {
        check_skip(ctxt, field);
        check_rename(ctxt, field);
        check_type(ctxt, field);
    }
}

/// A skipped field is not visited, saved or applied, and what says how is a contradiction.
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

fn check_rename(ctxt: &Ctxt, field: &Field<'_>) {
    let Some(rename) = &field.options.rename else { return };
    let key = rename.value.value();
    if key.is_empty() {
        ctxt.error(&rename.value, "a key cannot be empty; remove `rename`, or give a name");
    } else if key.contains('.') {
        ctxt.error(&rename.value, "a key cannot contain a dot, which separates the names in a path; use `_`");
    }
}

fn check_keys(ctxt: &Ctxt, fields: &[Field<'_>]) {
    let mut seen = HashMap::new();
    for field in fields.iter().filter(|field| !field.is_skipped()) {
        let Some(first) = seen.insert(field.key(), field) else { continue };
        let message = format!(
            "`{}` and `{}` would both be saved as `{}`; `rename` one of them",
            first.name(),
            field.name(),
            field.key()
        );
        match &field.options.rename {
            Some(rename) => ctxt.error(&rename.value, message),
            None => ctxt.error(field.tokens(), message),
        }
    }
}

/// Types of which no value can be visited, whatever they refer to. Others are found by the compiler, which knows traits.
fn check_type(ctxt: &Ctxt, field: &Field<'_>) {
    if field.is_skipped() || field.options.is_unclear {
        return;
    }
    let message = match ungroup(field.ty()) {
        Type::Reference(_) => "a module owns what it trains: hold this by value, or add `#[module(skip)]`",
        Type::Ptr(_) => "a pointer cannot be visited: hold this by value, or add `#[module(skip)]`",
        Type::FnPtr(_) => "a function has nothing to train: add `#[module(skip)]`",
        _ => return,
    };
    ctxt.error(field.ty(), message);
}

fn ungroup(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => ungroup(&group.elem),
        Type::Paren(paren) => ungroup(&paren.elem),
        ty => ty,
    }
}

/// Either every field says how it is built, or none does.
fn check_init(ctxt: &Ctxt, fields: &[Field<'_>]) {
    if fields.iter().all(|field| field.options.init.is_none()) {
        return;
    }
    let unbuilt = fields.iter().filter(|field| field.options.init.is_none() && !field.options.is_unclear);
    let (skipped, missing): (Vec<_>, Vec<_>) = unbuilt.partition(|field| field.is_skipped());
    if let [first, ..] = missing[..] {
        let names: Vec<_> = missing.iter().map(|field| format!("`{}`", field.name())).collect();
        let message = format!("`init` is missing on {}; give it to every field, or to none", names.join(", "));
        ctxt.error(first.tokens(), message);
    }
    for field in skipped {
        let name = field.name();
        let message =
            format!("`{name}` is skipped, but `init` must still give it a value: `#[module(skip, init = …)]`");
        ctxt.error(field.tokens(), message);
    }
}

fn check_sequential(ctxt: &Ctxt, input: &Input<'_>, fields: &[Field<'_>]) {
    if let Some(sequential) = &input.options.sequential {
        if fields.iter().all(Field::is_skipped) {
            ctxt.error(&sequential.name, "there is no field to apply; remove `sequential`, or add a layer");
        }
    } else if !input.options.is_unclear {
        for (name, _) in steps(fields).filter(|(_, field)| !field.is_skipped()) {
            let message =
                format!("nothing applies `{name}`; to have it done, put `#[module(sequential)]` above `struct`");
            ctxt.error(name, message);
        }
    }
}

/// The `before` and `then` of fields.
fn steps<'a>(fields: impl IntoIterator<Item = &'a Field<'a>>) -> impl Iterator<Item = (&'a Ident, &'a Field<'a>)> {
    fields.into_iter().flat_map(|field| {
        let options = [&field.options.before, &field.options.then];
        options.into_iter().flatten().map(move |given| (&given.name, field))
    })
}

fn check_enum(ctxt: &Ctxt, input: &Input<'_>, variants: &[Variant<'_>]) {
    if variants.is_empty() {
        ctxt.error(
            &input.original.ident,
            "an enum without variants has no values, and nothing to visit; add a variant",
        );
    }
    if let Some(sequential) = &input.options.sequential {
        ctxt.error(
            &sequential.name,
            "the variants of an enum do not follow one another; write `impl Layer` with a `match`, or use a struct",
        );
    }
    for (name, _) in input.data.fields().flat_map(|field| steps([field])) {
        ctxt.error(
            name,
            format!("an enum has no generated `forward`; remove `{name}` and write `impl Layer` with a `match`"),
        );
    }
    for init in input.data.fields().filter_map(|field| field.options.init.as_ref()) {
        ctxt.error(
            &init.name,
            "which variant is to be built is not known; remove `init` and implement `Init` for a builder",
        );
    }
}
