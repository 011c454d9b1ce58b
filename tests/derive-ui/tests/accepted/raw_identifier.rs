//! `r#type` is saved as `type`.
#![expect(non_camel_case_types, reason = "the names are keywords, to be unlike all others")]

use meganeura::prelude::*;
use meganeura_derive_ui::{Scale, apply, device, leaves};

#[derive(Module)]
#[module(sequential)]
struct r#struct {
    #[module(init = Scale::new(2.0))]
    r#type: Scale,
    #[module(init = Scale::new(3.0), rename = "loop")]
    r#while: Scale,
}

#[derive(Module)]
enum r#enum {
    r#for { r#in: Scale },
}

#[test]
fn paths_have_no_prefix() -> Result<()> {
    let mut net = r#struct::init(&device(), 42)?;
    assert_eq!(leaves(&mut net), ["type.weight", "loop.weight"]);
    assert_eq!(apply(&net, 1.0)?, 6.0);
    assert_eq!(net.to_string(), "struct (2 parameters)");
    assert_eq!(leaves(&mut r#enum::r#for { r#in: net.r#type }), ["in.weight"]);
    Ok(())
}
