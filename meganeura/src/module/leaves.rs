//! The tensors of a model, each once, however many paths lead to it.

use std::collections::HashMap;
use std::sync::Arc;

use super::{At, Module, Slot};
use crate::param::{Cell, Kind};
use crate::{Buffer, Param, Tensor, TensorType};

/// A tensor of a model: where it stands and what becomes of it.
#[derive(Debug, Clone)]
pub struct Leaf<'a> {
    /// The first path that leads to it.
    pub path: String,
    /// The other paths, if it is tied: shared by several places of the model.
    pub aliases: Vec<String>,
    /// What becomes of it in a step.
    pub role: Role,
    slot: Slot<'a>,
    /// Whether the model's struct has it frozen wherever it stands.
    declared_frozen: bool,
}

/// What becomes of a tensor of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// A parameter that optimizers update.
    Trained,
    /// A parameter that they leave alone: frozen by the model's struct, wherever it stands, or at run time.
    Frozen,
    /// A buffer: saved, not trained.
    Buffer,
    /// A buffer that is not even saved.
    Constant,
}

/// How many numbers of each role a model has. Those of tied tensors count once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counts {
    /// In parameters that are trained.
    pub trained: usize,
    /// In frozen parameters.
    pub frozen: usize,
    /// In buffers, constant ones included.
    pub buffers: usize,
}

/// Every tensor of `module`, in the order of the visit.
pub(super) fn leaves<M: Module + ?Sized>(module: &M) -> Vec<Leaf<'_>> {
    let mut leaves: Vec<Leaf<'_>> = Vec::new();
    let mut known = HashMap::new();
    module.visit(At::root(), &mut |at, slot| {
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

    /// The value now.
    #[must_use]
    pub fn value(&self) -> Tensor {
        self.cell().value()
    }

    /// Element type and shape.
    #[must_use]
    pub fn ty(&self) -> TensorType {
        self.cell().ty()
    }

    /// All paths that lead to it, the first one first.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.path).chain(&self.aliases).map(String::as_str)
    }

    pub(crate) fn cell(&self) -> &'a Arc<Cell> {
        self.slot.cell().expect("a leaf is a tensor")
    }

    /// Tells it where it stands, and what the model's struct says of it.
    pub(crate) fn name(&self) {
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

    /// Trained ones and frozen ones.
    #[must_use]
    pub const fn parameters(&self) -> usize {
        self.trained + self.frozen
    }
}
