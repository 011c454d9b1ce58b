//! `#[derive(Module)]` of the crate `meganeura`, which exports it. The reference is at [`Module`].

mod ast;
mod attr;
mod bound;
mod check;
mod ctxt;
mod expand;
mod fallback;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

#[doc = include_str!("reference.md")]
#[proc_macro_derive(Module, attributes(module))]
pub fn derive_module(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand::derive(&input).unwrap_or_else(|mistakes| fallback::expand(&input, &mistakes)).into()
}
