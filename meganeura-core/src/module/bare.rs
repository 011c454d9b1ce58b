//! Bare tensors in modules, whose role is unknown. Only types can detect one, so a trait reports it.

use super::{At, Module, Slot, SlotMut};
use crate::Tensor;

/// The trait that a bare tensor in a module would need. A tensor does not have it.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "a bare `Tensor` is not a module: is it a parameter, a buffer or neither?",
    label = "its role is unknown",
    note = "if optimizers train it, make it a `Param`",
    note = "if it is saved and moved with the model, but not trained, make it a `Buffer`",
    note = "if it is no part of the model, put `#[module(skip)]` on the field"
)]
pub trait Role {}

/// Stands in for the tensor, whose own type would give the message of [`Module`].
#[doc(hidden)]
#[derive(Debug)]
pub struct Bare;

/// Never holds: the bound exists for its message. Without the lifetime, the compiler would refuse the impl.
#[doc(hidden)]
impl Module for Tensor
where
    for<'never> Bare: Role,
{
    fn visit<'a>(&'a self, _: At<'_>, _: &mut dyn FnMut(At<'_>, Slot<'a>)) {}

    fn visit_mut<'a>(&'a mut self, _: At<'_>, _: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {}
}
