//! A type parameter that is a module in one field cannot be left out in another: whose parameters the model has would depend
//! on the field that was looked at.

use syn::{GenericArgument, Ident, PathArguments, Type};

use super::field::ungroup;
use crate::ast::{Field, Input};
use crate::ctxt::Ctxt;

/// Containers that are modules if what they hold is one.
const CONTAINERS: [&str; 8] = ["Arc", "Box", "BTreeMap", "HashMap", "Option", "Rc", "Vec", "VecDeque"];

pub fn check(ctxt: &Ctxt, input: &Input<'_>) {
    let parameters: Vec<&Ident> = input.original.generics.type_params().map(|parameter| &parameter.ident).collect();
    let (skipped, visited): (Vec<_>, Vec<_>) =
        input.data.fields().filter(|field| !field.options.is_unclear).partition(|field| field.is_skipped());
    for parameter in parameters {
        let holds = |field: &&&Field<'_>| holds(field.ty(), parameter);
        let Some(module) = visited.iter().find(holds) else { continue };
        for field in skipped.iter().filter(holds) {
            let message = format!(
                "`{parameter}` is a module in `{}`, and skipped here, where it would be neither saved nor moved; remove \
                 `skip` (`frozen` keeps it from training), or use another type parameter",
                module.name()
            );
            ctxt.error(field.ty(), message);
        }
    }
}

/// Whether `ty` is the parameter, or a container of it.
fn holds(ty: &Type, parameter: &Ident) -> bool {
    match ungroup(ty) {
        Type::Path(path) if path.qself.is_none() => {
            let Some(last) = path.path.segments.last() else { return false };
            match &last.arguments {
                PathArguments::AngleBracketed(arguments) if CONTAINERS.iter().any(|name| last.ident == name) => {
                    arguments.args.iter().any(|argument| match argument {
                        GenericArgument::Type(ty) => holds(ty, parameter),
                        _ => false,
                    })
                }
                PathArguments::None => path.path.is_ident(parameter),
                _ => false,
            }
        }
        Type::Array(array) => holds(&array.elem, parameter),
        Type::Tuple(tuple) => tuple.elems.iter().any(|ty| holds(ty, parameter)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    #[test]
    fn containers_hold_what_is_in_them() {
        let parameter: Ident = parse_quote!(L);
        for ty in [parse_quote!(L), parse_quote!(Vec<Option<L>>), parse_quote!([(u8, L); 2]), parse_quote!((Box<L>))] {
            assert!(holds(&ty, &parameter));
        }
        for ty in [parse_quote!(PhantomData<L>), parse_quote!(Keep<L>), parse_quote!(L::Block), parse_quote!(fn(L))] {
            assert!(!holds(&ty, &parameter));
        }
    }
}
