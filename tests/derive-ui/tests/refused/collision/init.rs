use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
struct Net {
    #[module(init = Scale::new(1.0))]
    a: Scale,
}

impl Net {
    fn init() {}
}

fn main() {}
