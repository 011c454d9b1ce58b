//! Softmax and its logarithm as layers, for chains.

use meganeura_derive::Module;

use crate::module::{Init, Layer, Seed};
use crate::{Device, Result, Var};

/// A struct, its doc, and what it records along its axis.
macro_rules! along {
    ($($(#[$doc:meta])* $Name:ident $method:ident;)+) => {
        $(
            $(#[$doc])*
            ///
            /// Shapes: any with this axis, kept.
            #[derive(Module, Debug, Clone, Copy, PartialEq, Eq)]
            pub struct $Name {
                /// The axis: 1 for classes of pixels, -1 for the last.
                #[module(skip)]
                pub axis: isize,
            }

            impl $Name {
                /// Along this axis; -1 is the last.
                #[must_use]
                pub const fn new(axis: isize) -> Self {
                    Self { axis }
                }
            }

            impl Init for $Name {
                type Output = Self;

                fn build(self, _: &Device, _: Seed) -> Result<Self> {
                    Ok(self)
                }
            }

            impl Layer for $Name {
                fn forward(&self, x: &Var) -> Var {
                    let _entered = crate::module::enter(self, x);
                    x.$method(self.axis)
                }

                fn flow(&self) -> crate::module::Flow {
                    crate::module::Flow::kept()
                }
            }
        )+
    };
}

along! {
    /// `eˣ / Σ eˣ` along an axis. A model that is trained with [`cross_entropy`](Var::cross_entropy) ends without it:
    /// the loss takes scores.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let x = Tape::new(&device).input(&Tensor::zeros(&device, [2, 4])?);
    /// assert_eq!(Softmax::new(-1).forward(&x).to_vec()?, [0.25; 8]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    Softmax softmax;
    /// `x − ln Σ eˣ` along an axis, as [`nll`](Var::nll) takes it.
    LogSoftmax log_softmax;
}
