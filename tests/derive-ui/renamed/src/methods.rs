//! A model whose methods, and a blanket trait, have the names of all functions that are generated or called.
#![expect(clippy::wrong_self_convention, reason = "the names are those of generated code")]

use ::dragonfly::Module;
use ::dragonfly::prelude::Linear;

/// Generated code builds and applies it, and must not call these methods.
#[derive(Module, ::core::fmt::Debug)]
#[module(crate = "::dragonfly", sequential, residual = around, config(width: usize))]
pub struct Busy<T> {
    #[module(init = Linear::new(width, width), then = relu)]
    layer: Linear,
    #[module(init = |device, seed| ::dragonfly::Init::init(Linear::new(width, width), device, seed))]
    around: Linear,
    #[module(skip, init = ::core::marker::PhantomData)]
    marker: ::core::marker::PhantomData<T>,
}

macro_rules! methods {
    ($($name:ident)+) => {
        impl<T> Busy<T> {
            $(
                /// Does something else.
                #[must_use]
                pub fn $name(&self) -> u8 {
                    let _ = self;
                    0
                }
            )+
        }

        /// In scope for all types.
        pub trait Everything {
            $(
                /// Does something else.
                fn $name(&self) -> u8 {
                    1
                }
            )+
        }

        impl<T: ?::core::marker::Sized> Everything for T {}
    };
}

methods!(
    visit visit_mut forward shortcut from_seed from_config fmt field index frozen relu add apply content skipped
    init_field init_by
);

#[cfg(test)]
mod tests {
    use super::{Busy, BusyConfig};
    use ::dragonfly::prelude::{Device, Layer, Tape, Tensor};

    #[::core::prelude::v1::test]
    fn nothing_is_called_by_mistake() -> ::dragonfly::Result<()> {
        let device = Device::cpu();
        let busy = Busy::<u8>::init(&device, 42, BusyConfig { width: 2 })?;
        let x = Tape::new(&device).input(&Tensor::zeros(&device, [1, 2])?);
        ::core::assert_eq!(Layer::forward(&busy, &x).to_vec()?.len(), 2);
        ::core::assert_eq!(busy.forward() + busy.visit() + busy.content(), 0);
        ::core::result::Result::Ok(())
    }
}
