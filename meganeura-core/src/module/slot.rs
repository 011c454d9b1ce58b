//! The items that a visit passes to its closure.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::error::here;
use crate::mode::Mode;
use crate::param::Cell;
use crate::{Buffer, Device, Param, Result, Tensor, TensorType};

/// An item of a visit: a tensor of the model and its role, the mode of a layer without tensors, or the variant of an
/// enum.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Slot<'a> {
    /// Trained by the optimizer.
    Param(&'a Param),
    /// Saved with the model, but not trained: running statistics, tables.
    Buffer(&'a Buffer),
    /// Not a tensor: the mode of a layer that has no tensor.
    Mode(&'a Mode),
    /// Not a tensor: the variant of an enum. The contents of the variant are visited next.
    Variant(&'static str),
}

/// A mutable tensor of the model, and its role.
#[derive(Debug)]
#[non_exhaustive]
pub enum SlotMut<'a> {
    /// Trained by the optimizer.
    Param(LeafMut<'a, Param>),
    /// Saved with the model, but not trained: running statistics, tables.
    Buffer(LeafMut<'a, Buffer>),
}

/// A [`Param`] or [`Buffer`] that [`SlotMut`] can change.
///
/// It is owned, part of a module shared by `Arc`, or a tensor of an adapter that its parameter holds. All holders of a
/// shared module see a new value. It dereferences to the leaf.
pub struct LeafMut<'a, L>(Hold<'a, L>);

enum Hold<'a, L> {
    Own(&'a mut L),
    /// Values are behind a lock, so they may change here as well; the cell may not.
    Shared(&'a L),
    /// Another handle on the same cell.
    Handle(L),
}

impl<'a> Slot<'a> {
    #[doc(hidden)]
    pub fn cell(self) -> Option<&'a Arc<Cell>> {
        match self {
            Self::Param(param) => Some(param.cell()),
            Self::Buffer(buffer) => Some(buffer.cell()),
            Self::Mode(_) | Self::Variant(_) => None,
        }
    }

    /// The mode at this position.
    #[doc(hidden)]
    pub fn mode(self) -> Option<&'a Mode> {
        match self {
            Self::Param(param) => Some(param.mode()),
            Self::Buffer(buffer) => Some(buffer.mode()),
            Self::Mode(mode) => Some(mode),
            Self::Variant(_) => None,
        }
    }

    /// The same tensor, mutable without being owned.
    #[doc(hidden)]
    pub fn shared(self) -> Option<SlotMut<'a>> {
        match self {
            Self::Param(param) => Some(SlotMut::Param(LeafMut(Hold::Shared(param)))),
            Self::Buffer(buffer) => Some(SlotMut::Buffer(LeafMut(Hold::Shared(buffer)))),
            Self::Mode(_) | Self::Variant(_) => None,
        }
    }
}

impl SlotMut<'_> {
    pub(crate) fn cell(&self) -> &Arc<Cell> {
        match self {
            Self::Param(param) => param.cell(),
            Self::Buffer(buffer) => buffer.cell(),
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

    /// Replaces the value by one of the same shape, like [`Param::set`].
    ///
    /// # Errors
    ///
    /// Fails if the shape, element type or device differs. On error, the old value stays.
    #[track_caller]
    pub fn set(&mut self, value: Tensor) -> Result<()> {
        here(|| self.cell().replace(value))
    }

    /// Moves the value to another device.
    ///
    /// # Errors
    ///
    /// Fails if either device fails. The value stays where it was then.
    #[track_caller]
    pub fn to_device(&mut self, device: &Device) -> Result<()> {
        here(|| self.cell().to_device(device))
    }
}

impl<'a, L> LeafMut<'a, L> {
    pub(super) fn own(leaf: &'a mut L) -> Self {
        Self(Hold::Own(leaf))
    }

    /// Replaces the leaf by another if it is owned; `true` if it was.
    pub(super) fn put(&mut self, other: L) -> bool {
        match &mut self.0 {
            Hold::Own(leaf) => {
                **leaf = other;
                true
            }
            Hold::Shared(_) | Hold::Handle(_) => false,
        }
    }

    /// `true` if the leaf can be replaced by another.
    #[doc(hidden)]
    pub fn is_own(&self) -> bool {
        matches!(self.0, Hold::Own(_))
    }

    /// `true` if this is a handle on a cell that is held elsewhere.
    pub(super) fn is_handle(&self) -> bool {
        matches!(self.0, Hold::Handle(_))
    }

    /// The leaf, if it is owned.
    #[doc(hidden)]
    pub fn own_mut(&mut self) -> Option<&mut L> {
        match &mut self.0 {
            Hold::Own(leaf) => Some(leaf),
            Hold::Shared(_) | Hold::Handle(_) => None,
        }
    }
}

macro_rules! handle {
    ($leaf:ident) => {
        impl LeafMut<'_, $leaf> {
            /// A handle on the same leaf at the same place, which is held elsewhere.
            pub(super) fn handle(leaf: &$leaf) -> Self {
                Self(Hold::Handle(leaf.tied_in_place_of(leaf)))
            }
        }
    };
}

handle!(Param);
handle!(Buffer);

impl<L> Deref for LeafMut<'_, L> {
    type Target = L;

    fn deref(&self) -> &L {
        match &self.0 {
            Hold::Own(leaf) => leaf,
            Hold::Shared(leaf) => leaf,
            Hold::Handle(leaf) => leaf,
        }
    }
}

impl<L: fmt::Debug> fmt::Debug for LeafMut<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
