//! What stands in a module without being one: a bare tensor, whose role is not said, and a parameter that is skipped. Both are
//! mistakes that only types can tell, so traits say them.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;

use super::{At, Module, Slot, SlotMut};
use crate::{Buffer, Param, Tensor};

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

/// A skipped field of this type. An expansion asks it for its content: a method of its own, where there is one, comes
/// before that of [`Content`], which all have.
#[doc(hidden)]
#[derive(Debug)]
pub struct Skipped<T: ?Sized>(PhantomData<T>);

/// The content of a skipped field that is not known to be a mistake.
#[doc(hidden)]
#[derive(Debug)]
pub struct Anything;

/// The content of a skipped field that holds parameters or buffers.
#[doc(hidden)]
#[derive(Debug)]
pub struct Leaves;

#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`skip` on a parameter or buffer",
    label = "neither trained, saved nor moved if it is skipped",
    note = "saved and moved, but not trained: a `Param` with `#[module(frozen)]`, or a `Buffer`",
    note = "no part of the model: a `Tensor` with `#[module(skip)]`"
)]
pub trait MayBeSkipped {}

#[diagnostic::do_not_recommend]
impl MayBeSkipped for Anything {}

/// The method has a name that no trait of the user's has: it is called on every type.
#[doc(hidden)]
pub trait Content: Sized {
    fn __content(self) -> Anything {
        Anything
    }
}

impl<T: ?Sized> Content for Skipped<T> {}

/// Stands for a skipped field of this type.
#[doc(hidden)]
#[must_use]
pub const fn skipped<T: ?Sized>() -> Skipped<T> {
    Skipped(PhantomData)
}

macro_rules! leaves {
    ($($Leaf:ty),+) => {
        $(impl Skipped<$Leaf> {
            pub const fn __content(self) -> Leaves {
                Leaves
            }
        })+
    };
}

leaves!(Param, Option<Param>, Arc<Param>, Box<Param>, Vec<Param>, VecDeque<Param>);
leaves!(Buffer, Option<Buffer>, Arc<Buffer>, Box<Buffer>, Vec<Buffer>, VecDeque<Buffer>);

/// Compiles if the content may be skipped.
#[doc(hidden)]
pub const fn check_skipped<C: MayBeSkipped>(_: &C) {}
