//! The fields of a tuple struct have their numbers as path segments.

use meganeura::prelude::*;
use meganeura_derive_ui::{Scale, apply, device, leaves};

#[derive(Module)]
#[module(sequential)]
struct Pair(
    #[module(init = Scale::new(2.0))] Scale,
    #[module(skip, init = 3)] usize,
    #[module(init = Scale::new(5.0), rename = "last")] Scale,
);

#[test]
fn fields_are_visited_by_number() -> Result<()> {
    let mut pair = Pair::init(&device(), 42)?;
    assert_eq!(pair.1, 3);
    assert_eq!(leaves(&mut pair), ["0.weight", "last.weight"]);
    assert_eq!(apply(&pair, 1.0)?, 10.0);
    Ok(())
}
