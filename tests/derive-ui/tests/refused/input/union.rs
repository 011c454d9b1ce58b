use meganeura::prelude::*;

#[derive(Module)]
union Either {
    a: u32,
    b: f32,
}

fn main() {}
