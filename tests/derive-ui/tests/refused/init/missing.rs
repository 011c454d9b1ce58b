use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
struct Net {
    #[module(init = Scale::new(1.0))]
    a: Scale,
    b: Scale,
    #[module(frozen)]
    c: Scale,
    #[module(skip)]
    d: usize,
}

#[derive(Module)]
struct Tuple(#[module(init = Scale::new(1.0))] Scale, Scale);

// The mistake is the only error: the rest of the program compiles.
fn _used(device: &Device) -> meganeura::Result<Net> {
    Net::init(device, 42)
}

fn main() {}
