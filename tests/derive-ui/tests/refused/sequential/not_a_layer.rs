use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
struct Block {
    a: Scale,
}

type Maybe = Option<Scale>;

#[derive(Module)]
#[module(sequential)]
struct Net {
    block: Block,
    maybe: Maybe,
}

fn main() {}
