//! Writes the impls. Everything is named by its full path and every variable is hygienic, so that names in the user's
//! scope and names of fields cannot interfere.

pub mod config;
mod init;
mod layer;
pub mod visit;

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{quote, quote_spanned};
use syn::{DeriveInput, Generics, Ident};

use crate::ast::{Data, Input};
use crate::check;
use crate::ctxt::Ctxt;

/// The impls for `input`, or all its mistakes.
pub fn derive(input: &DeriveInput) -> syn::Result<TokenStream> {
    let ctxt = Ctxt::new();
    let input = Input::new(&ctxt, input);
    check::check(&ctxt, &input);
    ctxt.check()?;

    let names = Names::new(&input);
    let mut impls = visit::impl_module(&input, &names);
    if input.options.no_display.is_none() {
        impls.extend(visit::impl_display(&input, &names));
    }
    if let Data::Struct(fields) = &input.data {
        if input.options.sequential.is_some() {
            impls.extend(layer::impl_layer(&input, fields, &names));
        }
        if fields.iter().all(|field| field.options.init.is_some()) {
            impls.extend(match &input.options.config {
                Some(given) => config::expand(&input, given, fields, &names),
                None => init::expand(&input, fields, &names),
            });
        }
    }
    Ok(impls)
}

/// The names in the generated code.
pub struct Names {
    private: TokenStream,
    at: Ident,
    f: Ident,
    x: Ident,
    y: Ident,
    entered: Ident,
    model: Ident,
    extents: Ident,
    device: Ident,
    seed: Ident,
    config: Ident,
}

impl Names {
    pub fn new(input: &Input<'_>) -> Self {
        // With mixed-site hygiene, so that the user's expressions do not see them, and with underscores, so that no
        // constant of the user turns the binding into a pattern.
        let local = |name| Ident::new(name, Span::mixed_site());
        Self {
            private: private(input),
            at: local("__at"),
            f: local("__f"),
            x: local("__x"),
            y: local("__y"),
            entered: local("__entered"),
            model: local("__model"),
            extents: local("__extents"),
            device: local("__device"),
            seed: local("__seed"),
            config: local("__config"),
        }
    }

    /// The private module, with the tokens at `span`. If all tokens of a call have the user's span, the compiler points
    /// there, and the tape records that line as the caller.
    fn private_at(&self, span: Span) -> TokenStream {
        let blame = |mut token: TokenTree| {
            token.set_span(span);
            token
        };
        self.private.clone().into_iter().map(blame).collect()
    }
}

/// The path of the framework's exports for generated code only.
pub fn private(input: &Input<'_>) -> TokenStream {
    match &input.options.krate {
        Some(given) => {
            let krate = &given.value;
            quote!(#krate::__private)
        }
        None => quote!(::meganeura::__private),
    }
}

/// `impl path for the struct or enum { body }`.
pub fn impl_trait(input: &Input<'_>, generics: &Generics, path: &TokenStream, body: &TokenStream) -> TokenStream {
    impl_trait_for(None, input, generics, path, body)
}

/// The same, generated because of an option: if the user has written the impl as well, the compiler points at the
/// option.
pub fn impl_trait_for(
    option: Option<&Ident>,
    input: &Input<'_>,
    generics: &Generics,
    path: &TokenStream,
    body: &TokenStream,
) -> TokenStream {
    let (ident, (_, ty_generics, _)) = (&input.original.ident, generics.split_for_impl());
    impl_for(option, &quote!(#ident #ty_generics), generics, path, body)
}

/// The span of code that is generated because of an option.
pub fn span_of(option: Option<&Ident>) -> Span {
    option.map_or_else(Span::call_site, |option| Span::call_site().located_at(option.span()))
}

/// `impl path for ty { body }`.
pub fn impl_for(
    option: Option<&Ident>,
    ty: &TokenStream,
    generics: &Generics,
    path: &TokenStream,
    body: &TokenStream,
) -> TokenStream {
    let (impl_generics, _, where_clause) = generics.split_for_impl();
    // The `self::` of a function in `then` distinguishes it from a method, so the compiler must not suggest removing
    // it.
    quote_spanned! { span_of(option)=>
        #[automatically_derived]
        #[allow(unused_qualifications, reason = "paths are written out so that nothing can shadow them")]
        impl #impl_generics #path for #ty #where_clause {
            #body
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs, path::Path};

    use syn::parse_quote;

    use super::*;

    /// Compares the code generated for `golden/<name>.rs` with `golden/<name>.expanded.rs`; `BLESS=1` writes the
    /// latter.
    fn golden(name: &str) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
        let input: DeriveInput =
            syn::parse_str(&fs::read_to_string(folder.join(format!("{name}.rs"))).unwrap()).unwrap();
        let file = syn::parse2(derive(&input).unwrap()).unwrap();
        let expanded = prettyplease::unparse(&file);
        let golden = folder.join(format!("{name}.expanded.rs"));
        if env::var_os("BLESS").is_some() {
            fs::write(golden, expanded).unwrap();
            return;
        }
        let expected = fs::read_to_string(golden).unwrap();
        for (index, (is, was)) in expanded.lines().zip(expected.lines()).enumerate() {
            assert_eq!(is, was, "golden/{name}.expanded.rs:{}; if this is intended, run with BLESS=1", index + 1);
        }
        assert_eq!(expanded.lines().count(), expected.lines().count(), "golden/{name}.expanded.rs");
    }

    #[test]
    fn a_sequential_struct() {
        golden("sequential");
    }

    #[test]
    fn a_generic_struct() {
        golden("generic");
    }

    #[test]
    fn an_enum() {
        golden("enum");
    }

    #[test]
    fn a_residual_struct_with_a_config() {
        golden("config");
    }

    fn mistakes(input: &DeriveInput) -> Vec<String> {
        derive(input).unwrap_err().into_iter().map(|error| error.to_string()).collect()
    }

    #[test]
    fn all_mistakes_are_reported_at_once() {
        let input = parse_quote! {
            #[module(no_display = true)]
            struct Net<'a> {
                #[module(skip, frozen, init)]
                a: Linear,
                #[module(rename = "", then = x)]
                b: &'a Linear,
                #[module(rename = "b.c")]
                c: Linear,
            }
        };
        assert_eq!(
            mistakes(&input),
            [
                "`no_display` takes no value; write just `no_display`",
                "`init` is missing on `b`, `c`; give it to every field, or to none",
                "a skipped field is not trained anyway; remove `frozen` or `skip`",
                "a skipped field needs a plain value: `#[module(skip, init = 0.5)]`",
                "a key cannot be empty; remove `rename`, or give a name",
                "a module owns its parameters: hold this by value, or add `#[module(skip)]`",
                "a key cannot contain a dot, which separates the names in a path; use `_`",
            ]
        );
    }

    #[test]
    fn unreadable_options_do_not_count_as_missing() {
        let input = parse_quote! {
            #[module(sequentiall)]
            struct Net<'a> {
                #[module(skipp)]
                a: &'a str,
                #[module(init = )]
                b: Linear,
                #[module(init = Linear::new(1, 1), then = relu)]
                c: Linear,
            }
        };
        assert_eq!(
            mistakes(&input),
            [
                "unknown option `sequentiall`; did you mean `sequential`?",
                "unknown option `skipp`; did you mean `skip`?",
                "`init` takes an expression: `init = Linear::new(64, 10)`",
            ]
        );
    }
}
