//! `config(channels: usize)` and `config = NetConfig`: a model's constructor arguments.

use syn::parse::ParseStream;
use syn::{Attribute, Error, Ident, Result, Token, Type, parenthesized, token};

use super::read::{equals, malformed};
use crate::ctxt::Ctxt;

/// The arguments that the `init` expressions see.
pub enum Config {
    /// `config(channels: usize)`: these values, as a struct that is generated.
    Values(Vec<Value>),
    /// `config = NetConfig`: a value of this type, called `config`.
    Type(Box<Type>),
}

/// `channels: usize`, with its documentation.
pub struct Value {
    pub docs: Vec<Attribute>,
    pub ident: Ident,
    pub ty: Type,
}

const WANTED: &str = "arguments, `config(channels: usize)`, or a type of your own, `config = NetConfig`";

impl Config {
    pub fn parse(ctxt: &Ctxt, name: &Ident, input: ParseStream<'_>) -> Result<Self> {
        if !input.peek(token::Paren) {
            equals(name, input, WANTED)?;
            return input
                .parse()
                .map(|ty| Self::Type(Box::new(ty)))
                .map_err(|error| Error::new(error.span(), takes(name)));
        }
        let content;
        parenthesized!(content in input);
        if content.is_empty() {
            return Err(malformed(name, name, WANTED));
        }
        let mut unique: Vec<Value> = Vec::new();
        while !content.is_empty() {
            let value = Value::parse(ctxt, &content)?;
            if !content.is_empty() {
                content.parse::<Token![,]>()?;
            }
            if unique.iter().any(|other| other.ident == value.ident) {
                ctxt.error(&value.ident, format!("`{}` is given twice; remove one", value.ident));
            } else {
                unique.push(value);
            }
        }
        Ok(Self::Values(unique))
    }
}

impl Value {
    fn parse(ctxt: &Ctxt, input: ParseStream<'_>) -> Result<Self> {
        let (docs, others): (_, Vec<_>) =
            Attribute::parse_outer(input)?.into_iter().partition(|attr| attr.path().is_ident("doc"));
        for other in others {
            let message = "only doc comments are allowed here; for other attributes, write the struct yourself: \
                           `config = NetConfig`";
            ctxt.error(other, message);
        }
        let ident: Ident = input.parse().map_err(|_| input.error("expected a value: `channels: usize`"))?;
        if input.parse::<Token![:]>().is_err() || input.is_empty() {
            return Err(Error::new_spanned(&ident, format!("`{ident}` needs a type: `{ident}: usize`")));
        }
        Ok(Self { docs, ident, ty: input.parse()? })
    }
}

fn takes(name: &Ident) -> String {
    format!("`{name}` takes {WANTED}")
}
