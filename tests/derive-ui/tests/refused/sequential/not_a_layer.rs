use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
struct Block {
    a: Scale,
}

#[derive(Module)]
#[module(sequential)]
struct Net {
    block: Block,
    skip: Option<Scale>,
}

fn main() {}
