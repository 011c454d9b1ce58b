use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
struct Net {
    a: Scale,
}

fn _used(device: &Device) -> meganeura::Result<Net> {
    Net::init(device, 42)
}

fn main() {}
