use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Mutex;

use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

type S = Scale;

// What is no module and needs no derive.
#[derive(Module)]
struct Net {
    slope: f32,
    sizes: (Scale, usize),
    shared: Rc<Scale>,
    cell: Option<RefCell<Scale>>,
    locked: Mutex<Scale>,
    long: (S, S, S, S, S, S, S, S, S, S, S, S, S),
}

fn main() {}
