use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
enum Block {
    #[module(frozen)]
    A(Scale),
    #[module(renamed = "b")]
    B(Scale),
    #[module(sequential)]
    C(Scale),
    #[module(learning_rate = 0.1)]
    D(Scale),
    #[module()]
    E(Scale),
    #[module(rename = "f.f")]
    F(Scale),
    #[module(rename = "")]
    G(Scale),
    #[module(rename = "h", rename = "i")]
    H(Scale),
    #[module(rename = "nothing")]
    Nothing,
}

fn main() {}
