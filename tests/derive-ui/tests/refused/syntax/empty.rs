use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
#[module()]
struct Net {
    #[module]
    a: Scale,
    #[module = "b"]
    b: Scale,
}

fn main() {}
