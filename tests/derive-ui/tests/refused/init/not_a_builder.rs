use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
struct Net {
    #[module(init = 0.5)]
    a: Scale,
}

fn main() {}
