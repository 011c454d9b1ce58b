//! Layers: modules that turn one value into one value.

use std::panic::Location;

use super::Module;
use crate::{Error, ErrorKind, Var};

/// A module that turns one value into one value, so that it can be chained.
///
/// A `Vec`, array or tuple of layers is a layer: its elements are applied in order, and an empty `Vec` passes its input on.
/// `Box<dyn Layer>` holds any. `Option` is deliberately not a layer: whether a missing layer means "pass on" or "leave out
/// the whole branch" is the model's to say; as a shortcut around others it says so, by `#[module(residual = shortcut)]`.
///
/// `#[module(sequential)]` generates `forward` for a struct whose fields are applied in order. A module with another
/// signature, two inputs say, just has a method of its own: nothing asks for this trait but chaining.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a layer: it cannot be applied in a chain",
    label = "not a layer",
    note = "a module of your own becomes a layer by `impl Layer for {Self}`",
    note = "to do anything but apply the fields in order, remove `#[module(sequential)]` and write `forward` by hand"
)]
pub trait Layer: Module {
    /// Records this layer on the tape of `x` and returns what comes out.
    #[track_caller]
    fn forward(&self, x: &Var) -> Var;
}

impl<L: Layer> Layer for Vec<L> {
    fn forward(&self, x: &Var) -> Var {
        chain(self, x)
    }
}

impl<L: Layer, const N: usize> Layer for [L; N] {
    fn forward(&self, x: &Var) -> Var {
        chain(self, x)
    }
}

impl<L: Layer + ?Sized> Layer for Box<L> {
    fn forward(&self, x: &Var) -> Var {
        (**self).forward(x)
    }
}

/// What the input of a residual struct takes beside the others: a layer, or nothing where it is passed on as it is.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no shortcut: it is neither a layer nor an `Option` of one",
    label = "not a shortcut",
    note = "the field that `residual = …` names is applied to the input, whose sum with the rest is the output"
)]
pub trait Shortcut: Module {
    #[track_caller]
    fn shortcut(&self, x: &Var) -> Var;
}

impl<L: Layer> Shortcut for L {
    fn shortcut(&self, x: &Var) -> Var {
        self.forward(x)
    }
}

impl<L: Layer> Shortcut for Option<L> {
    fn shortcut(&self, x: &Var) -> Var {
        match self {
            Some(layer) => layer.forward(x),
            None => x.clone(),
        }
    }
}

// A loop, not a fold: a closure would hide the caller's line from the layers.
#[track_caller]
fn chain<L: Layer>(layers: &[L], x: &Var) -> Var {
    let mut x = x.clone();
    for layer in layers {
        x = layer.forward(&x);
    }
    x
}

macro_rules! tuple {
    ($A:ident $a:tt $(, $L:ident $i:tt)*) => {
        impl<$A: Layer $(, $L: Layer)*> Layer for ($A, $($L,)*) {
            fn forward(&self, x: &Var) -> Var {
                let x = self.$a.forward(x);
                $(let x = self.$i.forward(&x);)*
                x
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

/// The sum of a residual struct. One that broadcasts is a shortcut that was forgotten.
#[doc(hidden)]
#[track_caller]
pub fn add_residual(x: &Var, y: &Var) -> Var {
    if x.shape() == y.shape() {
        return x + y;
    }
    let message = "the input and what the fields make of it differ in shape; to bring the input to the shape of the \
                   other, put a layer beside the fields: `#[module(sequential, residual = shortcut)]`";
    let error = Error::new(ErrorKind::Shape, message).in_op("residual").at(Location::caller());
    y.fail(error.operand(x.ty(), x.path()).operand(y.ty(), y.path()))
}

/// What a call in `then` or `before` must return.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a layer, to be applied",
    label = "not a layer",
    note = "a call stands for the layer that it returns: `MaxPool2d::new(2)`",
    note = "a function with arguments of its own goes into a closure: `|x| path::to(x, 0.1)`",
    note = "a layer with parameters is a field of its own"
)]
pub trait Applied: Layer {}

impl<L: Layer> Applied for L {}

/// Applies the layer of a `then` or `before`.
#[doc(hidden)]
#[track_caller]
pub fn apply_layer<L: Applied>(layer: &L, x: &Var) -> Var {
    layer.forward(x)
}

/// Applies the closure of a `then` or `before`. Through a function, so that the closure's parameter has a type to be
/// inferred from.
#[doc(hidden)]
pub fn apply(f: impl FnOnce(&Var) -> Var, x: &Var) -> Var {
    f(x)
}
