use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
#[modules(sequential)]
struct Net {
    a: Scale,
}

fn main() {}
