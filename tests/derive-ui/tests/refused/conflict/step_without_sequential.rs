use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
struct Net {
    #[module(then = relu)]
    a: Scale,
    #[module(before = flatten)]
    b: Scale,
    #[module(recompute)]
    c: Scale,
}

fn main() {}
