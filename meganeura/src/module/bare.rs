//! A bare tensor in a module: its role is not said, which only types can tell, so a trait says it.

use super::{At, Module, Slot, SlotMut};
use crate::Tensor;

/// What a bare tensor would have to be to stand in a module. It is not.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "a bare `Tensor` is not a module: is it a parameter, a buffer or neither?",
    label = "its role is not said",
    note = "trained by optimizers: hold a `Param`",
    note = "saved and moved with the model, but not trained: hold a `Buffer`",
    note = "no part of the model: put `#[module(skip)]` on the field"
)]
pub trait Role {}

/// In place of the tensor, whose own type would give the message of [`Module`].
#[doc(hidden)]
#[derive(Debug)]
pub struct Bare;

/// Never holds: it is here for the message of the bound. Without the lifetime, the compiler would refuse the impl.
#[doc(hidden)]
impl Module for Tensor
where
    for<'never> Bare: Role,
{
    fn visit<'a>(&'a self, _: At<'_>, _: &mut dyn FnMut(At<'_>, Slot<'a>)) {}

    fn visit_mut<'a>(&'a mut self, _: At<'_>, _: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {}
}
