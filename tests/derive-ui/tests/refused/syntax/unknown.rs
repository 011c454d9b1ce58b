use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
#[module(sequentail)]
struct Net {
    #[module(renamed = "first")]
    a: Scale,
    #[module(learning_rate = 0.1)]
    b: Scale,
}

fn main() {}
