use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
#[module(sequential)]
struct Net {
    #[module(then)]
    a: Scale,
    #[module(then = [])]
    b: Scale,
    #[module(then = [relu, "relu"], before = x.relu())]
    c: Scale,
}

fn main() {}
