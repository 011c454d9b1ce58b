//! `input = [_, 3, 32, 32]`: the shape on which `init` checks a model.

use proc_macro2::Span;
use syn::parse::ParseStream;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Error, Expr, Ident, Result, Token, bracketed, token};

use super::read::{equals, malformed};

/// The extents of a model's input.
pub struct ModelInput {
    /// Indices of classes or rows: `u32 [_, 16]`.
    pub is_index: bool,
    /// `None` for `_`, the batch.
    pub extents: Vec<Option<Expr>>,
    pub span: Span,
}

const WANTED: &str =
    "the shape of one input, with `_` for the batch: `input = [_, 3, 32, 32]`, or for indices `input = u32 [_, 16]`";

impl ModelInput {
    pub fn parse(name: &Ident, input: ParseStream<'_>) -> Result<Self> {
        equals(name, input, WANTED)?;
        let is_index = match input.parse::<Option<Ident>>()? {
            Some(ty) if ty == "u32" => true,
            Some(other) => return Err(malformed(other, name, WANTED)),
            None => false,
        };
        if input.peek(token::Paren) {
            let message = "`input` describes a single input; if the model takes several, remove it, and record the \
                           model in a test: `net.summary_by(([2, 3], [2, 4]), |net, (x, y)| net.forward(x, y))`";
            return Err(Error::new(input.span(), message));
        }
        if !input.peek(token::Bracket) {
            return Err(Error::new(input.span(), format!("`{name}` takes {WANTED}")));
        }
        let content;
        let brackets = bracketed!(content in input);
        let extents = Punctuated::<Expr, Token![,]>::parse_terminated(&content)
            .map_err(|error| Error::new(error.span(), format!("`{name}` takes {WANTED}")))?;
        if let Some(second) = extents.iter().filter(|extent| matches!(extent, Expr::Infer(_))).nth(1) {
            return Err(Error::new(second.span(), "`_` is the batch; write the other extents"));
        }
        let extents = extents.into_iter().map(|extent| match extent {
            Expr::Infer(_) => None,
            extent => Some(extent),
        });
        Ok(Self { is_index, extents: extents.collect(), span: brackets.span.join() })
    }
}
