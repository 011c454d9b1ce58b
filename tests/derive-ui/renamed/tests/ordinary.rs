//! The same in a crate where nothing is shadowed: giving the crate's other name is enough.
#![forbid(unsafe_code, missing_docs, unused_variables, unused_imports, unused_mut, non_snake_case, unreachable_code)]

use dragonfly::prelude::*;

#[derive(Module)]
#[module(crate = "dragonfly", sequential)]
struct Net(#[module(init = Linear::new(3, 2))] Linear);

#[test]
fn the_name_alone_is_enough() -> Result<()> {
    assert_eq!(Net::init(&Device::cpu(), 42)?.parameter_count(), 8);
    Ok(())
}
