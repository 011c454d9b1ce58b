//! Writes the impls. Everything is named by its full path and every variable is hygienic, so that nothing in the user's
//! scope, and no field, can get in the way.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{DeriveInput, Generics, Ident};

use crate::ast::{Data, Field, Input};
use crate::attr::{Init, Step};
use crate::bound;
use crate::check;
use crate::ctxt::Ctxt;

/// The impls for `input`, or all its mistakes.
pub fn derive(input: &DeriveInput) -> syn::Result<TokenStream> {
    let ctxt = Ctxt::new();
    let input = Input::new(&ctxt, input);
    check::check(&ctxt, &input);
    ctxt.check()?;

    let names = Names::new(&input);
    let mut impls = impl_module(&input, &names);
    if input.options.no_display.is_none() {
        impls.extend(impl_display(&input, &names));
    }
    if let Data::Struct(fields) = &input.data {
        if input.options.sequential.is_some() {
            impls.extend(impl_layer(&input, fields, &names));
        }
        if fields.iter().all(|field| field.options.init.is_some()) {
            impls.extend(impl_from_seed(&input, fields, &names));
            // A struct without fields is its own constructor.
            if !fields.is_empty() {
                impls.extend(inherent_init(&input, &names));
            }
        }
    }
    Ok(impls)
}

/// What the generated code calls things.
struct Names {
    private: TokenStream,
    at: Ident,
    f: Ident,
    x: Ident,
    device: Ident,
    seed: Ident,
}

impl Names {
    fn new(input: &Input<'_>) -> Self {
        // Of mixed site, so that the user's expressions do not see them, and with underscores, so that no constant of the
        // user's turns the binding into a pattern.
        let local = |name| Ident::new(name, Span::mixed_site());
        Self {
            private: private(input),
            at: local("__at"),
            f: local("__f"),
            x: local("__x"),
            device: local("__device"),
            seed: local("__seed"),
        }
    }

    /// The private module, blamed on `span`. A call whose tokens are all the user's own is where the compiler points, and
    /// what the tape records as the caller.
    fn private_at(&self, span: Span) -> TokenStream {
        let blame = |mut token: TokenTree| {
            token.set_span(span);
            token
        };
        self.private.clone().into_iter().map(blame).collect()
    }
}

/// The path of what the framework exports for generated code alone.
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
    let ident = &input.original.ident;
    let (impl_generics, ty_generics, where_clause) = generics.split_for_impl();
    // A function in `then` is told from a method by its `self::`, and the compiler must not ask for that to be removed.
    quote! {
        #[automatically_derived]
        #[allow(unused_qualifications, reason = "paths are written out so that nothing can shadow them")]
        impl #impl_generics #path for #ident #ty_generics #where_clause {
            #body
        }
    }
}

