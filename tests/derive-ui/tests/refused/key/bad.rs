use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
struct Net {
    #[module(rename = "")]
    a: Scale,
    #[module(rename = "block.weight")]
    b: Scale,
}

fn main() {}
