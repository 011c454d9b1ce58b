//! `impl Module`, the walk over the fields, and the `impl Display` that prints it.

use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Ident, Type};

use super::{Names, impl_trait};
use crate::ast::{Data, Field, Input};
use crate::bound;
use crate::check::contents::held;

pub fn impl_module(input: &Input<'_>, names: &Names) -> TokenStream {
    let Names { private, at, f, .. } = names;
    let [visit, visit_mut] = ["visit", "visit_mut"].map(|method| visit_body(input, names, &format_ident!("{method}")));
    // An unused parameter has no name.
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
    let arm = |path: TokenStream, before: TokenStream, key: Option<String>, fields: &[Field<'_>]| {
        let (patterns, visits): (Vec<_>, Vec<_>) = visited(fields)
            .map(|field| {
                let (member, variable) = (&field.member, field.variable());
                (quote!(#member: #variable), visit_field(field, &variable, names, method))
            })
            .unzip();
        let below = key.filter(|_| !visits.is_empty()).map(|key| quote!(let #at = #private::At::field(&#at, #key);));
        // Once is enough.
        let unmeant = |field: &&Field<'_>| field.is_skipped() && !field.is_skipped_on_purpose() && method == "visit";
        let checks =
            fields.iter().filter(unmeant).flat_map(|field| held(field.ty())).map(|ty| check_skipped(ty, names));
        quote!(#path { #(#patterns,)* .. } => { #(#checks)* #before #below #(#visits)* })
    };
    let arms: TokenStream = match &input.data {
        Data::Struct(fields) => arm(quote!(Self), quote!(), None, fields),
        Data::Enum(variants) => variants
            .iter()
            .map(|variant| {
                let (ident, name) = (variant.ident, variant.ident.unraw().to_string());
                // The variant is reported only in the walk that changes nothing.
                let tell = (method == "visit").then(|| quote!(#f(#at, #private::Slot::Variant(#name));));
                arm(quote!(Self::#ident), quote!(#tell), variant.key(&input.options), &variant.fields)
            })
            .collect(),
        Data::Union(_) => unreachable!("refused by `check`"),
    };
    quote!(match self { #arms })
}

pub fn visited<'a>(fields: &'a [Field<'a>]) -> impl Iterator<Item = &'a Field<'a>> {
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

/// A check by type that a skipped field is not a module: the type may be an alias or come from another crate.
fn check_skipped(ty: &Type, names: &Names) -> TokenStream {
    let (private, blamed) = (&names.private, names.private_at(ty.span()));
    // All tokens of the call have the type's span, so the compiler points at the type.
    let check = quote_spanned!(ty.span()=> #blamed::check_skipped::<#ty, _>(&#blamed::skipped::<#ty>().__content()););
    quote!({
        use #private::{Content as _, ModuleContent as _};
        #check
    })
}

pub fn impl_display(input: &Input<'_>, names: &Names) -> TokenStream {
    let Names { private, f, .. } = names;
    let body = quote! {
        fn fmt(&self, #f: &mut #private::core::fmt::Formatter<'_>) -> #private::core::fmt::Result {
            #private::fmt_module(self, #f)
        }
    };
    let generics = bound::with_field_types(input, |_| vec![quote!(#private::Module)]);
    impl_trait(input, &generics, &quote!(#private::core::fmt::Display), &body)
}
