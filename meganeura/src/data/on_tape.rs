//! The tensors of a batch, and the values that stand for them on a tape.

use crate::{Tensor, Var};

/// The inputs or targets of a batch that a step can record: a [`Tensor`], a tuple or an array of these, or `()`.
///
/// A [`Trainer`](crate::train::Trainer) passes [`Vars`](Self::Vars) to its functions: a [`Var`] for every tensor, in
/// the same tuples and arrays.
pub trait OnTape: Send + 'static {
    /// The same with a [`Var`] in place of each [`Tensor`].
    type Vars;

    /// Appends the tensors, in order.
    fn push_onto(self, tensors: &mut Vec<Tensor>);

    /// Takes as many values as there are tensors, in order.
    fn record(vars: &mut dyn Iterator<Item = Var>) -> Self::Vars;
}

impl OnTape for Tensor {
    type Vars = Var;

    fn push_onto(self, tensors: &mut Vec<Tensor>) {
        tensors.push(self);
    }

    fn record(vars: &mut dyn Iterator<Item = Var>) -> Var {
        vars.next().expect("a value for each tensor")
    }
}

impl<T: OnTape, const N: usize> OnTape for [T; N] {
    type Vars = [T::Vars; N];

    fn push_onto(self, tensors: &mut Vec<Tensor>) {
        self.into_iter().for_each(|field| field.push_onto(tensors));
    }

    fn record(vars: &mut dyn Iterator<Item = Var>) -> Self::Vars {
        std::array::from_fn(|_| T::record(vars))
    }
}

macro_rules! tuples {
    ($(($($name:ident $place:tt),*))+) => {$(
        impl<$($name: OnTape),*> OnTape for ($($name,)*) {
            type Vars = ($($name::Vars,)*);

            fn push_onto(self, tensors: &mut Vec<Tensor>) {
                $(self.$place.push_onto(tensors);)*
            }

            fn record(vars: &mut dyn Iterator<Item = Var>) -> Self::Vars {
                ($($name::record(vars),)*)
            }
        }
    )+};
}

tuples! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
}

/// For examples without targets.
impl OnTape for () {
    type Vars = ();

    fn push_onto(self, _: &mut Vec<Tensor>) {}

    fn record(_: &mut dyn Iterator<Item = Var>) {}
}
