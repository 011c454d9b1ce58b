//! The functions that the generated `forward` of a sequential struct calls.

use std::panic::Location;

use super::evaluate::is_evaluated;
use super::{At, Flow, Layer, Module, Slot, enter_field};
use crate::{Error, ErrorKind, Var};

/// A shortcut of a residual struct: a layer beside the others, or `None` to pass the input on unchanged.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a shortcut: it is neither a layer nor an `Option` of one",
    label = "not a shortcut",
    note = "`residual = …` names a layer: its result and that of the other fields, both from the same input, are added"
)]
pub trait Shortcut: Module {
    /// Applies the field of this name. `None` records nothing.
    #[track_caller]
    fn shortcut(&self, name: &str, x: &Var) -> Var;

    fn flow_beside(&self) -> Flow;
}

impl<L: Layer> Shortcut for L {
    fn shortcut(&self, name: &str, x: &Var) -> Var {
        let _entered = enter_field(self, name, x);
        self.forward(x)
    }

    fn flow_beside(&self) -> Flow {
        self.flow()
    }
}

impl<L: Layer> Shortcut for Option<L> {
    fn shortcut(&self, name: &str, x: &Var) -> Var {
        match self {
            Some(layer) => layer.shortcut(name, x),
            None => x.clone(),
        }
    }

    fn flow_beside(&self) -> Flow {
        self.as_ref().map_or_else(Flow::kept, Layer::flow)
    }
}

/// The sum of a residual struct. A sum that would broadcast means that a shortcut was forgotten.
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

/// The required return type of a call in `then` or `before`.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a layer and cannot be applied",
    label = "not a layer",
    note = "a call must return a layer: `MaxPool2d::new(2)`",
    note = "to pass further arguments to a function, use a closure: `|x| path::to(x, 0.1)`",
    note = "for a layer with parameters, add a field"
)]
pub trait Applied: Layer {}

impl<L: Layer> Applied for L {}

/// Applies the layer of a `then` or `before`, in the mode of the field next to it, or of the whole struct if that field
/// holds nothing.
///
/// Each `forward` creates the layer anew: a parameter in it that is not part of the struct would never be trained.
#[doc(hidden)]
#[track_caller]
pub fn apply_layer<L: Applied>(layer: &L, x: &Var, field: &dyn Module, whole: &dyn Module) -> Var {
    let evaluated = x.tape().is_training() && is_evaluated(field).or_else(|| is_evaluated(whole)) == Some(true);
    let mut leaves = Vec::new();
    layer.visit(At::root(), &mut |at, slot| match slot {
        Slot::Mode(mode) if evaluated => mode.set_evaluated(true),
        Slot::Param(_) | Slot::Buffer(_) => leaves.extend(slot.cell().map(|cell| (at.path(), cell.id()))),
        Slot::Mode(_) | Slot::Variant(_) => {}
    });
    if !leaves.is_empty() {
        whole
            .visit(At::root(), &mut |_, slot| leaves.retain(|(_, id)| slot.cell().is_none_or(|cell| cell.id() != *id)));
    }
    if let Some((path, _)) = leaves.first() {
        let message = format!(
            "the layer in `then` or `before` is made anew by each `forward`, so its `{path}` would be neither trained nor \
             saved; make the layer a field"
        );
        return x.fail(Error::new(ErrorKind::Argument, message).at(Location::caller()));
    }
    layer.forward(x)
}

/// A type without methods, for the message about a missing method.
#[doc(hidden)]
#[derive(Debug)]
pub struct Unknown;

/// Applies the closure of a `then` or `before`. It is a function so that the closure's parameter has an inferred type.
#[doc(hidden)]
pub fn apply(f: impl FnOnce(&Var) -> Var, x: &Var) -> Var {
    f(x)
}
