use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
#[module(config(factor: f32))]
struct NotBuilt {
    a: Scale,
}

#[derive(Module)]
#[module(config(factor: f32))]
enum Either {
    A(Scale),
}

#[derive(Module)]
#[module(named_variants)]
struct NoVariants {
    a: Scale,
}

#[derive(Module)]
#[module(no_init)]
struct NoInit {
    a: Scale,
}

fn main() {}
