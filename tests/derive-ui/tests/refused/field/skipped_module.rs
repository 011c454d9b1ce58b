use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use meganeura::prelude::*;
use meganeura_derive_ui::Scale;

#[derive(Module)]
struct Block {
    a: Scale,
}

#[derive(Module)]
struct Net {
    #[module(skip)]
    layer: Scale,
    #[module(skip)]
    blocks: Vec<Option<Block>>,
    #[module(skip)]
    boxed: Box<dyn Layer>,
    #[module(skip)]
    shared: Rc<RefCell<Scale>>,
    #[module(skip)]
    locked: Option<(usize, Arc<Mutex<Block>>)>,
    #[module(skip)]
    numbered: HashMap<u32, Scale>,
}

fn main() {}