fn impl_module(input: &Input<'_>, names: &Names) -> TokenStream {
    let Names { private, at, f, .. } = names;
    let [visit, visit_mut] = ["visit", "visit_mut"].map(|method| visit_body(input, names, &format_ident!("{method}")));
    // A parameter that is not used has no name.
    let named = |is_used| if is_used { (quote!(#at), quote!(#f)) } else { (quote!(_), quote!(_)) };
    let has_fields = !input.data.fields().all(Field::is_skipped);
    let (at, f) = named(has_fields || matches!(input.data, Data::Enum(_)));
    let (at_mut, f_mut) = named(has_fields);
    let body = quote! {
        fn visit<'__visit>(
            &'__visit self,
            #at: #private::At<'_>,
            #f: &mut dyn #private::core::ops::FnMut(#private::At<'_>, #private::Slot<'__visit>),
        ) {
            #visit
        }

        fn visit_mut<'__visit>(
            &'__visit mut self,
            #at_mut: #private::At<'_>,
            #f_mut: &mut dyn #private::core::ops::FnMut(#private::At<'_>, #private::SlotMut<'__visit>),
        ) {
            #visit_mut
        }
    };
    let generics = bound::with_field_types(input, |_| vec![quote!(#private::Module)]);
    impl_trait(input, &generics, &quote!(#private::Module), &body)
}

fn visit_body(input: &Input<'_>, names: &Names, method: &Ident) -> TokenStream {
    let Names { private, at, f, .. } = names;
    let arm = |path: TokenStream, before: TokenStream, fields: &[Field<'_>]| {
        let (patterns, visits): (Vec<_>, Vec<_>) = visited(fields)
            .map(|field| {
                let (member, variable) = (&field.member, field.variable());
                (quote!(#member: #variable), visit_field(field, &variable, names, method))
            })
            .unzip();
        quote!(#path { #(#patterns,)* .. } => { #before #(#visits)* })
    };
    let arms: TokenStream = match &input.data {
        Data::Struct(fields) => arm(quote!(Self), quote!(), fields),
        Data::Enum(variants) => variants
            .iter()
            .map(|variant| {
                let (ident, name) = (variant.ident, variant.ident.unraw().to_string());
                // Which variant is there is told once, in the walk that changes nothing.
                let tell = (method == "visit").then(|| quote!(#f(#at, #private::Slot::Variant(#name));));
                arm(quote!(Self::#ident), quote!(#tell), &variant.fields)
            })
            .collect(),
        Data::Union(_) => unreachable!("refused by `check`"),
    };
    quote!(match self { #arms })
}

fn visited<'a>(fields: &'a [Field<'a>]) -> impl Iterator<Item = &'a Field<'a>> {
    fields.iter().filter(|field| !field.is_skipped())
}

fn visit_field(field: &Field<'_>, variable: &Ident, names: &Names, method: &Ident) -> TokenStream {
    let Names { private, at, f, .. } = names;
    let (ty, key) = (field.ty(), field.key());
    let mut place = quote!(#private::At::field(&#at, #key));
    if field.options.frozen.is_some() {
        place = quote!(#private::At::frozen(#place));
    }
    // Called through the type, so that the compiler points at the type if it is not a module.
    quote!(<#ty as #private::Module>::#method(#variable, #place, #f);)
}

fn impl_display(input: &Input<'_>, names: &Names) -> TokenStream {
    let Names { private, f, .. } = names;
    let body = quote! {
        fn fmt(&self, #f: &mut #private::core::fmt::Formatter<'_>) -> #private::core::fmt::Result {
            #private::fmt_module(self, #f)
        }
    };
    let generics = bound::with_field_types(input, |_| vec![quote!(#private::Module)]);
    impl_trait(input, &generics, &quote!(#private::core::fmt::Display), &body)
}

fn impl_layer(input: &Input<'_>, fields: &[Field<'_>], names: &Names) -> TokenStream {
    let Names { private, x, .. } = names;
    let mut applications: Vec<TokenStream> = Vec::new();
    for field in visited(fields) {
        let mut push = |span, apply: &dyn Fn(TokenStream) -> TokenStream| {
            // Blamed on what is applied, if that takes something else.
            let x = Ident::new(&x.to_string(), x.span().located_at(span));
            let is_first = applications.is_empty();
            applications.push(apply(if is_first { quote!(#x) } else { quote_spanned!(span=> &#x) }));
        };
        for step in field.options.before.iter().flat_map(|given| &given.value) {
            push(step.span(), &|x| apply_step(step, names, &x));
        }
        push(field.ty().span(), &|x| apply_field(field, names, &x));
        for step in field.options.then.iter().flat_map(|given| &given.value) {
            push(step.span(), &|x| apply_step(step, names, &x));
        }
    }
    let last = applications.pop();
    // `forward` passes its caller's line on to what it calls, a closure does not: what a field records is recorded at the
    // line of the field.
    let body = quote! {
        fn forward(&self, #x: &#private::Var) -> #private::Var {
            #private::apply(
                |#x: &#private::Var| -> #private::Var {
                    #(let #x: #private::Var = #applications;)*
                    #last
                },
                #x,
            )
        }
    };
    let generics = bound::with_field_types(input, |_| vec![quote!(#private::Layer)]);
    impl_trait(input, &generics, &quote!(#private::Layer), &body)
}

fn apply_field(field: &Field<'_>, names: &Names, x: &TokenStream) -> TokenStream {
    let (ty, member) = (field.ty(), &field.member);
    let span = ty.span();
    let private = names.private_at(span);
    let this = quote!(self);
    quote_spanned!(span=> <#ty as #private::Layer>::forward(&#this.#member, #x))
}

fn apply_step(step: &Step, names: &Names, x: &TokenStream) -> TokenStream {
    let span = step.span();
    match step {
        Step::Method(method, arguments) => {
            let private = names.private_at(span);
            let arguments = arguments.iter();
            quote_spanned!(span=> #private::Var::#method(#x #(, #arguments)*))
        }
        Step::Function(function) => quote_spanned!(span=> #function(#x)),
        Step::Closure(closure) => {
            let private = &names.private;
            quote!(#private::apply(#closure, #x))
        }
    }
}

fn impl_from_seed(input: &Input<'_>, fields: &[Field<'_>], names: &Names) -> TokenStream {
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

fn inherent_init(input: &Input<'_>, names: &Names) -> TokenStream {
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

#[cfg(test)]
mod tests {
    use std::{env, fs, path::Path};

    use syn::parse_quote;

    use super::*;

    /// Compares what is generated for `golden/<name>.rs` with `golden/<name>.expanded.rs`; `BLESS=1` writes the latter.
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
                "a module owns what it trains: hold this by value, or add `#[module(skip)]`",
                "a key cannot contain a dot, which separates the names in a path; use `_`",
            ]
        );
    }

    #[test]
    fn what_cannot_be_read_is_not_missing() {
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
