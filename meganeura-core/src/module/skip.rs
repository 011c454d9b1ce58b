//! Skipped fields. Only types can tell whether a skipped field is a module, left out by mistake, so traits report it.

use std::marker::PhantomData;

use super::Module;

/// A skipped field of this type.
///
/// An expansion asks it for its content. Of the methods of one name, the compiler takes the first that exists: the
/// type's own, then that of [`ModuleContent`], and then that of [`Content`], which needs one more reference.
#[doc(hidden)]
#[derive(Debug)]
pub struct Skipped<T: ?Sized>(PhantomData<T>);

/// The content of a skipped field that is not a mistake as far as is known.
#[doc(hidden)]
#[derive(Debug)]
pub struct Anything;

/// The content of a skipped field that is a module.
#[doc(hidden)]
#[derive(Debug)]
pub struct AModule;

#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{T}` is a module, but its field is marked `skip`",
    label = "skipped, so it would not be trained, saved or moved",
    note = "to include it in the model, remove `skip`; to exclude it from training only, use `#[module(frozen)]`",
    note = "to leave it out on purpose, say so: `#[module(skip(parameters))]`",
    note = "for a tensor outside of the model, use a `Tensor` with `#[module(skip)]`"
)]
pub trait MayBeSkipped<T: ?Sized> {}

#[diagnostic::do_not_recommend]
impl<T: ?Sized> MayBeSkipped<T> for Anything {}

/// The method has a name that no trait of a user has, because it is called on every type.
#[doc(hidden)]
pub trait ModuleContent: Sized {
    fn __content(self) -> AModule {
        AModule
    }
}

impl<T: Module + ?Sized> ModuleContent for Skipped<T> {}

#[doc(hidden)]
pub trait Content {
    fn __content(&self) -> Anything {
        Anything
    }
}

impl<T: ?Sized> Content for Skipped<T> {}

/// Empty modules, which may be skipped like anything else.
macro_rules! empty {
    ($(<$($T:ident)?> $Empty:ty),+) => {
        $(impl<$($T: ?Sized)?> Skipped<$Empty> {
            pub const fn __content(self) -> Anything {
                Anything
            }
        })+
    };
}

empty!(<> (), <T> PhantomData<T>);

/// Represents a skipped field of this type.
#[doc(hidden)]
#[must_use]
pub const fn skipped<T: ?Sized>() -> Skipped<T> {
    Skipped(PhantomData)
}

/// Compiles if the content may be skipped.
#[doc(hidden)]
pub const fn check_skipped<T: ?Sized, C: MayBeSkipped<T>>(_: &C) {}
