//! Layers: modules that map one value to one value.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use super::enter::{enter, enter_element, enter_pointee};
use super::flow::FlowChain;
use super::{Flow, Module, fmt_module};
use crate::Var;

/// A module that maps one value to one value, so that it can be chained.
///
/// A `Vec`, `VecDeque`, array or tuple of layers is a layer: its elements are applied in order, and an empty `Vec`
/// passes its input on. `Box<dyn Layer>` and `Arc<dyn Layer>` hold any layer, so a `Vec` of them is a chain assembled
/// at run time. `Option` is deliberately not a layer: whether a missing layer means "pass on" or "leave out the whole
/// branch" is up to the model.
///
/// `#[module(sequential)]` generates `forward` for a struct whose fields are applied in order; `residual = shortcut`
/// places an `Option` beside them. A module with another signature, such as two inputs, just has a method of its own:
/// only chaining requires this trait.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a layer: it cannot be applied in a chain",
    label = "not a layer",
    note = "a module of your own becomes a layer by `impl Layer for {Self}`",
    note = "to do anything but apply the fields in order, remove `#[module(sequential)]` and write `forward` by hand"
)]
pub trait Layer: Module {
    /// Records this layer on the tape of `x` and returns its output.
    #[track_caller]
    fn forward(&self, x: &Var) -> Var;

    /// [`forward`](Self::forward), with its intermediate values recomputed in the backward pass instead of kept: see
    /// [`Tape::recompute`](crate::Tape::recompute).
    ///
    /// Each layer of a `Vec`, `VecDeque` or array is recomputed separately, so the values between layers are kept. A
    /// tuple is one region.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// # fn main() -> meganeura::Result<()> {
    /// let device = Device::cpu();
    /// let block = (Linear::new(4, 16), Gelu, Linear::new(16, 4)).init(&device, Seed::new(1))?;
    /// let tape = Tape::new(&device);
    /// let x = tape.input(&Tensor::full(&device, [2, 4], 1.0)?);
    /// let y = block.recompute(&x);
    /// # tape.backward(&y.square().sum())?.get(&block.0.weight).unwrap().to_vec()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    #[track_caller]
    fn recompute(&self, x: &Var) -> Var {
        let _open = x.tape().open_region();
        self.forward(x)
    }

    /// The extents that the layer takes and gives, as far as its settings determine them. The `init` of a sequential
    /// struct compares those of neighbours. By default nothing is known.
    fn flow(&self) -> Flow {
        Flow::unknown()
    }
}

/// The contents are unknown, so this shows their size: `dyn Layer (20 parameters)`.
impl fmt::Debug for dyn Layer + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_module(self, f)
    }
}

macro_rules! sequence {
    ($sequence:ty $(, $N:ident)?) => {
        impl<L: Layer $(, const $N: usize)?> Layer for $sequence {
            fn forward(&self, x: &Var) -> Var {
                let _entered = enter(self, x);
                chain(self, x, false)
            }

            fn recompute(&self, x: &Var) -> Var {
                let _entered = enter(self, x);
                chain(self, x, true)
            }

            fn flow(&self) -> Flow {
                flow_of_chain(self)
            }
        }
    };
}

sequence!(Vec<L>);
sequence!(VecDeque<L>);
sequence!([L; N], N);

macro_rules! pointer {
    ($pointer:ty) => {
        impl<L: Layer + ?Sized> Layer for $pointer {
            fn forward(&self, x: &Var) -> Var {
                let _entered = enter_pointee(self, &**self, x);
                (**self).forward(x)
            }

            fn recompute(&self, x: &Var) -> Var {
                let _entered = enter_pointee(self, &**self, x);
                (**self).recompute(x)
            }

            fn flow(&self) -> Flow {
                (**self).flow()
            }
        }
    };
}

pointer!(Arc<L>);
pointer!(Box<L>);

// A loop, not a fold: a closure would hide the caller's line from the layers.
#[track_caller]
fn chain<'a, L: Layer + 'a>(layers: impl IntoIterator<Item = &'a L>, x: &Var, recomputed: bool) -> Var {
    let mut x = x.clone();
    for (index, layer) in layers.into_iter().enumerate() {
        let _entered = enter_element(layer, index, &x);
        x = if recomputed { layer.recompute(&x) } else { layer.forward(&x) };
    }
    x
}

fn flow_of_chain<'a, L: Layer + 'a>(layers: impl IntoIterator<Item = &'a L>) -> Flow {
    let then = |chain: FlowChain, (index, layer): (usize, &L)| chain.then(&index.to_string(), &layer.flow());
    layers.into_iter().enumerate().fold(FlowChain::new(), then).finish()
}

macro_rules! tuple {
    ($A:ident $a:tt $(, $L:ident $i:tt)*) => {
        impl<$A: Layer $(, $L: Layer)*> Layer for ($A, $($L,)*) {
            fn forward(&self, x: &Var) -> Var {
                let _entered = enter(self, x);
                let x = {
                    let _entered = enter_element(&self.$a, $a, x);
                    self.$a.forward(x)
                };
                $(let x = {
                    let _entered = enter_element(&self.$i, $i, &x);
                    self.$i.forward(&x)
                };)*
                x
            }

            fn flow(&self) -> Flow {
                let chain = FlowChain::new().then(stringify!($a), &self.$a.flow());
                $(let chain = chain.then(stringify!($i), &self.$i.flow());)*
                chain.finish()
            }
        }
    };
}

tuple!(A 0);
tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);
tuple!(A 0, B 1, C 2, D 3, E 4);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11);
