//! A struct without fields is a module without parameters, and its own constructor.

use meganeura::Var;
use meganeura::prelude::*;
use meganeura_derive_ui::{Scale, apply, device, leaves};

#[derive(Module)]
struct Negate;

impl Negate {
    /// The derive generates no second `init`.
    fn init() -> Self {
        Self
    }
}

impl Layer for Negate {
    fn forward(&self, x: &Var) -> Var {
        -x
    }
}

#[derive(Module)]
#[module(sequential)]
struct Net {
    #[module(init = Scale::new(2.0))]
    scale: Scale,
    #[module(init)]
    negate: Negate,
}

#[test]
fn nothing_is_visited() -> Result<()> {
    let mut net = Net::init(&device(), 42)?;
    assert_eq!(leaves(&mut net), ["scale.weight"]);
    assert_eq!(Negate::init().to_string(), "Negate (0 parameters)");
    assert_eq!(apply(&net, 3.0)?, -6.0);
    Ok(())
}
