//! Layers say that they record: what a [summary of a forward pass](super::ForwardSummary) tells their rows by.

use super::{At, Module, Slot};
use crate::Var;
use crate::tape::{Entered, Identity, Part};

/// Says that this layer records on the tape of `x`, until the result is dropped: `let _entered = enter(self, x);`
///
/// A layer of your own whose `forward` begins with this line is a row of
/// [`summary_with`](super::ModuleExt::summary_with), also where it has no parameters to be known by. The layers of
/// [`nn`](crate::nn) and sequential structs do it. It costs nothing while no summary is made.
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
    x.tape().enter(|| Part { held: held(layer), ..part(layer, x) })
}

/// As [`enter`], of a layer that is called `name` in what holds it. What it holds, its own `forward` tells.
#[doc(hidden)]
pub fn enter_field<M: ?Sized>(layer: &M, name: &str, x: &Var) -> Entered {
    x.tape().enter(|| Part { name: Some(name.to_owned()), ..part(layer, x) })
}

/// As [`enter_field`], of an element of a sequence.
pub(super) fn enter_element<M: ?Sized>(layer: &M, index: usize, x: &Var) -> Entered {
    x.tape().enter(|| Part { name: Some(index.to_string()), ..part(layer, x) })
}

fn part<M: ?Sized>(layer: &M, x: &Var) -> Part {
    let place = (std::ptr::from_ref(layer).cast::<()>().addr(), size_of_val(layer));
    Part { name: None, kind: std::any::type_name::<M>(), place, held: Vec::new(), input: x.ty() }
}

/// The tensors and modes of a module, by their paths.
pub(super) fn held<M: Module + ?Sized>(module: &M) -> Vec<(String, Identity)> {
    let mut held = Vec::new();
    module.visit(At::root(), &mut |at, slot| {
        let identity = match &slot {
            Slot::Variant(_) => return,
            Slot::Mode(mode) => Identity::Mode(std::ptr::from_ref(*mode).addr()),
            Slot::Param(_) | Slot::Buffer(_) => Identity::Cell(slot.cell().expect("a tensor has a cell").id()),
        };
        held.push((at.path(), identity));
    });
    held
}
