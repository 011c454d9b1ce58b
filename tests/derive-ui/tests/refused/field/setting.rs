use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Mutex;

use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

type S = Scale;

// Types that are not modules, and that a derive cannot make modules.
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
