use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
#[module(residual, then = relu)]
struct NotSequential {
    a: Scale,
}

#[derive(Module)]
#[module(sequential, residual = shortcutt)]
struct Misspelt {
    a: Scale,
    shortcut: Option<Scale>,
}

#[derive(Module)]
#[module(sequential, residual = 7)]
struct Missing(Scale, Vec<Scale>);

#[derive(Module)]
#[module(sequential, residual = b)]
struct Skipped {
    a: Scale,
    #[module(skip)]
    b: usize,
}

#[derive(Module)]
#[module(sequential, residual = b)]
struct Steps {
    a: Scale,
    #[module(before = relu, then = relu, recompute)]
    b: Option<Scale>,
}

#[derive(Module)]
#[module(sequential, residual = a)]
struct Alone {
    a: Scale,
}

#[derive(Module)]
#[module(sequential, residual = "a")]
struct Quoted {
    a: Scale,
    b: Scale,
}

#[derive(Module)]
#[module(residual)]
enum Either {
    A(Scale),
}

fn main() {}
