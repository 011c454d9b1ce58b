//! Fields, constants and generics may share any name with generated code. The user's expressions see the user's items.
#![expect(non_upper_case_globals, non_camel_case_types, reason = "the names are those of the generated code")]

use meganeura::prelude::*;
use meganeura_derive_ui::{Scale, apply, device, leaves};

const at: f32 = 2.0;
const f: f32 = 3.0;
const x: f64 = 5.0;

#[derive(Module)]
#[module(sequential)]
struct Net<At, f>
where
    At: Default,
    f: Default,
{
    #[module(init = Scale::new(at))]
    at: Scale,
    #[module(init = Scale::new(f))]
    f: Scale,
    #[module(init = Scale::new(1.0), before = leaky_relu(x))]
    x: Scale,
    #[module(init = Scale::new(1.0))]
    device: Scale,
    #[module(init = Scale::new(1.0))]
    seed: Scale,
    #[module(init = Scale::new(1.0))]
    visit: Scale,
    #[module(init = Scale::new(1.0))]
    visit_mut: Scale,
    #[module(init = Scale::new(1.0))]
    forward: Scale,
    #[module(init = Scale::new(1.0))]
    init: Scale,
    #[module(skip, init = Default::default())]
    _generic: (At, f),
}

#[derive(Module)]
enum Choice {
    At { at: Scale, f: Scale, field_at: Scale },
    F(Scale),
}

#[test]
fn no_name_collides() -> Result<()> {
    let mut net = Net::<u8, u8>::init(&device(), 42)?;
    assert_eq!(apply(&net, -1.0)?, -30.0);
    let paths = ["at", "f", "x", "device", "seed", "visit", "visit_mut", "forward", "init"];
    assert_eq!(leaves(&mut net), paths.map(|path| format!("{path}.weight")));

    let mut choices = [Choice::At { at: net.at, f: net.f, field_at: net.x }, Choice::F(net.seed)];
    assert_eq!(leaves(&mut choices), ["0.at.weight", "0.f.weight", "0.field_at.weight", "1.0.weight"]);
    Ok(())
}
