use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
enum Block {
    #[module(frozen)]
    Scale(Scale),
    None,
}

fn main() {}
