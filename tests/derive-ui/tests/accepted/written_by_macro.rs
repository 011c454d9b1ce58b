//! Structs written by a macro, whose fragments come in invisible groups.

use meganeura::prelude::*;
use meganeura_derive_ui::{Scale, apply, device, leaves};

macro_rules! net {
    ($Net:ident { $($field:ident: $Field:ty = $builder:expr, $key:literal, $then:expr;)* }) => {
        #[derive(Module)]
        #[module(sequential)]
        struct $Net {
            $(#[module(init = $builder, rename = $key, then = $then, before = leaky_relu(self.slope))] $field: $Field,)*
            #[module(skip, init = 1.0)]
            slope: f64,
        }
    };
}

net!(Net {
    a: Scale = Scale::new(2.0), "first", relu;
    b: [Scale; 1] = [Scale::new(3.0)], "second", [square, |x| x.square()];
});

#[test]
fn fragments_are_understood() -> Result<()> {
    let mut net = Net::init(&device(), 42)?;
    assert_eq!(leaves(&mut net), ["first.weight", "second.0.weight"]);
    assert_eq!(apply(&net, 1.0)?, 1296.0);
    Ok(())
}
