use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
struct Net {
    a: Scale,
    #[module(rename = "a")]
    b: Scale,
}

#[derive(Module)]
struct Tuple(#[module(rename = "1")] Scale, Scale);

#[derive(Module)]
enum Block {
    One { a: Scale },
    Two {
        #[module(rename = "a")]
        b: Scale,
        #[module(rename = "a")]
        c: Scale,
    },
}

fn main() {}
