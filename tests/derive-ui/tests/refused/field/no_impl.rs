use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

struct Plain {
    _a: Scale,
}

fn walk(_: impl Module) {}

fn _used(plain: Plain) {
    walk(plain);
}

fn main() {}
