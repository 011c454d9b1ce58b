//! Parameters and buffers: tensors with an identity, which change from step to step and are saved.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::bail;
use crate::{Device, Result, Shape, Tensor, TensorType};

/// A tensor that is replaced over time, seen under one identity by the tapes that read it.
pub(crate) struct Cell {
    id: u64,
    state: Mutex<State>,
}

pub(crate) struct State {
    pub(crate) tensor: Tensor,
    /// Counts the updates: a tape that recorded an older version is stale.
    pub(crate) version: u64,
    path: Option<Arc<str>>,
}

impl Cell {
    pub(crate) fn new(tensor: Tensor) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { id, state: Mutex::new(State { tensor, version: 0, path: None }) })
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The state is plain data that no panic leaves half changed, so a poisoned lock is taken as it is.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn path(&self) -> Option<Arc<str>> {
        self.lock().path.clone()
    }

    pub(crate) fn set(&self, tensor: Tensor) {
        let mut state = self.lock();
        state.tensor = tensor;
        state.version += 1;
    }
}

macro_rules! cell_newtype {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        pub struct $name {
            cell: Arc<Cell>,
        }

        impl $name {
            /// One that starts with this value.
            #[must_use]
            pub fn new(value: Tensor) -> Self {
                Self { cell: Cell::new(value) }
            }

            /// The value now.
            #[must_use]
            pub fn value(&self) -> Tensor {
                self.cell.lock().tensor.clone()
            }

            /// The extents.
            #[must_use]
            pub fn shape(&self) -> Shape {
                self.ty().shape
            }

            /// Element type and shape.
            #[must_use]
            pub fn ty(&self) -> TensorType {
                self.cell.lock().tensor.ty()
            }

            /// Where it stands in its model, if the model was ever walked: `blocks.0.conv.weight`.
            #[must_use]
            pub fn path(&self) -> Option<Arc<str>> {
                self.cell.path()
            }

            /// Says where it stands in its model; error messages use it.
            pub fn set_path(&self, path: &str) {
                self.cell.lock().path = Some(path.into());
            }

            /// Replaces the value by one of the same shape. Tapes that recorded the old one become stale.
            ///
            /// # Errors
            ///
            /// If the shape, element type or device differs; the old value stays then.
            pub fn set(&mut self, value: Tensor) -> Result<()> {
                let old = self.value();
                if old.ty() != value.ty() {
                    bail!(Shape, "{} cannot take the place of {}", value.ty(), old.ty());
                }
                if !old.device().same(value.device()) {
                    bail!(Device, "a value on {} cannot take the place of one on {}", value.device(), old.device());
                }
                self.cell.set(value);
                Ok(())
            }

            /// Moves the value to another device.
            ///
            /// # Errors
            ///
            /// If either device fails; the value stays where it was then.
            pub fn to_device(&mut self, device: &Device) -> Result<()> {
                let moved = self.value().to_device(device)?;
                self.cell.set(moved);
                Ok(())
            }

            pub(crate) fn cell(&self) -> &Arc<Cell> {
                &self.cell
            }
        }

        /// A copy with an identity of its own: updating one leaves the other alone.
        impl Clone for $name {
            fn clone(&self) -> Self {
                Self::new(self.value())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.ty())
            }
        }
    };
}

cell_newtype! {
    /// A tensor of a model that training updates: a weight or a bias.
    Param
}

cell_newtype! {
    /// A tensor of a model that is saved and moved with it but not trained: running statistics, a fixed table.
    Buffer
}
