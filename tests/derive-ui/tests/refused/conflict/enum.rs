use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
#[module(sequential)]
enum Block {
    Scale(#[module(init = Scale::new(1.0), then = relu, recompute)] Scale),
    None,
}

fn main() {}
