use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
#[module(sequential, then = frobnicate)]
struct Net {
    #[module(then = relew)]
    a: Scale,
    #[module(before = [leaky_rely(0.1), relu])]
    b: Scale,
}

fn main() {}
