use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
#[module(config(factor: f32, width: usize))]
struct Net {
    #[module(init = Scale::new(factor).wide(width))]
    a: Scale,
}

fn _used(device: &Device) -> meganeura::Result<Net> {
    Net::init(device, 42, NetConfig { factor: 1.0 })
}

fn main() {}
