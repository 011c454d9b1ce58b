use meganeura::prelude::*;

#[derive(Module)]
struct Net {
    #[module(skip, init)]
    a: usize,
}

fn main() {}
