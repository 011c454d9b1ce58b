use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
struct Net {
    a: Scale,
    width: usize,
    names: Vec<String>,
}

#[derive(Module)]
enum Block {
    Width(usize),
}

fn main() {}
