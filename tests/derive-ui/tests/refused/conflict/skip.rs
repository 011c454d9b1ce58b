use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
#[module(sequential)]
struct Net {
    #[module(skip, frozen)]
    a: Scale,
    #[module(rename = "first", skip)]
    b: Scale,
    #[module(skip, before = relu, then = relu, recompute)]
    c: Scale,
    d: Scale,
}

fn main() {}
