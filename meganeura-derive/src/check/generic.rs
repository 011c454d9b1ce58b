//! A type parameter that is a module in one field must not be skipped in another: the model would contain one field's
//! parameters and not the other's.

use syn::{Ident, Type};

use super::contents::contents;
use crate::ast::{Field, Input};
use crate::ctxt::Ctxt;

pub fn check(ctxt: &Ctxt, input: &Input<'_>) {
    let parameters: Vec<&Ident> = input.original.generics.type_params().map(|parameter| &parameter.ident).collect();
    let (skipped, visited): (Vec<_>, Vec<_>) =
        input.data.fields().filter(|field| !field.options.is_unclear).partition(|field| field.is_skipped());
    for parameter in parameters {
        let is_parameter =
            |ty: &Type| matches!(ty, Type::Path(path) if path.qself.is_none() && path.path.is_ident(parameter));
        let holds = |field: &&&Field<'_>| contents(field.ty()).into_iter().any(is_parameter);
        let Some(module) = visited.iter().find(holds) else { continue };
        for field in skipped.iter().filter(holds).filter(|field| !field.is_skipped_on_purpose()) {
            let message = format!(
                "`{parameter}` is a module in `{}`, and skipped here, where it would be neither saved nor moved; remove \
                 `skip` (`frozen` keeps it from training), or confirm it: `skip(parameters)`",
                module.name()
            );
            ctxt.error(field.ty(), message);
        }
    }
}
