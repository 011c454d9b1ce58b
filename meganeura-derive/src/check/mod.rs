//! Checks of the whole input: options that contradict each other, fields that cannot be visited, duplicate keys.

mod build;
pub mod contents;
pub mod field;
mod generic;
mod layer;

use std::collections::HashMap;

use crate::ast::{Data, Field, Input, Variant};
use crate::ctxt::Ctxt;

/// Finds every mistake that can be seen without knowing types.
pub fn check(ctxt: &Ctxt, input: &Input<'_>) {
    match &input.data {
        Data::Struct(fields) => {
            check_keys(ctxt, fields);
            build::check_init(ctxt, fields);
            layer::check(ctxt, input, fields);
            if let Some(named) = &input.options.named_variants {
                ctxt.error(&named.name, "a struct has no variants; remove `named_variants`");
            }
        }
        Data::Enum(variants) => {
            check_enum(ctxt, input, variants);
            for variant in variants {
                check_variant(ctxt, variant);
            }
        }
        Data::Union(data) => {
            ctxt.error(data.union_token, "the derive cannot tell which field of a union holds a value; use an enum");
        }
    }
    build::check_config(ctxt, input);
    build::check_no_init(ctxt, input);
    build::check_input(ctxt, input);
    for field in input.data.fields() {
        field::check(ctxt, field);
    }
    generic::check(ctxt, input);
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

fn check_variant(ctxt: &Ctxt, variant: &Variant<'_>) {
    check_keys(ctxt, &variant.fields);
    let rename = variant.options.rename.as_ref();
    field::check_rename(ctxt, rename);
    if let Some(rename) = rename.filter(|_| variant.fields.iter().all(Field::is_skipped)) {
        ctxt.error(&rename.name, "nothing in this variant is saved, so it has no key; remove `rename`");
    }
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
            "the variants of an enum are not a chain; write `impl Layer` with a `match`, or use a struct",
        );
    }
    let recomputed = input.data.fields().filter_map(layer::recompute);
    for name in layer::options_of_sequential(input).chain(layer::steps(input.data.fields())).chain(recomputed) {
        ctxt.error(
            name,
            format!("an enum has no generated `forward`; remove `{name}` and write `impl Layer` with a `match`"),
        );
    }
    for init in input.data.fields().filter_map(|field| field.options.init.as_ref()) {
        ctxt.error(
            &init.name,
            "the derive cannot choose a variant to build; remove `init` and implement `Init` for a builder",
        );
    }
}
