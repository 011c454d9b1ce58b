use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
#[module(frozen)]
struct Net {
    #[module(sequential)]
    a: Scale,
}

fn main() {}
