use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

mod activation {
    pub fn double(x: f32) -> f32 {
        2.0 * x
    }
}

#[derive(Module)]
#[module(sequential)]
struct Net {
    #[module(then = activation::double)]
    a: Scale,
    #[module(then = activation::swish)]
    b: Scale,
    #[module(then = |x| 2.0)]
    c: Scale,
    #[module(then = activation::double(1.0), before = Linear::new(1, 1).bias(false))]
    d: Scale,
}

fn main() {}
