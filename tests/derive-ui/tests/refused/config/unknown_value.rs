use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
#[module(config(factor: f32))]
struct Net {
    #[module(init = Scale::new(factr))]
    a: Scale,
    #[module(init = Scale::new(factor))]
    b: Scale,
}

fn main() {}
