//! A field's name is its segment of the path; fields are visited in declaration order.

use meganeura::prelude::*;
use meganeura_derive_ui::{Scale, Shift, device, leaves};

#[derive(Module)]
struct Block {
    scale: Scale,
    shift: Shift,
}

#[derive(Module)]
struct Net {
    stem: Block,
    head: Scale,
}

#[derive(Module)]
struct Empty {}

#[test]
fn fields_are_visited_by_name() -> Result<()> {
    let device = device();
    let block = Block {
        scale: Scale::new(1.0).init(&device, Seed::new(0))?,
        shift: Shift::new(0.0).init(&device, Seed::new(0))?,
    };
    let mut net = Net { stem: block, head: Scale::new(1.0).init(&device, Seed::new(0))? };
    assert_eq!(leaves(&mut net), ["stem.scale.weight", "stem.shift.offset (buffer)", "head.weight"]);
    assert_eq!(leaves(&mut Empty {}), [] as [&str; 0]);
    Ok(())
}
