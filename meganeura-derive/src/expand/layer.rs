//! `impl Layer` of a sequential struct: the fields, applied in order.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Expr, Ident, PathSegment};

use super::visit::visited;
use super::{Names, impl_trait_for};
use crate::ast::{Field, Input};
use crate::attr::{Given, Step, is_method, keeps_shape, nearest_method};
use crate::bound;

pub fn impl_layer(input: &Input<'_>, fields: &[Field<'_>], names: &Names) -> TokenStream {
    let Names { private, x, y, entered: guard, .. } = names;
    let options = &input.options;
    let shortcut = input.shortcut();
    let mut chain = Chain { names, applications: Vec::new(), flows: Vec::new() };
    for field in visited(fields).filter(|field| !shortcut.is_some_and(|shortcut| shortcut.member == field.member)) {
        let member = &field.member;
        let held = quote!(&self.#member);
        chain.steps(field.options.before.as_ref(), &held);
        chain.push(field.ty().span(), |x| apply_field(field, names, x));
        chain.flows.push(flow_of_field(field, names));
        chain.steps(field.options.then.as_ref(), &held);
    }
    if let Some(residual) = &options.residual {
        chain.flows.push(flow_beside(&residual.name, shortcut, names));
        let x = match shortcut {
            Some(field) => {
                let (ty, member, key) = (field.ty(), &field.member, field.key());
                let private = names.private_at(ty.span());
                quote_spanned!(ty.span()=> &<#ty as #private::Shortcut>::shortcut(&self.#member, #key, #x))
            }
            None => quote!(#x),
        };
        let span = residual.name.span();
        let private = names.private_at(span);
        chain.push(span, |y| quote_spanned!(span=> #private::add_residual(#x, #y)));
    }
    chain.steps(options.then.as_ref(), &quote!(self));

    let flows = &chain.flows;
    let mut applications = chain.applications;
    let last = applications.pop();
    // `forward` passes its caller's line on to its callees, but a closure does not: a field's operations are recorded
    // at the line of the field.
    let body = quote! {
        fn forward(&self, #x: &#private::Var) -> #private::Var {
            let #guard = #private::enter(self, #x);
            #private::apply(
                |#x: &#private::Var| -> #private::Var {
                    #(let #y: #private::Var = #applications;)*
                    #last
                },
                #x,
            )
        }

        fn flow(&self) -> #private::Flow {
            let #y = #private::FlowChain::new();
            #(let #y = #flows;)*
            #private::FlowChain::finish(#y)
        }
    };
    let generics = bound::with_field_types(input, |field| match shortcut {
        Some(shortcut) if shortcut.member == field.member => vec![quote!(#private::Shortcut)],
        _ => vec![quote!(#private::Layer)],
    });
    let option = options.sequential.as_ref().map(|given| &given.name);
    impl_trait_for(option, input, &generics, &quote!(#private::Layer), &body)
}

/// The operations, in order: the first takes the input, each other one the result of the operation before it.
struct Chain<'a> {
    names: &'a Names,
    applications: Vec<TokenStream>,
    /// The flow of each operation, to be compared with its neighbours'.
    flows: Vec<TokenStream>,
}

impl Chain<'_> {
    /// Adds the `before` or `then` of the field `held`, in the field's mode.
    fn steps(&mut self, steps: Option<&Given<Vec<Step>>>, held: &TokenStream) {
        for step in steps.iter().flat_map(|given| &given.value) {
            let names = self.names;
            self.push(step.span(), |x| apply_step(step, names, x, held));
            self.flows.extend(flow_of_step(step, names));
        }
    }

    /// Adds the operation `apply` on the last result. The compiler reports a type error at `span`.
    fn push(&mut self, span: Span, apply: impl FnOnce(&TokenStream) -> TokenStream) {
        let blamed = |ident: &Ident| Ident::new(&ident.to_string(), ident.span().located_at(span));
        let last = if self.applications.is_empty() {
            blamed(&self.names.x).into_token_stream()
        } else {
            let y = blamed(&self.names.y);
            quote_spanned!(span=> &#y)
        };
        self.applications.push(apply(&last));
    }
}

fn apply_field(field: &Field<'_>, names: &Names, x: &TokenStream) -> TokenStream {
    let (ty, member) = (field.ty(), &field.member);
    let span = ty.span();
    let private = names.private_at(span);
    let this = quote!(self);
    let forward = match &field.options.recompute {
        Some(recompute) => Ident::new("recompute", span.located_at(recompute.name.span())),
        None => Ident::new("forward", span),
    };
    entered(field, names, x, &quote_spanned!(span=> <#ty as #private::Layer>::#forward(&#this.#member, #x)))
}

/// The call of a field, under the field's name in summaries.
fn entered(field: &Field<'_>, names: &Names, x: &TokenStream, applied: &TokenStream) -> TokenStream {
    let Names { private, entered, .. } = names;
    let (member, key) = (&field.member, field.key());
    quote!({
        let #entered = #private::enter_field(&self.#member, #key, #x);
        #applied
    })
}

/// The flow of a layer. If it is not a layer, `forward` reports the error.
fn known_flow(layer: &TokenStream, names: &Names) -> TokenStream {
    let private = &names.private;
    quote!({
        use #private::{KnownFlow as _, UnknownFlow as _};
        (&#private::FlowOf(&#layer)).flow()
    })
}

fn flow_of_field(field: &Field<'_>, names: &Names) -> TokenStream {
    let (member, key) = (&field.member, field.key());
    let (span, y) = (field.ty().span(), &names.y);
    let private = names.private_at(span);
    let flow = known_flow(&quote!(self.#member), names);
    quote_spanned!(span=> #private::FlowChain::then(#y, #key, &#flow))
}

/// The flow of a step: unknown, unless it is a layer or keeps every extent.
fn flow_of_step(step: &Step, names: &Names) -> Option<TokenStream> {
    let (private, y, span) = (&names.private, &names.y, step.span());
    match step {
        Step::Method(method, _) if keeps_shape(&method.ident.to_string()) => None,
        Step::Layer(layer) => {
            let name = layer.to_token_stream().to_string();
            let private = names.private_at(span);
            let flow = known_flow(&layer.to_token_stream(), names);
            Some(quote_spanned!(span=> #private::FlowChain::then(#y, #name, &#flow)))
        }
        Step::Method(..) | Step::Function(_) | Step::Closure(_) => Some(quote!(#private::FlowChain::unknown(#y))),
    }
}

fn flow_beside(option: &Ident, shortcut: Option<&Field<'_>>, names: &Names) -> TokenStream {
    let (y, core) = (&names.y, &names.private);
    let beside = match shortcut {
        Some(field) => {
            let (member, key) = (&field.member, field.key());
            let flow = quote!({
                use #core::{KnownFlowBeside as _, UnknownFlow as _};
                (&#core::FlowOf(&self.#member)).flow_beside()
            });
            quote!(#core::core::option::Option::Some((#key, &#flow)))
        }
        None => quote!(#core::core::option::Option::None),
    };
    let span = option.span();
    let private = names.private_at(span);
    quote_spanned!(span=> #private::FlowChain::beside(#y, #beside))
}

fn apply_step(step: &Step, names: &Names, x: &TokenStream, held: &TokenStream) -> TokenStream {
    let span = step.span();
    match step {
        Step::Method(method, arguments) if !is_method(&method.ident.to_string()) => {
            unknown_method(method, arguments.iter(), names, x)
        }
        Step::Method(method, arguments) => {
            let private = names.private_at(span);
            let arguments = arguments.iter();
            quote_spanned!(span=> #private::Var::#method(#x #(, #arguments)*))
        }
        Step::Function(function) => quote_spanned!(span=> #function(#x)),
        Step::Layer(layer) => {
            let private = names.private_at(span);
            let whole = quote!(self);
            quote_spanned!(span=> #private::apply_layer(&#layer, #x, #held, #whole))
        }
        Step::Closure(closure) => {
            let private = &names.private;
            quote!(#private::apply(#closure, #x))
        }
    }
}

/// A method that `Var` does not have. A user's trait may have it. If none has, the method comes from a local trait,
/// which exists only for its error message: it is implemented for one more reference, so the compiler finds it last.
fn unknown_method<'a>(
    method: &PathSegment,
    arguments: impl ExactSizeIterator<Item = &'a Expr>,
    names: &Names,
    x: &TokenStream,
) -> TokenStream {
    let (private, span) = (&names.private, method.span());
    let name = &method.ident;
    let message = format!("`Var` has no method `{name}`");
    let label = match nearest_method(&name.to_string()) {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => "no such method of `Var`, nor of a trait in scope".to_owned(),
    };
    let types: Vec<_> = (0..arguments.len()).map(|index| format_ident!("__{index}")).collect();
    let call = quote_spanned!(span=> (#x).#method(#(#arguments),*));
    quote! {{
        #[diagnostic::on_unimplemented(
            message = #message,
            label = #label,
            note = "to call a function, write a path with `::`, as in `self::swish`; to use a closure, write `|x| x * 2.0`"
        )]
        trait __Method {}
        // Bound to a type, so that the compiler does not suggest impls.
        #[diagnostic::do_not_recommend]
        impl __Method for () {}
        #[allow(dead_code, reason = "it is called if there is no other")]
        trait __Otherwise {
            fn #name<#(#types),*>(&self, #(_: #types),*) -> #private::Var
            where
                for<'__never> #private::Unknown: __Method;
        }
        impl __Otherwise for &#private::Var {
            fn #name<#(#types),*>(&self, #(_: #types),*) -> #private::Var
            where
                for<'__never> #private::Unknown: __Method
            {
                #private::core::unreachable!()
            }
        }
        #call
    }}
}
