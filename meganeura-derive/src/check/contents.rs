//! What is in a field's type, as far as its words tell.

use syn::{GenericArgument, PathArguments, Type};

/// Containers that are modules if what they hold is one.
const CONTAINERS: [&str; 7] = ["Arc", "Box", "BTreeMap", "HashMap", "Option", "Vec", "VecDeque"];

/// The types in `ty`, if it is a container, however deep, and else `ty` itself.
pub fn contents(ty: &Type) -> Vec<&Type> {
    match ungroup(ty) {
        Type::Array(array) => contents(&array.elem),
        Type::Tuple(tuple) => tuple.elems.iter().flat_map(contents).collect(),
        ty => match arguments(ty) {
            Some(arguments) => arguments.flat_map(contents).collect(),
            None => vec![ty],
        },
    }
}

/// The types that a container is given.
fn arguments(ty: &Type) -> Option<impl Iterator<Item = &Type>> {
    let Type::Path(path) = ty else { return None };
    let last = path.path.segments.last()?;
    match &last.arguments {
        PathArguments::AngleBracketed(arguments) if CONTAINERS.iter().any(|name| last.ident == name) => {
            Some(arguments.args.iter().filter_map(|argument| match argument {
                GenericArgument::Type(ty) => Some(ty),
                _ => None,
            }))
        }
        _ => None,
    }
}

/// Without the parentheses and invisible groups around it, which macros leave behind.
pub fn ungroup(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => ungroup(&group.elem),
        Type::Paren(paren) => ungroup(&paren.elem),
        ty => ty,
    }
}

#[cfg(test)]
mod tests {
    use quote::ToTokens;
    use syn::parse_quote;

    use super::*;

    fn words(ty: &Type) -> Vec<String> {
        contents(ty).into_iter().map(|ty| ty.to_token_stream().to_string()).collect()
    }

    #[test]
    fn containers_are_looked_into() {
        assert_eq!(words(&parse_quote!(L)), ["L"]);
        assert_eq!(words(&parse_quote!(std::vec::Vec<Option<L>>)), ["L"]);
        assert_eq!(words(&parse_quote!([(HashMap<String, A>, (B)); 2])), ["String", "A", "B"]);
        assert_eq!(words(&parse_quote!(PhantomData<&'a L>)), ["PhantomData < & 'a L >"]);
        assert_eq!(words(&parse_quote!(())), [] as [&str; 0]);
    }
}
