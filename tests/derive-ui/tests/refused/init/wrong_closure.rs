use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
struct Net {
    #[module(init = |device, seed| Scale::new(1.0))]
    a: Scale,
    #[module(init = |seed| Scale::new(1.0).init(&Device::cpu(), seed))]
    b: Scale,
}

fn main() {}
