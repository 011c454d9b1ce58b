//! Checks of the constructor: either every field has an `init` or none, and a config is used.

use crate::ast::{Data, Field, Input};
use crate::ctxt::Ctxt;

/// Either every field has an `init`, or none.
pub fn check_init(ctxt: &Ctxt, fields: &[Field<'_>]) {
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

/// A config needs `init` expressions that use it.
pub fn check_config(ctxt: &Ctxt, input: &Input<'_>) {
    let Some(config) = &input.options.config else { return };
    if let Data::Enum(_) = input.data {
        ctxt.error(
            &config.name,
            "the derive cannot choose a variant to build; remove `config` and implement `Init` for a builder",
        );
    } else if input.data.fields().all(|field| field.options.init.is_none() && !field.options.is_unclear) {
        ctxt.error(&config.name, "nothing is built from the config; remove it, or give every field an `init`");
    }
}

/// `no_init` needs an `init` to leave out.
pub fn check_no_init(ctxt: &Ctxt, input: &Input<'_>) {
    let Some(no_init) = &input.options.no_init else { return };
    if input.data.fields().all(|field| field.options.init.is_none() && !field.options.is_unclear) {
        ctxt.error(&no_init.name, "no `init` is generated unless every field has one; remove `no_init`");
    }
}

/// `input` needs a generated `init`, and a struct that is known to be a layer.
pub fn check_input(ctxt: &Ctxt, input: &Input<'_>) {
    let Some(given) = &input.options.input else { return };
    if let Data::Enum(_) = input.data {
        ctxt.error(&given.name, "an enum has no generated `init` that could check it; remove `input`");
    } else if input.data.fields().next().is_none() {
        ctxt.error(
            &given.name,
            "a struct without fields has no generated `init` that could check it; remove `input`, and call \
             `summary_with([2, 3, 32, 32])` in a test",
        );
    } else if input.data.fields().all(|field| field.options.init.is_none() && !field.options.is_unclear) {
        ctxt.error(
            &given.name,
            "only a generated `init` can check this input; give every field an `init`, or remove `input`",
        );
    } else if input.original.generics.type_params().next().is_some() {
        ctxt.error(
            &given.name,
            "a generic struct might not be a layer for every type argument; remove `input`, and call \
             `summary_with([2, 3, 32, 32])` on the enclosing model in a test",
        );
    }
}
