//! A struct may have borrowed fields if they are skipped. The lifetime may have any name.

use std::fmt::Debug;

use meganeura::prelude::*;
use meganeura_derive_ui::{Scale, apply, device, leaves};

#[derive(Module)]
#[module(sequential)]
struct Labelled<'a, 'visit, T: Debug + 'a> {
    scale: Scale,
    #[module(skip)]
    label: &'a str,
    #[module(skip)]
    data: &'visit mut [T],
    layer: Box<dyn Layer + 'a>,
}

#[test]
fn borrowed_fields_are_skipped() -> Result<()> {
    let device = device();
    let scale = || Scale::new(2.0).init(&device, Seed::new(0));
    let label = String::from("label");
    let mut net = Labelled { scale: scale()?, label: &label, data: &mut [0], layer: Box::new(scale()?) };
    assert_eq!(leaves(&mut net), ["scale.weight", "layer.weight"]);
    assert_eq!(apply(&net, 1.0)?, 4.0);
    assert_eq!((net.label, &*net.data), ("label", &[0][..]));
    Ok(())
}
