use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
struct Net {
    #[module(init = )]
    a: Scale,
    #[module(init(Scale::new(1.0)))]
    b: Scale,
    #[module(init = Scale::new(1.0 2.0), frozen)]
    c: Scale,
}

fn main() {}
