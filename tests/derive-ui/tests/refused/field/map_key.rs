use std::collections::{BTreeMap, HashMap};

use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
struct Net {
    numbered: BTreeMap<usize, Scale>,
    named: HashMap<&'static str, Scale>,
}

fn main() {}
