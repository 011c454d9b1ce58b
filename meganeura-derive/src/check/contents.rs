//! The contents of a field's type, as far as its tokens tell.

use syn::{GenericArgument, PathArguments, Type};

/// Containers that are modules if their contents are.
const CONTAINERS: [&str; 7] = ["Arc", "Box", "BTreeMap", "HashMap", "Option", "Vec", "VecDeque"];

/// Types that are not modules, but may hold some. Maps are modules for some types of keys.
const WRAPPERS: [&str; 11] =
    ["BTreeMap", "Cell", "HashMap", "LazyCell", "LazyLock", "Mutex", "OnceCell", "OnceLock", "Rc", "RefCell", "RwLock"];

/// The types in `ty` that show whether it holds a module: `ty` itself, or the contents of a wrapper that is not a
/// module.
pub fn held(ty: &Type) -> Vec<&Type> {
    fn inner(ty: &Type) -> Vec<&Type> {
        match ungroup(ty) {
            Type::Array(array) => vec![&array.elem],
            Type::Tuple(tuple) => tuple.elems.iter().collect(),
            ty => arguments(ty, &[&CONTAINERS[..], &WRAPPERS].concat()).into_iter().flatten().collect(),
        }
    }
    fn has_wrapper(ty: &Type) -> bool {
        arguments(ungroup(ty), &WRAPPERS).is_some() || inner(ty).into_iter().any(has_wrapper)
    }
    if has_wrapper(ty) { inner(ty).into_iter().flat_map(held).collect() } else { vec![ungroup(ty)] }
}

/// The types inside `ty` at any depth, if it is a container; otherwise `ty` itself.
pub fn contents(ty: &Type) -> Vec<&Type> {
    match ungroup(ty) {
        Type::Array(array) => contents(&array.elem),
        Type::Tuple(tuple) => tuple.elems.iter().flat_map(contents).collect(),
        ty => match arguments(ty, &CONTAINERS) {
            Some(arguments) => arguments.flat_map(contents).collect(),
            None => vec![ty],
        },
    }
}

/// The type arguments of one of these types.
fn arguments<'a>(ty: &'a Type, known: &[&str]) -> Option<impl Iterator<Item = &'a Type> + use<'a>> {
    let Type::Path(path) = ty else { return None };
    let last = path.path.segments.last()?;
    match &last.arguments {
        PathArguments::AngleBracketed(arguments) if known.iter().any(|name| last.ident == name) => {
            // A map's keys are not visited.
            let keys = usize::from(last.ident == "BTreeMap" || last.ident == "HashMap");
            Some(arguments.args.iter().skip(keys).filter_map(|argument| match argument {
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
    fn wrappers_are_looked_into() {
        let words = |ty: &Type| held(ty).into_iter().map(|ty| ty.to_token_stream().to_string()).collect::<Vec<_>>();
        assert_eq!(words(&parse_quote!(Vec<Option<L>>)), ["Vec < Option < L > >"]);
        assert_eq!(words(&parse_quote!(Rc<L>)), ["L"]);
        assert_eq!(words(&parse_quote!(Option<(u8, Arc<Mutex<Vec<L>>>)>)), ["u8", "Vec < L >"]);
        assert_eq!(words(&parse_quote!(HashMap<u32, L>)), ["L"]);
        assert_eq!(words(&parse_quote!(&'a Rc<L>)), ["& 'a Rc < L >"]);
    }

    #[test]
    fn containers_are_looked_into() {
        assert_eq!(words(&parse_quote!(L)), ["L"]);
        assert_eq!(words(&parse_quote!(std::vec::Vec<Option<L>>)), ["L"]);
        assert_eq!(words(&parse_quote!([(HashMap<String, A>, (B)); 2])), ["A", "B"]);
        assert_eq!(words(&parse_quote!(PhantomData<&'a L>)), ["PhantomData < & 'a L >"]);
        assert_eq!(words(&parse_quote!(())), [] as [&str; 0]);
    }
}
