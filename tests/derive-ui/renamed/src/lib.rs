//! Models in a crate that imports the framework as `dragonfly`, has no prelude, and redefines every name that generated
//! code could use. Nothing may cause a warning. Half of the test is that it compiles.
#![no_implicit_prelude]
#![deny(warnings, missing_docs, clippy::all, clippy::pedantic)]

mod methods;
mod shadows;

pub use methods::{Busy, BusyConfig, Everything};
pub use shadows::*;

use ::dragonfly::prelude::{Conv2d, GroupNorm, Linear};
use ::dragonfly::{Module, Var};

/// With every option of a struct and its fields.
#[derive(Module, ::core::fmt::Debug)]
#[module(crate = "::dragonfly", sequential, residual = shortcut, then = [relu, |x| x * self.gain], config(
    /// The number of input channels.
    inputs: usize,
    outputs: usize,
))]
pub struct Block {
    #[module(init = Conv2d::new(inputs, outputs, 3).padding(1), before = Var::square, rename = "first")]
    conv: Conv2d,
    #[module(init = |device, seed| ::dragonfly::Init::init(GroupNorm::new(1, outputs), device, seed), then = relu, frozen)]
    norm: GroupNorm,
    #[module(init = (inputs != outputs).then(|| Conv2d::new(inputs, outputs, 1)))]
    shortcut: ::core::option::Option<Conv2d>,
    #[module(skip, init = 0.5)]
    gain: f64,
}

/// A model of parts that are built from the seed alone or from a config.
#[derive(Module, ::core::fmt::Debug)]
#[module(crate = "::dragonfly", sequential, no_display)]
pub struct Net {
    #[module(init = BlockConfig { inputs: 1, outputs: 2 })]
    block: Block,
    #[module(init)]
    head: Head,
}

/// Takes the output of a block.
#[derive(Module, ::core::fmt::Debug)]
#[module(crate = "::dragonfly", sequential)]
pub struct Head(#[module(init = Linear::new(8, 3), before = flatten)] Linear);

/// With every option of an enum and its variants.
#[derive(Module, ::core::fmt::Debug)]
#[module(crate = "::dragonfly", named_variants)]
pub enum Either<T> {
    /// A module.
    #[module(rename = "some")]
    Some(T),
    /// None.
    None,
}

#[cfg(test)]
mod tests {
    use super::{Either, Net};
    use ::dragonfly::prelude::{Device, Layer, ModuleExt, Tape, Tensor};

    #[::core::prelude::v1::test]
    fn models_work_under_another_name() -> ::dragonfly::Result<()> {
        let device = Device::cpu();
        let net = Net::init(&device, 42)?;
        let x = Tape::new(&device).input(&Tensor::zeros(&device, [1, 1, 2, 2])?);
        ::core::assert_eq!(net.forward(&x).to_vec()?.len(), 3);
        let either = [Either::Some(net), Either::None];
        let parameters = either.named_parameters();
        ::core::assert_eq!(parameters[0].0, "0.some.0.block.first.weight");
        ::core::assert_eq!(parameters[6].0, "0.some.0.head.0.weight");
        ::core::assert_eq!(parameters.len(), 8);
        ::core::result::Result::Ok(())
    }
}
