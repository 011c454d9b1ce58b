//! A struct with constructor arguments: its config, `impl FromConfig`, and `impl Init` for the config.

use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::ext::IdentExt;

use super::{Names, impl_for, impl_trait_for, init, span_of};
use crate::ast::{Field, Input};
use crate::attr::{Config, Given, Value};
use crate::bound;

pub fn expand(input: &Input<'_>, given: &Given<Config>, fields: &[Field<'_>], names: &Names) -> TokenStream {
    let private = &names.private;
    let ty = type_of(input, &given.value);
    let mut items = declaration(input, &given.value);
    items.extend(impl_from_config(input, given, &ty, fields, names));
    items.extend(impl_init(input, &ty));
    if input.options.no_init.is_none() {
        let body = quote!(#private::init_configured(device, seed, config));
        items.extend(init::method(input, names, &quote!(config: #ty,), &body));
    }
    items
}

/// The config's type.
pub fn type_of(input: &Input<'_>, config: &Config) -> TokenStream {
    match config {
        Config::Values(values) => {
            let (name, generics) =
                (name(input), bound::mentioned_generics(input, values.iter().map(|value| &value.ty)));
            let (_, ty_generics, _) = generics.split_for_impl();
            quote!(#name #ty_generics)
        }
        Config::Type(ty) => ty.to_token_stream(),
    }
}

fn name(input: &Input<'_>) -> Ident {
    let ident = &input.original.ident;
    format_ident!("{}Config", ident.unraw(), span = ident.span())
}

fn option_of<'a>(input: &'a Input<'_>) -> Option<&'a Ident> {
    input.options.config.as_ref().map(|given| &given.name)
}

/// The struct of the values, if it is not the user's own.
pub fn declaration(input: &Input<'_>, config: &Config) -> TokenStream {
    let Config::Values(values) = config else { return TokenStream::new() };
    let private = super::private(input);
    let (vis, name, model) = (&input.original.vis, name(input), input.original.ident.unraw());
    let fields = values.iter().map(|Value { docs, ident, ty }| {
        let stand_in = format!(" The `{}` of the model.", ident.unraw());
        let docs = if docs.is_empty() { quote!(#[doc = #stand_in]) } else { quote!(#(#docs)*) };
        quote!(#docs #vis #ident: #ty)
    });
    let summary = format!(" The constructor arguments of a `{model}`. As an `Init`, it builds one.");
    let generics = bound::mentioned_generics(input, values.iter().map(|value| &value.ty));
    let where_clause = &generics.where_clause;
    // All tokens have the option's span, so the compiler points at the option if there is already such a struct.
    quote_spanned! { span_of(option_of(input))=>
        #[doc = #summary]
        #[derive(#private::core::fmt::Debug, #private::core::clone::Clone)]
        #vis struct #name #generics #where_clause {
            #(#fields,)*
        }
    }
}

fn impl_from_config(
    input: &Input<'_>,
    given: &Given<Config>,
    ty: &TokenStream,
    fields: &[Field<'_>],
    names: &Names,
) -> TokenStream {
    let Names { private, config, .. } = names;
    // With the user's name, so that the user's expressions see it.
    let pattern = match &given.value {
        Config::Values(values) => {
            let (name, idents) = (name(input), values.iter().map(|value| &value.ident));
            quote!(#name { #(#idents,)* })
        }
        Config::Type(_) => given.name.to_token_stream(),
    };
    let (device, seed) = init::parameters(input, fields, names);
    let built = init::built(input, fields, names);
    let body = quote! {
        type Config = #ty;

        fn from_config(
            #config: Self::Config,
            #device: &#private::Device,
            #seed: #private::Seed,
        ) -> #private::Result<Self> {
            let #pattern = #config;
            #built
        }
    };
    let generics = bound::with_field_types(input, |field| init::from_seed_bound(field, names));
    impl_trait_for(Some(&given.name), input, &generics, &quote!(#private::FromConfig), &body)
}

/// The config as a builder, for the `init` of other structs. If its type does not determine the `Net<T>`, there is no
/// builder, and only `Net::init` can build the struct.
pub fn impl_init(input: &Input<'_>, ty: &TokenStream) -> Option<TokenStream> {
    let names = &Names::new(input);
    let Names { private, device, seed, .. } = names;
    let mut parameters = input.original.generics.params.iter().map(bound::name);
    let says_all = parameters.all(|parameter| bound::mentions(ty, &|mentioned| mentioned == parameter));
    let generics = bound::with_field_types(input, |field| init::from_seed_bound(field, names));
    let (ident, (_, ty_generics, _)) = (&input.original.ident, generics.split_for_impl());
    let body = quote! {
        type Output = #ident #ty_generics;

        fn build(self, #device: &#private::Device, #seed: #private::Seed) -> #private::Result<Self::Output> {
            #private::FromConfig::from_config(self, #device, #seed)
        }
    };
    says_all.then(|| impl_for(option_of(input), ty, &generics, &quote!(#private::Init), &body))
}
