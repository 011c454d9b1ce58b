use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
struct Net<'a> {
    a: &'a Scale,
    b: &'a mut Scale,
    c: *const Scale,
    d: fn(&Scale) -> Scale,
    e: Vec<Option<(Scale, &'a Scale)>>,
    f: [Box<fn()>; 2],
}

fn main() {}
