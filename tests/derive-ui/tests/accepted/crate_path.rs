//! `crate = "…"`: the framework under another name.

mod frameworks {
    pub mod dragonfly {
        #[doc(hidden)]
        pub use meganeura::__private;
        pub use meganeura::prelude;
    }
}

use frameworks::dragonfly::prelude::*;
use meganeura_derive_ui::{Scale, apply, device};

#[derive(Module)]
#[module(crate = "crate::crate_path::frameworks::dragonfly", sequential)]
struct Net {
    #[module(init = Scale::new(2.0), then = [relu, |x| x * 1.0])]
    scale: Scale,
}

#[test]
fn the_framework_may_be_elsewhere() -> Result<()> {
    assert_eq!(apply(&Net::init(&device(), 42)?, 1.0)?, 2.0);
    Ok(())
}
