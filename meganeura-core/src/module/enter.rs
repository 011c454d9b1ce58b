//! The call that opens a layer's `forward`, `enter(self, x)`. It makes the layer a row of a
//! [summary](super::ForwardSummary).

use super::{Module, Slot, Visited};
use crate::Var;
use crate::tape::{Entered, EnteredModule, Held, Place};

/// Makes this layer a row of [`summary_with`](super::ModuleExt::summary_with): `let _entered = enter(self, x);` as the
/// first line of `forward`.
///
/// The row covers everything recorded on the tape of `x` until the result is dropped. The layers of `nn`
/// and sequential structs call it as well. It costs nothing while no summary is made.
///
/// ```
/// use meganeura::module::enter;
/// use meganeura::prelude::*;
///
/// /// `x·|x|`
/// #[derive(Module, Debug)]
/// struct SignedSquare;
///
/// impl Layer for SignedSquare {
///     fn forward(&self, x: &Var) -> Var {
///         let _entered = enter(self, x);
///         x * x.abs()
///     }
/// }
///
/// let summary = SignedSquare.summary_with([2, 3])?;
/// assert_eq!(summary.rows()[0].kind, "SignedSquare");
/// # Ok::<(), meganeura::Error>(())
/// ```
pub fn enter<M: Module + ?Sized>(layer: &M, x: &Var) -> Entered {
    x.tape().enter(&|| EnteredModule { held: held(&layer), ..EnteredModule::new(layer, x.ty()) })
}

/// [`enter`] for a layer named `name` in its parent. Its own `forward` names its parts.
#[doc(hidden)]
pub fn enter_field<M: ?Sized>(layer: &M, name: &str, x: &Var) -> Entered {
    x.tape().enter(&|| EnteredModule { name: Some(name.to_owned()), ..EnteredModule::new(layer, x.ty()) })
}

/// [`enter_field`] for an element of a sequence.
pub(super) fn enter_element<M: ?Sized>(layer: &M, index: usize, x: &Var) -> Entered {
    x.tape().enter(&|| EnteredModule { name: Some(index.to_string()), ..EnteredModule::new(layer, x.ty()) })
}

/// [`enter`] for the layer behind a `Box` or an `Arc`.
pub(super) fn enter_pointee<P, M: Module + ?Sized>(pointer: &P, layer: &M, x: &Var) -> Entered {
    x.tape().enter(&|| EnteredModule {
        pointer: Some(Place::of(pointer)),
        held: held(&layer),
        ..EnteredModule::new(layer, x.ty())
    })
}

/// The tensors and modes of a module, in the order of the visit.
pub(super) fn held(module: &dyn Visited<'_>) -> Vec<Held> {
    let mut held = Vec::new();
    module.visit_all(&mut |at, slot| {
        let address = match slot {
            Slot::Variant(_) => return,
            Slot::Mode(mode) => std::ptr::from_ref(mode).addr(),
            Slot::Param(param) => std::ptr::from_ref(param).addr(),
            Slot::Buffer(buffer) => std::ptr::from_ref(buffer).addr(),
        };
        held.push(Held { path: at.path(), address, cell: slot.cell().map(|cell| cell.id()) });
    });
    held
}
