//! `impl Layer` of a sequential struct: the fields, applied in order.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::Ident;
use syn::spanned::Spanned;

use super::visit::visited;
use super::{Names, impl_trait};
use crate::ast::{Field, Input};
use crate::attr::Step;
use crate::bound;

pub fn impl_layer(input: &Input<'_>, fields: &[Field<'_>], names: &Names) -> TokenStream {
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
