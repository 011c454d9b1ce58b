use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

struct Settings {
    factor: f32,
}

#[derive(Module)]
#[module(config = Settings)]
struct Encoder {
    #[module(init = Scale::new(config.factor))]
    a: Scale,
}

#[derive(Module)]
#[module(config = Settings)]
struct Decoder {
    #[module(init = Scale::new(config.factor))]
    a: Scale,
}

fn main() {}
