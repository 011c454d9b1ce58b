//! The constructors of a struct whose fields all have an `init`: `impl FromSeed`, and the `init` that users call.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::Ident;
use syn::ext::IdentExt;
use syn::spanned::Spanned;

use super::{Names, impl_trait_for, span_of};
use crate::ast::{Field, Input};
use crate::attr::Init;
use crate::bound;

pub fn expand(input: &Input<'_>, fields: &[Field<'_>], names: &Names) -> TokenStream {
    let mut impls = impl_from_seed(input, fields, names);
    // A struct without fields is its own constructor.
    if !fields.is_empty() && input.options.no_init.is_none() {
        impls.extend(inherent_init(input, names));
    }
    impls
}

fn impl_from_seed(input: &Input<'_>, fields: &[Field<'_>], names: &Names) -> TokenStream {
    let private = &names.private;
    let (device, seed) = parameters(input, fields, names);
    let built = built(input, fields, names);
    let body = quote! {
        fn from_seed(#device: &#private::Device, #seed: #private::Seed) -> #private::Result<Self> {
            #built
        }
    };
    let generics = bound::with_field_types(input, |field| from_seed_bound(field, names));
    impl_trait_for(first_init(input), input, &generics, &quote!(#private::FromSeed), &body)
}

/// The first `init`, which is the reason for the constructor.
pub fn first_init<'a>(input: &'a Input<'_>) -> Option<&'a Ident> {
    input.data.fields().find_map(|field| field.options.init.as_ref()).map(|given| &given.name)
}

/// The parameters for device and seed: `_` if nothing uses them.
pub fn parameters(input: &Input<'_>, fields: &[Field<'_>], names: &Names) -> (TokenStream, TokenStream) {
    let name_if = |is_used: bool, name: &Ident| if is_used { name.to_token_stream() } else { quote!(_) };
    let builds = !fields.iter().all(Field::is_skipped);
    (name_if(builds || input.options.input.is_some(), &names.device), name_if(builds, &names.seed))
}

/// `Ok(Self { … })`, each field as its `init` says, once it is known that they fit together.
pub fn built(input: &Input<'_>, fields: &[Field<'_>], names: &Names) -> TokenStream {
    let private = &names.private;
    let values = fields.iter().map(|field| {
        let (member, value) = (&field.member, init_field(field, names));
        quote!(#member: #value)
    });
    let (extents, checks) = (extents(input, names), checks(input, names));
    if checks.is_empty() {
        return quote!(#private::core::result::Result::Ok(Self { #(#values,)* }));
    }
    let model = &names.model;
    quote! {
        #extents
        let #model = Self { #(#values,)* };
        #checks
        #private::core::result::Result::Ok(#model)
    }
}

/// The extents of `input`, bound before a field's builder may move the config's values.
fn extents(input: &Input<'_>, names: &Names) -> Option<TokenStream> {
    let given = &input.options.input.as_ref()?.value;
    // For a batch of two, because an axis of size one would broadcast.
    let extents = given.extents.iter().map(|extent| match extent {
        Some(extent) => extent.to_token_stream(),
        None => quote!(2),
    });
    let (private, name, rank) = (names.private_at(given.span), &names.extents, given.extents.len());
    Some(quote_spanned!(given.span=> let #name: [#private::core::primitive::usize; #rank] = [#(#extents),*];))
}

/// The checks of a model before `init` returns it. A generic model may or may not be a layer, so it gets none.
fn checks(input: &Input<'_>, names: &Names) -> TokenStream {
    let mut checks = TokenStream::new();
    if input.original.generics.type_params().next().is_some() {
        return checks;
    }
    let model = &names.model;
    if let Some(sequential) = &input.options.sequential {
        let span = sequential.name.span();
        let private = names.private_at(span);
        checks.extend(quote_spanned!(span=> #private::check_flow(&#model)?;));
    }
    if let Some(given) = &input.options.input {
        let span = given.value.span;
        let private = names.private_at(span);
        let (Names { device, extents, .. }, is_index) = (names, given.value.is_index);
        checks.extend(quote_spanned!(span=> #private::check_input(&#model, #device, &#extents, #is_index)?;));
    }
    checks
}

/// The bounds on a field's type for its `init`.
pub fn from_seed_bound(field: &Field<'_>, names: &Names) -> Vec<TokenStream> {
    let private = &names.private;
    match field.options.init.as_ref().map(|given| &given.value) {
        Some(Init::FromSeed) => vec![quote!(#private::FromSeed)],
        Some(Init::Closure(_) | Init::Value(_)) | None => vec![],
    }
}

fn init_field(field: &Field<'_>, names: &Names) -> TokenStream {
    let Names { private, device, seed, .. } = names;
    let (ty, key) = (field.ty(), field.key());
    let seed = quote!(#private::Seed::field(#seed, #key));
    match &field.options.init.as_ref().expect("`derive` looked").value {
        Init::Value(value) if field.is_skipped() => value.to_token_stream(),
        Init::Closure(value) if field.is_skipped() => value.to_token_stream(),
        Init::Value(builder) => {
            let span = builder.span();
            let private = names.private_at(span);
            let built = quote_spanned!(span=> #private::Init::init(#builder, #device, #seed));
            unwrapped(&quote_spanned!(span=> #private::init_field(#key, #built)), span)
        }
        Init::Closure(closure) => {
            let span = closure.span();
            let private = names.private_at(span);
            let built = quote_spanned!(span=> #private::init_by(#closure, #device, #seed));
            unwrapped(&quote_spanned!(span=> #private::init_field(#key, #built)), span)
        }
        Init::FromSeed => {
            quote!(#private::init_field(#key, <#ty as #private::FromSeed>::from_seed(#device, #seed))?)
        }
    }
}

/// The built value, separate from the `?`: if its type differs from the field's, the compiler must not blame an
/// operator that the user did not write.
fn unwrapped(built: &TokenStream, span: Span) -> TokenStream {
    let value = Ident::new("__built", Span::mixed_site().located_at(span));
    quote!({
        let #value = #built?;
        #value
    })
}

fn inherent_init(input: &Input<'_>, names: &Names) -> TokenStream {
    let private = &names.private;
    method(input, names, &quote!(), &quote!(#private::init_module(device, seed)))
}

/// `fn init`, with `config` as its last parameter.
pub fn method(input: &Input<'_>, names: &Names, config: &TokenStream, body: &TokenStream) -> TokenStream {
    let private = &names.private;
    let (ident, vis) = (&input.original.ident, &input.original.vis);
    let generics = bound::with_field_types(input, |field| {
        [vec![quote!(#private::Module)], from_seed_bound(field, names)].concat()
    });
    let (impl_generics, ty_generics, where_clause) = generics.split_for_impl();
    let summary = format!(" Builds a `{}` on `device`, its initial values drawn from `seed`.", ident.unraw());
    // The parameters have plain names, because the documentation shows them.
    let signature = quote_spanned! { span_of(first_init(input))=>
        fn init(
            device: &#private::Device,
            seed: impl #private::core::convert::Into<#private::Seed>,
            #config
        ) -> #private::Result<Self>
    };
    quote! {
        impl #impl_generics #ident #ty_generics #where_clause {
            #[doc = #summary]
            ///
            /// The `#[module(init)]` of each field builds the field, and every parameter learns its path.
            ///
            /// # Errors
            ///
            /// The error of the first field that cannot be built.
            #[allow(dead_code, reason = "a part of another module may be built through that alone")]
            #[track_caller]
            #vis #signature {
                #body
            }
        }
    }
}
