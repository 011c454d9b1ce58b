//! Containers of modules are modules. Traits distinguish fields, so an alias works like the type.

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

type Deep = Vec<Option<Box<[(BTreeMap<String, VecDeque<Scale>>, Option<Box<dyn Layer>>); 1]>>>;

#[derive(Module)]
struct Nested {
    deep: HashMap<String, Deep>,
}

#[test]
fn containers_hold_containers() -> Result<()> {
    let scale = || Scale::new(1.0).init(&device(), Seed::new(0));
    let map = BTreeMap::from([("b".to_owned(), VecDeque::from([scale()?, scale()?]))]);
    let deep: Deep = vec![None, Some(Box::new([(map, Some(Box::new(scale()?)))]))];
    let mut nested = Nested { deep: HashMap::from([("a".to_owned(), deep)]) };
    assert_eq!(leaves(&mut nested), ["deep.a.1.0.0.b.0.weight", "deep.a.1.0.0.b.1.weight", "deep.a.1.0.1.weight"]);
    Ok(())
}

#[test]
fn containers_are_modules() -> Result<()> {
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
