use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

type Table = Tensor;

#[derive(Module)]
struct Net {
    weight: Tensor,
    tables: Vec<Option<Table>>,
    a: Scale,
}

fn main() {}
