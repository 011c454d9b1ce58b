//! `skip`, `rename` and `frozen`; several options in one attribute, or one in each of several.

use meganeura::prelude::*;
use meganeura_derive_ui::{Scale, Shift, device, leaves};

struct NotAModule;

#[derive(Module)]
struct Net {
    #[module(init = (Scale::new(1.0), Shift::new(1.0)), frozen, rename = "backbone")]
    encoder: (Scale, Shift),
    #[module(frozen)]
    #[module(init = Scale::new(1.0))]
    decoder: Scale,
    #[module(skip, init = NotAModule)]
    _skipped: NotAModule,
    #[module(rename = "_skipped", init = Scale::new(1.0),)]
    head: Scale,
}

#[test]
fn options_are_followed() -> meganeura::Result<()> {
    let mut net = Net::init(&device(), 42)?;
    assert_eq!(
        leaves(&mut net),
        [
            "backbone.0.weight (frozen)",
            "backbone.1.offset (buffer) (frozen)",
            "decoder.weight (frozen)",
            "_skipped.weight",
        ]
    );
    Ok(())
}
