//! How a struct is built: every field says so or none does, and the config is of use to some.

use crate::ast::{Data, Field, Input};
use crate::ctxt::Ctxt;

/// Either every field says how it is built, or none does.
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

/// A config is for the expressions of `init`.
pub fn check_config(ctxt: &Ctxt, input: &Input<'_>) {
    let Some(config) = &input.options.config else { return };
    if let Data::Enum(_) = input.data {
        ctxt.error(
            &config.name,
            "which variant is to be built is not known; remove `config` and implement `Init` for a builder",
        );
    } else if input.data.fields().all(|field| field.options.init.is_none() && !field.options.is_unclear) {
        ctxt.error(&config.name, "nothing is built from the config; remove it, or give every field an `init`");
    }
}

/// What is not generated cannot be left out.
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
        ctxt.error(&given.name, "an enum has no generated `init` that could apply it; remove `input`");
    } else if input.data.fields().next().is_none() {
        ctxt.error(
            &given.name,
            "a struct without fields has no generated `init` that could apply it; remove `input`, and have a test call \
             `summary_with([2, 3, 32, 32])`",
        );
    } else if input.data.fields().all(|field| field.options.init.is_none() && !field.options.is_unclear) {
        ctxt.error(
            &given.name,
            "the generated `init` applies the model to an input like this; give every field an `init`, or remove `input`",
        );
    } else if input.original.generics.type_params().next().is_some() {
        ctxt.error(
            &given.name,
            "whether a generic struct is a layer depends on its parameters; remove `input`, and have a test call \
             `summary_with([2, 3, 32, 32])` of the model that holds it",
        );
    }
}
