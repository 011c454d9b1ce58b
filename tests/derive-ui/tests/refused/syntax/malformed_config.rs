use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
#[module(config)]
struct Bare {
    #[module(init = Scale::new(1.0))]
    a: Scale,
}

#[derive(Module)]
#[module(config())]
struct Empty {
    #[module(init = Scale::new(1.0))]
    a: Scale,
}

#[derive(Module)]
#[module(config(factor))]
struct Untyped {
    #[module(init = Scale::new(1.0))]
    a: Scale,
}

#[derive(Module)]
#[module(config(factor = 1.0))]
struct Valued {
    #[module(init = Scale::new(1.0))]
    a: Scale,
}

#[derive(Module)]
#[module(config = 3)]
struct Number {
    #[module(init = Scale::new(1.0))]
    a: Scale,
}

#[derive(Module)]
#[module(config(factor: f32, factor: f64, #[serde(default)] width: usize))]
struct Twice {
    #[module(init = Scale::new(factor).wide(width))]
    a: Scale,
}

// The mistakes are the only errors: the rest of the program compiles.
fn _used(device: &Device) -> meganeura::Result<Twice> {
    Twice::init(device, 42, TwiceConfig { factor: 1.0, width: 1 })
}

fn main() {}
