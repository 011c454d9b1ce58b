//! Containers of modules are modules. Fields are told apart by traits, so an alias is as good as a name.

use std::collections::{BTreeMap, HashMap, VecDeque};

use meganeura::prelude::*;
use meganeura::{Buffer, Param, Tensor};
use meganeura_derive_ui::{Scale, device, leaves};

type Weight = Param;

#[derive(Module)]
struct Net {
    weight: Weight,
    table: Option<Buffer>,
    vec: Vec<Scale>,
    deque: VecDeque<Scale>,
    array: [Scale; 1],
    tuple: (Scale, Option<Scale>),
    boxed: Box<dyn Layer>,
    sorted: BTreeMap<String, Scale>,
    hashed: HashMap<String, Scale>,
    none: Option<Scale>,
}

#[test]
fn containers_are_modules() -> meganeura::Result<()> {
    let device = device();
    let zero = || Tensor::zeros(&device, [1]);
    let scale = || Scale::new(1.0).init(&device, Seed::new(0)).unwrap();
    let map = |keys: &[&str]| keys.iter().map(|&key| (key.to_owned(), scale())).collect::<Vec<_>>();
    let mut net = Net {
        weight: Param::new(zero()?),
        table: Some(Buffer::new(zero()?)),
        vec: vec![scale(), scale()],
        deque: VecDeque::from([scale()]),
        array: [scale()],
        tuple: (scale(), Some(scale())),
        boxed: Box::new(scale()),
        sorted: map(&["b", "a"]).into_iter().collect(),
        hashed: map(&["d", "c"]).into_iter().collect(),
        none: None,
    };
    assert_eq!(
        leaves(&mut net),
        [
            "weight",
            "table (buffer)",
            "vec.0.weight",
            "vec.1.weight",
            "deque.0.weight",
            "array.0.weight",
            "tuple.0.weight",
            "tuple.1.weight",
            "boxed.weight",
            "sorted.a.weight",
            "sorted.b.weight",
            "hashed.c.weight",
            "hashed.d.weight",
        ]
    );
    Ok(())
}
