use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

struct NetConfig;

#[derive(Module)]
#[module(config(factor: f32))]
struct Net {
    #[module(init = Scale::new(factor))]
    a: Scale,
}

fn main() {}
