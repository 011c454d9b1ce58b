use meganeura::prelude::*;

#[derive(Module)]
#[module(sequential, input = [_, 4])]
struct Net(Linear);

#[derive(Module)]
#[module(input = [_, 4])]
enum Either {
    One(Linear),
    Other(Relu),
}

#[derive(Module)]
#[module(sequential, input = [_, 4])]
struct Generic<L> {
    #[module(init)]
    layer: L,
}

#[derive(Module)]
#[module(input = [_, 4])]
struct Empty;

fn main() {}
