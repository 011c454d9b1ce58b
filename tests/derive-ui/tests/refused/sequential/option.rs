use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
#[module(sequential)]
struct Net {
    a: Scale,
    skip: Option<Scale>,
    #[module(then = relu)]
    b: std::option::Option<Vec<Scale>>,
}

fn main() {}
