//! The tensors of a model, each once, regardless of the number of paths to it.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Module, Slot, Visited};
use crate::param::{Cell, Kind};
use crate::{Buffer, Param, Tensor, TensorType};

/// A tensor of a model, with its paths and its role.
#[derive(Debug, Clone)]
pub struct Leaf<'a> {
    /// The first path to it.
    pub path: String,
    /// The other paths, if it is tied: shared by several places of the model.
    pub aliases: Vec<String>,
    /// Its role in a step.
    pub role: Role,
    slot: Slot<'a>,
    /// `true` if the model's struct freezes it in all of its places.
    declared_frozen: bool,
}

/// The role of a model's tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// A parameter that optimizers update.
    Trained,
    /// A parameter that they leave alone: frozen by the model's struct in all of its places, or at run time.
    Frozen,
    /// A buffer: saved, but not trained.
    Buffer,
    /// A buffer that is not saved either.
    Constant,
}

/// The number of elements of each role in a model. Those of tied tensors count once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Elements of trained parameters.
    pub trained: usize,
    /// Elements of frozen parameters.
    pub frozen: usize,
    /// Elements of buffers, constant ones included.
    pub buffers: usize,
}

/// Every tensor of `module`, in the order of the visit.
pub(super) fn leaves<M: Module + ?Sized>(module: &M) -> Vec<Leaf<'_>> {
    leaves_of(&module)
}

/// [`leaves`] of a module whose type is erased.
pub(super) fn leaves_of<'a>(module: &dyn Visited<'a>) -> Vec<Leaf<'a>> {
    let mut leaves: Vec<Leaf<'_>> = Vec::new();
    let mut known = HashMap::new();
    module.visit_all(&mut |at, slot| {
        let Some(cell) = slot.cell() else { return };
        let &mut index = known.entry(cell.id()).or_insert(leaves.len());
        match leaves.get_mut(index) {
            Some(leaf) => {
                leaf.aliases.push(at.path());
                leaf.declared_frozen &= at.is_frozen();
            }
            None => {
                let (path, declared_frozen) = (at.path(), at.is_frozen());
                leaves.push(Leaf { path, aliases: Vec::new(), role: Role::Trained, slot, declared_frozen });
            }
        }
    });
    for leaf in &mut leaves {
        leaf.role = match leaf.cell().kind() {
            Kind::Param if leaf.cell().is_frozen_or(leaf.declared_frozen) => Role::Frozen,
            Kind::Param => Role::Trained,
            Kind::Buffer => Role::Buffer,
            Kind::Constant => Role::Constant,
        };
    }
    leaves
}

impl<'a> Leaf<'a> {
    /// The parameter, if it is one.
    #[must_use]
    pub fn param(&self) -> Option<&'a Param> {
        match self.slot {
            Slot::Param(param) => Some(param),
            _ => None,
        }
    }

    /// The buffer, if it is one.
    #[must_use]
    pub fn buffer(&self) -> Option<&'a Buffer> {
        match self.slot {
            Slot::Buffer(buffer) => Some(buffer),
            _ => None,
        }
    }

    /// The current value.
    #[must_use]
    pub fn value(&self) -> Tensor {
        self.cell().value()
    }

    /// The element type and shape.
    #[must_use]
    pub fn ty(&self) -> TensorType {
        self.cell().ty()
    }

    /// All paths to it, the first one first.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.path).chain(&self.aliases).map(String::as_str)
    }

    #[doc(hidden)]
    pub fn cell(&self) -> &'a Arc<Cell> {
        self.slot.cell().expect("a leaf is a tensor")
    }

    /// Tells the tensor its paths, and whether the model's struct freezes it.
    #[doc(hidden)]
    pub fn name(&self) {
        self.cell().set_names(&self.path, &self.aliases);
        self.cell().declare_frozen(self.declared_frozen);
    }
}

impl Counts {
    pub(super) fn of(leaves: &[Leaf<'_>]) -> Self {
        let mut counts = Self::default();
        for leaf in leaves {
            let count = match leaf.role {
                Role::Trained => &mut counts.trained,
                Role::Frozen => &mut counts.frozen,
                Role::Buffer | Role::Constant => &mut counts.buffers,
            };
            *count += leaf.ty().shape.elements();
        }
        counts
    }

    /// The elements of trained and frozen parameters.
    #[must_use]
    pub const fn parameters(&self) -> usize {
        self.trained + self.frozen
    }
}
