use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

// Mistakes in the attributes of a struct, and mistakes that only its types show.
#[derive(Module)]
#[module(sequentail)]
struct Net<'a> {
    #[module(rename = "")]
    a: Scale,
    b: &'a Scale,
    #[module(skipp)]
    c: usize,
    d: usize,
    e: Vec<Tensor>,
    #[module(skip)]
    f: Param,
}

fn _used(net: &Net<'_>) -> usize {
    net.parameter_count()
}

fn main() {}
