use meganeura::prelude::*;

#[derive(Module)]
struct Net {
    #[module(skip(params))]
    a: usize,
    #[module(skip())]
    b: usize,
    #[module(skip(parameters, buffers))]
    c: usize,
}

fn main() {}
