use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
#[module(config = usize)]
struct Net {
    #[module(init = Scale::new(1.0).wide(config))]
    a: Scale,
}

fn main() {}
