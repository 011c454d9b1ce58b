//! Modules: structs that hold parameters, and the visits of them.
//!
//! A module is a tree. Its leaves are [`Param`]s and [`Buffer`]s; its inner nodes are structs, enums and containers.
//! One operation, [`Module::visit`], walks the tree and passes every leaf to a closure together with its path
//! (`blocks.0.conv.weight`). Counting, naming, saving and optimizing are all visits. `#[derive(Module)]` writes the
//! visit, with fields in the order of their declaration.
//!
//! | to | use |
//! |---|---|
//! | visit the parameters of a model | [`Module`], derived; ready-made visits in [`ModuleExt`] |
//! | list them, each once, with its role | [`ModuleExt::leaves`], which returns a [`Leaf`] for each |
//! | know the position of a visit in the model | [`At`] |
//! | chain modules that map one value to one value | [`Layer`] |
//! | build a module on a device, from a seed | [`Init`] for a layer's builder, [`FromSeed`] and [`FromConfig`] for a derived struct, [`Seed`] |
//! | declare the extents that a layer takes and gives, to be compared with its neighbours' | [`Flow`] |
//! | print a model | [`Summary`] |
//! | print a forward pass layer by layer, with its shapes and costs | [`ForwardSummary`], [`enter`] |
//! | freeze, evaluate, tie, average, copy | [`ModuleExt`] |
//! | know the mode of a layer without parameters | [`Mode`], a field of the layer |
//!
//! Nothing here knows a particular layer, an optimizer or a file format.

mod apply;
mod at;
mod bare;
mod check_input;
mod combine;
mod containers;
mod enter;
mod evaluate;
mod ext;
mod flow;
mod forward_summary;
mod init;
mod layer;
mod leaves;
#[doc(hidden)]
pub mod near;
#[doc(hidden)]
pub mod pattern;
mod select;
mod skip;
mod slot;
mod summary;
mod tie;

pub use at::At;
pub use enter::enter;
pub use ext::ModuleExt;
pub use flow::Flow;
pub use forward_summary::{ForwardSummary, LayerRow};
pub use init::{FromConfig, FromSeed, Init};
pub use layer::Layer;
pub use leaves::{Counts, Leaf, Role};
pub use slot::{LeafMut, Slot, SlotMut};
pub use summary::Summary;

pub use crate::mode::Mode;
pub use crate::seed::{Generator, Seed};
pub use crate::tape::Entered;

#[doc(hidden)]
pub use select::Selection;
#[doc(hidden)]
pub use tie::tie;

#[doc(hidden)]
pub use apply::{Shortcut, Unknown, add_residual, apply, apply_layer};
#[doc(hidden)]
pub use check_input::{TakesInput, check_input};
#[doc(hidden)]
pub use containers::Key;
#[doc(hidden)]
pub use enter::enter_field;
#[doc(hidden)]
pub use flow::{FlowChain, FlowOf, KnownFlow, KnownFlowBeside, UnknownFlow, check_flow};
#[doc(hidden)]
pub use init::{init_by, init_configured, init_field, init_module};
#[doc(hidden)]
pub use skip::{Content, ModuleContent, check_skipped, skipped};
#[doc(hidden)]
pub use summary::fmt_module;

use crate::{Buffer, Param};

