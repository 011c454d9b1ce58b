use meganeura::prelude::*;
use meganeura_derive_ui::{Scale, Shift};

#[derive(Module)]
struct Net {
    #[module(init = Scale::new(1.0))]
    a: Shift,
}

fn main() {}
