//! The output for an input with mistakes: the mistakes, and stub impls. Without the stubs, the compiler would also
//! report that the struct is not a module wherever it is used as one.

use proc_macro2::TokenStream;
use quote::quote;
use syn::DeriveInput;

use crate::ast::{Data, Field, Input};
use crate::check;
use crate::ctxt::Ctxt;
use crate::expand::{self, Names};

pub fn expand(original: &DeriveInput, mistakes: &syn::Error) -> TokenStream {
    let compile_errors = mistakes.to_compile_error();
    let input = read(original);
    let module = walk(original).unwrap_or_else(|| empty_walk(&input));
    let display = input.options.no_display.is_none().then(|| display(&input));
    let layer = input.options.sequential.is_some().then(|| layer(&input));
    let built = input.data.fields().any(|field| field.options.init.is_some()).then(|| built(&input));
    quote!(#compile_errors #module #display #layer #built)
}

/// A second reading of the input, whose mistakes are already known.
fn read(original: &DeriveInput) -> Input<'_> {
    let ctxt = Ctxt::new();
    let input = Input::new(&ctxt, original);
    ctxt.check().ok();
    input
}

/// The real walk over the fields without mistakes, so that their type errors are reported together with the rest. With
/// type parameters, it would need bounds that the other impls do not need.
fn walk(original: &DeriveInput) -> Option<TokenStream> {
    let mut input = read(original);
    match &mut input.data {
        Data::Struct(fields) => fields.retain(is_clear),
        Data::Enum(variants) if variants.is_empty() => return None,
        Data::Enum(variants) => variants.iter_mut().for_each(|variant| variant.fields.retain(is_clear)),
        Data::Union(_) => return None,
    }
    let is_generic = original.generics.type_params().next().is_some();
    (!is_generic).then(|| expand::visit::impl_module(&input, &Names::new(&input)))
}

fn is_clear(field: &Field<'_>) -> bool {
    let ctxt = Ctxt::new();
    check::field::check(&ctxt, field);
    ctxt.check().is_ok() && !field.options.is_unclear
}

fn empty_walk(input: &Input<'_>) -> TokenStream {
    let private = expand::private(input);
    let body = quote! {
        fn visit<'__visit>(
            &'__visit self,
            _: #private::At<'_>,
            _: &mut dyn #private::core::ops::FnMut(#private::At<'_>, #private::Slot<'__visit>),
        ) {}

        fn visit_mut<'__visit>(
            &'__visit mut self,
            _: #private::At<'_>,
            _: &mut dyn #private::core::ops::FnMut(#private::At<'_>, #private::SlotMut<'__visit>),
        ) {}
    };
    expand::impl_trait(input, &input.original.generics, &quote!(#private::Module), &body)
}

fn display(input: &Input<'_>) -> TokenStream {
    let private = expand::private(input);
    let body = quote! {
        fn fmt(&self, _: &mut #private::core::fmt::Formatter<'_>) -> #private::core::fmt::Result {
            #private::core::unreachable!()
        }
    };
    expand::impl_trait(input, &input.original.generics, &quote!(#private::core::fmt::Display), &body)
}

fn layer(input: &Input<'_>) -> TokenStream {
    let private = expand::private(input);
    let body = quote! {
        fn forward(&self, _: &#private::Var) -> #private::Var {
            #private::core::unreachable!()
        }
    };
    expand::impl_trait(input, &input.original.generics, &quote!(#private::Layer), &body)
}

/// The constructors: from a seed, and from a config if there is one.
fn built(input: &Input<'_>) -> TokenStream {
    let private = expand::private(input);
    let generics = &input.original.generics;
    let config = input.options.config.as_ref().map(|given| &given.value);
    let declaration = config.map(|config| expand::config::declaration(input, config));
    let (ident, vis) = (&input.original.ident, &input.original.vis);
    let (impl_generics, ty_generics, where_clause) = generics.split_for_impl();
    let (built, parameter) = match config.map(|config| expand::config::type_of(input, config)) {
        None => {
            let body = quote! {
                fn from_seed(_: &#private::Device, _: #private::Seed) -> #private::Result<Self> {
                    #private::core::unreachable!()
                }
            };
            (expand::impl_trait(input, generics, &quote!(#private::FromSeed), &body), None)
        }
        Some(ty) => {
            let body = quote! {
                type Config = #ty;

                fn from_config(_: #ty, _: &#private::Device, _: #private::Seed) -> #private::Result<Self> {
                    #private::core::unreachable!()
                }
            };
            let mut built = expand::impl_trait(input, generics, &quote!(#private::FromConfig), &body);
            built.extend(expand::config::impl_init(input, &ty));
            (built, Some(quote!(_: #ty,)))
        }
    };
    let method = input.options.no_init.is_none().then(|| {
        quote! {
            impl #impl_generics #ident #ty_generics #where_clause {
                #[doc(hidden)]
                #[allow(dead_code, reason = "stands in for the real one")]
                #vis fn init(
                    _: &#private::Device,
                    _: impl #private::core::convert::Into<#private::Seed>,
                    #parameter
                ) -> #private::Result<Self> {
                    #private::core::unreachable!()
                }
            }
        }
    });
    quote!(#declaration #built #method)
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    /// The stub impls for `input`.
    fn impls(input: &DeriveInput) -> Vec<String> {
        let mistakes = expand::derive(input).unwrap_err();
        let file: syn::File = syn::parse2(expand(input, &mistakes)).unwrap();
        let name = |item| match item {
            syn::Item::Impl(item) => Some(match item.trait_ {
                Some((path, _)) => path.segments.last().unwrap().ident.to_string(),
                None => "inherent".to_owned(),
            }),
            _ => None,
        };
        file.items.into_iter().filter_map(name).collect()
    }

    #[test]
    fn every_impl_the_user_counts_on_is_there() {
        let union: DeriveInput = parse_quote!(union Either { a: u32, b: f32 });
        assert_eq!(impls(&union), ["Module", "Display"]);

        let missing: DeriveInput = parse_quote! {
            #[module(sequential, no_display)]
            struct Net {
                #[module(init = Linear::new(1, 1))]
                a: Linear,
                b: Linear,
            }
        };
        assert_eq!(impls(&missing), ["Module", "Layer", "FromSeed", "inherent"]);

        let told: DeriveInput = parse_quote! {
            #[module(no_display, config(width: usize))]
            struct Net {
                #[module(init = Linear::new(1, width))]
                a: Linear,
                b: Linear,
            }
        };
        assert_eq!(impls(&told), ["Module", "FromConfig", "Init", "inherent"]);
    }
}
