use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

type Weight = Param;

#[derive(Module)]
struct Net {
    a: Scale,
    #[module(skip)]
    weight: Weight,
    #[module(skip)]
    bias: Option<Param>,
    #[module(skip)]
    mean: Buffer,
}

fn main() {}
