use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
#[module(sequential, sequential)]
struct Net {
    #[module(frozen)]
    #[module(frozen)]
    a: Scale,
}

fn main() {}
