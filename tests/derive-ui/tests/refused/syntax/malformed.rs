use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
#[module(crate = meganeura, no_display(true))]
struct Net {
    #[module(skip = true)]
    a: Scale,
    #[module(rename)]
    b: Scale,
    #[module(rename = c)]
    c: Scale,
    #[module("frozen")]
    d: Scale,
    #[module(frozen rename = "e")]
    e: Scale,
}

#[derive(Module)]
#[module(crate = "not a path")]
struct Other;

fn main() {}
