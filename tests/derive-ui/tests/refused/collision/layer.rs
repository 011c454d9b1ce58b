use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
#[module(sequential)]
struct Net {
    a: Scale,
}

impl Layer for Net {
    fn forward(&self, x: &Var) -> Var {
        x.clone()
    }
}

fn main() {}
