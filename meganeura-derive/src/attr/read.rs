//! The syntax of options: names with optional values, separated by commas. Reading continues after a mistake.

use proc_macro2::TokenTree;
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::ParseStream;
use syn::{Attribute, Error, Ident, LitStr, Meta, Result, Token, token};

use super::Given;
use crate::ctxt::Ctxt;

fn of_module(attrs: &[Attribute]) -> impl Iterator<Item = &Attribute> {
    attrs.iter().filter(|attr| attr.path().is_ident("module"))
}

/// Calls `option` with the name of each option and the input after it. A mistake does not end the attribute: reading
/// continues after the next comma. Returns `true` if there was no mistake.
pub fn for_each_option(
    ctxt: &Ctxt,
    attrs: &[Attribute],
    example: &str,
    mut option: impl FnMut(&Ident, ParseStream<'_>) -> Result<()>,
) -> bool {
    let mut all_read = true;
    for attr in of_module(attrs) {
        match &attr.meta {
            Meta::List(list) if list.tokens.is_empty() => {
                ctxt.error(attr, format!("this has no effect; remove it, or give an option: `{example}`"));
                all_read = false;
                continue;
            }
            Meta::List(_) => {}
            Meta::Path(_) | Meta::NameValue(_) => {
                ctxt.error(attr, format!("options go in parentheses: `{example}`"));
                all_read = false;
                continue;
            }
        }
        let parsed = attr.parse_args_with(|input: ParseStream<'_>| {
            while !input.is_empty() {
                if let Err(error) = one_option(input, &mut option) {
                    ctxt.push(error);
                    all_read = false;
                    skip_past_comma(input)?;
                }
            }
            Ok(())
        });
        // After a mistake inside brackets, the rest of the brackets would be another error.
        if let Err(error) = parsed
            && all_read
        {
            ctxt.push(error);
            all_read = false;
        }
    }
    all_read
}

fn one_option(input: ParseStream<'_>, option: &mut impl FnMut(&Ident, ParseStream<'_>) -> Result<()>) -> Result<()> {
    let name =
        input.call(Ident::parse_any).map_err(|error| Error::new(error.span(), "expected the name of an option"))?;
    option(&name, input)?;
    if !input.is_empty() && input.parse::<Token![,]>().is_err() {
        return Err(input.error(format!("expected a comma after `{name}`")));
    }
    Ok(())
}

fn skip_past_comma(input: ParseStream<'_>) -> Result<()> {
    while !input.is_empty() {
        if input.parse::<Option<Token![,]>>()?.is_some() {
            break;
        }
        input.parse::<TokenTree>()?;
    }
    Ok(())
}

pub fn set<T>(ctxt: &Ctxt, slot: &mut Option<Given<T>>, name: &Ident, value: T) -> Result<()> {
    if slot.is_some() {
        ctxt.error(name, format!("`{name}` is given twice; remove one"));
    } else {
        *slot = Some(Given { name: name.clone(), value });
    }
    Ok(())
}

/// Checks that nothing follows an option without a value.
pub fn flag(name: &Ident, input: ParseStream<'_>) -> Result<()> {
    if input.peek(Token![=]) || input.peek(token::Paren) {
        return Err(Error::new_spanned(name, format!("`{name}` takes no value; write just `{name}`")));
    }
    Ok(())
}

/// The `=` before a value.
pub fn equals(name: &Ident, input: ParseStream<'_>, wanted: &str) -> Result<()> {
    if input.parse::<Token![=]>().is_err() || at_end_of_option(input) {
        return Err(malformed(name, name, wanted));
    }
    Ok(())
}

pub fn at_end_of_option(input: ParseStream<'_>) -> bool {
    input.is_empty() || input.peek(Token![,])
}

/// `= "text"`.
pub fn string(name: &Ident, input: ParseStream<'_>, wanted: &str) -> Result<LitStr> {
    equals(name, input, wanted)?;
    input.parse().map_err(|error| Error::new(error.span(), format!("`{name}` takes {wanted}")))
}

pub fn malformed(tokens: impl ToTokens, name: &Ident, wanted: &str) -> Error {
    Error::new_spanned(tokens, format!("`{name}` takes {wanted}"))
}
