//! The bounds on the impls of a generic struct.
//!
//! They bound the types of fields, `Vec<L>: Module`, not the parameter, `L: Module`. The latter would be too strict for
//! a `Tagged<L>` that holds no `L`, and too weak for an `L::Block`.

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::{GenericParam, Generics, Ident, Type, WherePredicate, parse_quote_spanned};

use crate::ast::{Field, Input};

/// The generics of `input`, and the `bounds` of each field whose type mentions a type parameter.
pub fn with_field_types(input: &Input<'_>, bounds: impl Fn(&Field<'_>) -> Vec<TokenStream>) -> Generics {
    let mut generics = input.original.generics.clone();
    let parameters: Vec<&Ident> = input.original.generics.type_params().map(|parameter| &parameter.ident).collect();
    let predicates: Vec<WherePredicate> = input
        .data
        .fields()
        .filter(|field| !field.is_skipped() && mentions(field.ty(), &|ident| parameters.contains(&ident)))
        // For a recursive type, the proof of `Vec<Self>: Module` would need itself.
        .filter(|field| !mentions(field.ty(), &|ident| ident == &input.original.ident || ident == "Self"))
        .filter_map(|field| match (field.ty(), bounds(field)) {
            (_, bounds) if bounds.is_empty() => None,
            (ty, bounds) => Some(parse_quote_spanned!(ty.span()=> #ty: #(#bounds)+*)),
        })
        .collect();
    if !predicates.is_empty() {
        generics.make_where_clause().predicates.extend(predicates);
    }
    generics
}

/// The generics of `input` that occur in `types`, with the bounds that need no others.
pub fn mentioned_generics<'a>(input: &Input<'_>, types: impl Iterator<Item = &'a Type>) -> Generics {
    let all = &input.original.generics;
    let types: TokenStream = types.map(ToTokens::to_token_stream).collect();
    let is_mentioned = |parameter: &GenericParam| mentions(&types, &|ident| ident == name(parameter));
    let needs_others = |tokens: &WherePredicate| {
        mentions(tokens, &|ident| all.params.iter().any(|other| name(other) == ident && !is_mentioned(other)))
    };
    let params = all.params.iter().filter(|parameter| is_mentioned(parameter)).cloned().collect();
    let mut generics = Generics { params, ..Generics::default() };
    for parameter in generics.type_params_mut() {
        parameter.default = None;
    }
    for parameter in generics.const_params_mut() {
        parameter.default = None;
    }
    let predicates = all.where_clause.iter().flat_map(|clause| &clause.predicates);
    let kept: Vec<_> = predicates.filter(|predicate| !needs_others(predicate)).cloned().collect();
    if !kept.is_empty() && !generics.params.is_empty() {
        generics.make_where_clause().predicates.extend(kept);
    }
    generics
}

/// The name of a generic parameter; a lifetime without its quote.
pub fn name(parameter: &GenericParam) -> &Ident {
    match parameter {
        GenericParam::Type(parameter) => &parameter.ident,
        GenericParam::Const(parameter) => &parameter.ident,
        GenericParam::Lifetime(parameter) => &parameter.lifetime.ident,
    }
}

/// `true` if a name that `wanted` accepts occurs in `ty`, other than as a later segment of a path.
pub fn mentions(ty: &impl ToTokens, wanted: &dyn Fn(&Ident) -> bool) -> bool {
    fn search(tokens: TokenStream, wanted: &dyn Fn(&Ident) -> bool) -> bool {
        let mut after_colon = false;
        for token in tokens {
            match &token {
                TokenTree::Ident(ident) if !after_colon && wanted(ident) => return true,
                TokenTree::Group(group) if search(group.stream(), wanted) => return true,
                _ => {}
            }
            after_colon = matches!(&token, TokenTree::Punct(punct) if punct.as_char() == ':');
        }
        false
    }
    search(ty.to_token_stream(), wanted)
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;

    #[test]
    fn only_real_uses_of_type_parameters_are_found() {
        let is_t = |ident: &Ident| ident == "T";
        assert!(mentions(&quote!(Vec<Option<T>>), &is_t));
        assert!(mentions(&quote!([T; 4]), &is_t));
        assert!(mentions(&quote!(T::Block), &is_t));
        assert!(mentions(&quote!(<T as Family>::Block), &is_t));
        assert!(!mentions(&quote!(family::T), &is_t));
        assert!(!mentions(&quote!(Vec<U>), &is_t));
    }
}
