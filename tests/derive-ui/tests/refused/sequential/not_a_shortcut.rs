use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
struct Block {
    a: Scale,
}

#[derive(Module)]
#[module(sequential, residual = block)]
struct Net {
    a: Scale,
    block: Block,
}

fn main() {}
