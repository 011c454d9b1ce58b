//! `impl FromSeed`, and the `init` that users call.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;

use super::{Names, impl_trait};
use crate::ast::{Field, Input};
use crate::attr::Init;
use crate::bound;

pub fn impl_from_seed(input: &Input<'_>, fields: &[Field<'_>], names: &Names) -> TokenStream {
    let Names { private, device, seed, .. } = names;
    let values = fields.iter().map(|field| {
        let (member, value) = (&field.member, init_field(field, names));
        quote!(#member: #value)
    });
    let (device, seed) =
        if fields.iter().all(Field::is_skipped) { (quote!(_), quote!(_)) } else { (quote!(#device), quote!(#seed)) };
    let body = quote! {
        fn from_seed(#device: &#private::Device, #seed: #private::Seed) -> #private::Result<Self> {
            #private::core::result::Result::Ok(Self { #(#values,)* })
        }
    };
    let generics = bound::with_field_types(input, |field| from_seed_bound(field, names));
    impl_trait(input, &generics, &quote!(#private::FromSeed), &body)
}

fn from_seed_bound(field: &Field<'_>, names: &Names) -> Vec<TokenStream> {
    let private = &names.private;
    match field.options.init.as_ref().map(|given| &given.value) {
        Some(Init::FromSeed) => vec![quote!(#private::FromSeed)],
        Some(Init::Value(_)) | None => vec![],
    }
}

fn init_field(field: &Field<'_>, names: &Names) -> TokenStream {
    let Names { private, device, seed, .. } = names;
    let (ty, key) = (field.ty(), field.key());
    let seed = quote!(#private::Seed::field(#seed, #key));
    match &field.options.init.as_ref().expect("`derive` looked").value {
        Init::Value(value) if field.is_skipped() => value.to_token_stream(),
        Init::Value(builder) => {
            let span = builder.span();
            let private = names.private_at(span);
            quote_spanned!(span=> #private::init_field(#key, #private::Init::init(#builder, #device, #seed))?)
        }
        Init::FromSeed => {
            quote!(#private::init_field(#key, <#ty as #private::FromSeed>::from_seed(#device, #seed))?)
        }
    }
}

pub fn inherent_init(input: &Input<'_>, names: &Names) -> TokenStream {
    let private = &names.private;
    let (ident, vis) = (&input.original.ident, &input.original.vis);
    let generics = bound::with_field_types(input, |field| {
        [vec![quote!(#private::Module)], from_seed_bound(field, names)].concat()
    });
    let (impl_generics, ty_generics, where_clause) = generics.split_for_impl();
    let summary = format!(" Builds a `{}` on `device`, its initial values drawn from `seed`.", ident.unraw());
    // The parameters have plain names, as they are read in the documentation.
    quote! {
        impl #impl_generics #ident #ty_generics #where_clause {
            #[doc = #summary]
            ///
            /// Each field is built as its `#[module(init)]` says, and every parameter is told its path.
            ///
            /// # Errors
            ///
            /// That of the first field that cannot be built.
            #[allow(dead_code, reason = "a part of another module may be built through that alone")]
            #vis fn init(
                device: &#private::Device,
                seed: impl #private::core::convert::Into<#private::Seed>,
            ) -> #private::Result<Self> {
                #private::init_module(device, seed)
            }
        }
    }
}