/// A part of a model: a type whose parameters and buffers can be visited.
///
/// Derive it. The derive visits every field, in the order of declaration, and a field's name becomes its path segment:
///
/// ```
/// use meganeura::{Param, prelude::*};
///
/// #[derive(Module)]
/// struct Affine {
///     scale: Param,
///     shift: Option<Param>,
/// }
/// ```
///
/// [`Param`] and [`Buffer`] are the leaves. `Vec`, `VecDeque`, `Option`, arrays, tuples, `Box`, `Arc` and maps from
/// `String` are modules if their elements are. `#[module(skip)]` leaves out a field that is not a module;
/// `#[module(skip(parameters))]` leaves out a module on purpose.
///
/// In an implementation by hand, the two methods must visit the same leaves under the same paths and in the same order,
/// and no two leaves may share a path. In `visit` alone, an enum also passes its [variant](Slot::Variant), and a
/// [`Mode`] itself.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a module: its parameters cannot be visited",
    label = "not a module",
    note = "a struct or enum of yours with parameters: put `#[derive(Module)]` on it",
    note = "a number, a string or another setting, without parameters: put `#[module(skip)]` on the field",
    note = "an `Rc`, a cell or a lock: hold the module itself, or an `Arc` of it to share it; parameters have locks of their own",
    note = "a tuple of more than 12: nest tuples, or make it a struct"
)]
pub trait Module {
    /// Passes every parameter, buffer and [`Mode`] to `f`, with its position below `at`, and the variant of every enum.
    fn visit<'a>(&'a self, at: At<'_>, f: &mut dyn FnMut(At<'_>, Slot<'a>));

    /// Passes every parameter and buffer to `f`, mutable, with its position below `at`.
    fn visit_mut<'a>(&'a mut self, at: At<'_>, f: &mut dyn FnMut(At<'_>, SlotMut<'a>));
}

/// A borrowed module whose type is erased: code that reads modules through it is compiled once, not for every type.
///
/// `&&M` coerces to `&dyn Visited` for every module `M`, a `dyn Module` included.
pub(crate) trait Visited<'a> {
    /// [`Module::visit`] of the whole module.
    fn visit_all(&self, f: &mut dyn FnMut(At<'_>, Slot<'a>));
}

impl<'a, M: Module + ?Sized> Visited<'a> for &'a M {
    fn visit_all(&self, f: &mut dyn FnMut(At<'_>, Slot<'a>)) {
        (*self).visit(At::root(), f);
    }
}

/// The factors of an adapter and its scale are additional leaves below the parameter: `weight.lora_a`, `weight.lora_b`,
/// `weight.lora_scale`, and `weight.lora_magnitude` and `weight.lora_bias` if it has them.
impl Module for Param {
    fn visit<'a>(&'a self, at: At<'_>, f: &mut dyn FnMut(At<'_>, Slot<'a>)) {
        f(at, Slot::Param(self));
        if let Some(adapter) = self.adapter() {
            adapter.params().for_each(|(name, param)| f(at.field(name), Slot::Param(param)));
            f(at.field("lora_scale"), Slot::Buffer(&adapter.scale));
        }
    }

    fn visit_mut<'a>(&'a mut self, at: At<'_>, f: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {
        // Handles, because the parameter itself belongs to whoever takes it.
        let handles = self.adapter().map(|adapter| {
            let params: Vec<_> = adapter.params().map(|(name, param)| (name, LeafMut::<Self>::handle(param))).collect();
            (params, LeafMut::<Buffer>::handle(&adapter.scale))
        });
        f(at, SlotMut::Param(LeafMut::own(self)));
        if let Some((params, scale)) = handles {
            params.into_iter().for_each(|(name, param)| f(at.field(name), SlotMut::Param(param)));
            f(at.field("lora_scale"), SlotMut::Buffer(scale));
        }
    }
}

impl Module for Buffer {
    fn visit<'a>(&'a self, at: At<'_>, f: &mut dyn FnMut(At<'_>, Slot<'a>)) {
        f(at, Slot::Buffer(self));
    }

    fn visit_mut<'a>(&'a mut self, at: At<'_>, f: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {
        f(at, SlotMut::Buffer(LeafMut::own(self)));
    }
}

impl Module for Mode {
    fn visit<'a>(&'a self, at: At<'_>, f: &mut dyn FnMut(At<'_>, Slot<'a>)) {
        f(at, Slot::Mode(self));
    }

    /// Passes nothing: a mode changes through a shared reference.
    fn visit_mut<'a>(&'a mut self, _: At<'_>, _: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {}
}
