//! `{}` is one line and `{:#}` the tree; `no_display` leaves `Display` to the user.

use std::fmt;

use meganeura::prelude::*;
use meganeura_derive_ui::{Scale, Shift, device};

#[derive(Module)]
struct Net<L> {
    #[module(init = (Scale::new(1.0).wide(1000), Shift::new(1.0)))]
    pair: (Scale, Shift),
    #[module(init, frozen)]
    last: L,
}

#[derive(Module)]
#[module(no_display)]
struct Own {
    #[module(init = Scale::new(1.0))]
    scale: Scale,
}

impl fmt::Display for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("my own")
    }
}

#[test]
fn models_are_printed() -> Result<()> {
    let net = Net::<Own>::init(&device(), 42)?;
    assert_eq!(net.to_string(), "Net<Own> (1,001 parameters, 1 frozen)");
    let tree = "\
Net<Own> (1,001 parameters, 1 frozen, 4,008 B)
├─ pair                     1,000  4,004 B
│  ├─ 0                     1,000  4,000 B
│  │  └─ weight  f32[1000]  1,000  4,000 B
│  └─ 1                                4 B
│     └─ offset  f32[1]                4 B  buffer
└─ last                         1      4 B
   └─ scale                     1      4 B
      └─ weight  f32[1]         1      4 B  frozen";
    assert_eq!(format!("{net:#}"), tree);
    assert_eq!(net.summary().to_string(), tree);
    assert_eq!(net.last.to_string(), "my own");
    Ok(())
}
