//! Parameters and buffers: tensors with an identity, which change from step to step and are saved.

mod adapter;

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) use self::adapter::Adapter;
use self::adapter::Beside;
use crate::error::{bail, here};
use crate::mode::Mode;
use crate::{Device, Result, Shape, Tensor, TensorType};

/// A tensor that is replaced over time, seen under one identity by the tapes that read it.
pub(crate) struct Cell {
    id: u64,
    kind: Kind,
    state: Mutex<State>,
}

/// What becomes of a cell besides being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Trained, saved and moved.
    Param,
    /// Saved and moved.
    Buffer,
    /// Moved.
    Constant,
}

pub(crate) struct State {
    pub(crate) tensor: Tensor,
    /// Counts the updates: a tape that recorded an older version is stale.
    pub(crate) version: u64,
    names: Names,
    freezing: Freezing,
}

/// Where a cell stands in its model.
#[derive(Clone, Default)]
struct Names {
    path: Option<Arc<str>>,
    /// Where else, if it is tied.
    aliases: Arc<[String]>,
}

/// Whether a parameter is frozen: what was said of it at run time, else what the model's struct says.
#[derive(Clone, Copy, Default)]
struct Freezing {
    said: Option<bool>,
    /// As the walk that told the parameter its path found it.
    declared: bool,
}

impl Cell {
    pub(crate) fn new(tensor: Tensor, kind: Kind) -> Arc<Self> {
        Self::with(tensor, kind, Freezing::default())
    }

    fn with(tensor: Tensor, kind: Kind, freezing: Freezing) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { id, kind, state: Mutex::new(State { tensor, version: 0, names: Names::default(), freezing }) })
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// The state is plain data that no panic leaves half changed, so a poisoned lock is taken as it is.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn path(&self) -> Option<Arc<str>> {
        self.lock().names.path.clone()
    }

    /// Whether this is one of the paths that it was told.
    pub(crate) fn is_called(&self, path: &str) -> bool {
        let names = &self.lock().names;
        names.path.as_deref() == Some(path) || names.aliases.iter().any(|alias| alias == path)
    }

    pub(crate) fn set_names(&self, path: &str, aliases: &[String]) {
        self.lock().names = Names { path: Some(path.into()), aliases: aliases.into() };
    }

    /// The paths that it was told, the first one first.
    pub(crate) fn names(&self) -> Vec<String> {
        let Names { path, aliases } = self.lock().names.clone();
        path.iter().map(ToString::to_string).chain(aliases.iter().cloned()).collect()
    }

    /// Takes names as further ones: those of what it takes the place of.
    pub(crate) fn adopt_names(&self, names: impl IntoIterator<Item = String>) {
        let mut known: HashSet<String> = self.names().into_iter().collect();
        let own = &mut self.lock().names;
        let adopted = names.into_iter().filter(|name| known.insert(name.clone()));
        own.aliases = own.aliases.iter().cloned().chain(adopted).collect();
    }

    pub(crate) fn value(&self) -> Tensor {
        self.lock().tensor.clone()
    }

    pub(crate) fn ty(&self) -> TensorType {
        self.lock().tensor.ty()
    }

    pub(crate) fn set(&self, tensor: Tensor) {
        let mut state = self.lock();
        state.tensor = tensor;
        state.version += 1;
    }

    /// As [`set`](Self::set), if the value fits.
    pub(crate) fn replace(&self, value: Tensor) -> Result<()> {
        let old = self.value();
        if old.ty() != value.ty() {
            bail!(Shape, "{} cannot take the place of {}", value.ty(), old.ty());
        }
        if !old.device().same(value.device()) {
            bail!(Device, "a value on {} cannot take the place of one on {}", value.device(), old.device());
        }
        self.set(value);
        Ok(())
    }

    pub(crate) fn to_device(&self, device: &Device) -> Result<()> {
        let moved = self.value().to_device(device)?;
        self.set(moved);
        Ok(())
    }

    /// What was said at run time, else `declared`.
    pub(crate) fn is_frozen_or(&self, declared: bool) -> bool {
        self.lock().freezing.said.unwrap_or(declared)
    }

    pub(crate) fn set_frozen(&self, frozen: bool) {
        self.lock().freezing.said = Some(frozen);
    }

    pub(crate) fn declare_frozen(&self, frozen: bool) {
        self.lock().freezing.declared = frozen;
    }

    /// Whether gradients are to reach it.
    pub(crate) fn is_trained(&self) -> bool {
        let Freezing { said, declared } = self.lock().freezing;
        self.kind == Kind::Param && !said.unwrap_or(declared)
    }
}

macro_rules! cell_newtype {
    ($(#[$doc:meta])* $name:ident, $beside:ty) => {
        $(#[$doc])*
        pub struct $name {
            cell: Arc<Cell>,
            /// Of this place in the model: a tied one may be in evaluation in one place and in training in another.
            mode: Mode,
            beside: $beside,
        }

        impl $name {
            /// One that starts with this value.
            #[must_use]
            pub fn new(value: Tensor) -> Self {
                Self::of(Cell::new(value, Kind::$name), Mode::new())
            }

            fn of(cell: Arc<Cell>, mode: Mode) -> Self {
                Self { cell, mode, beside: Default::default() }
            }

            /// The value now.
            #[must_use]
            pub fn value(&self) -> Tensor {
                self.cell.value()
            }

            /// The extents.
            #[must_use]
            pub fn shape(&self) -> Shape {
                self.ty().shape
            }

            /// Element type and shape.
            #[must_use]
            pub fn ty(&self) -> TensorType {
                self.cell.ty()
            }

            /// Where it stands in its model, if the model was ever walked: `blocks.0.conv.weight`.
            #[must_use]
            pub fn path(&self) -> Option<Arc<str>> {
                self.cell.path()
            }

            /// Says where it stands in its model; error messages use it.
            pub fn set_path(&self, path: &str) {
                self.cell.set_names(path, &[]);
            }

            /// Replaces the value by one of the same shape. Tapes that recorded the old one become stale.
            ///
            /// # Errors
            ///
            /// If the shape, element type or device differs; the old value stays then.
            #[track_caller]
            pub fn set(&mut self, value: Tensor) -> Result<()> {
                here(|| self.cell.replace(value))
            }

            /// Moves the value to another device.
            ///
            /// # Errors
            ///
            /// If either device fails; the value stays where it was then.
            #[track_caller]
            pub fn to_device(&mut self, device: &Device) -> Result<()> {
                here(|| self.cell.to_device(device))
            }

            /// The same one once more: one identity and one value in two places.
            ///
            /// ```
            /// use meganeura::prelude::*;
            ///
            /// let device = Device::cpu();
            /// let embedding = Linear::new(16, 64).bias(false).init(&device, Seed::new(1))?;
            /// let mut head = Linear::new(16, 64).init(&device, Seed::new(2))?;
            /// head.weight = embedding.weight.tied(); // trained by both, counted and saved once
            /// assert!(head.weight.is_tied_to(&embedding.weight));
            /// # Ok::<(), meganeura::Error>(())
            /// ```
            #[must_use]
            pub fn tied(&self) -> Self {
                Self { cell: Arc::clone(&self.cell), mode: Mode::new(), beside: self.beside.tied() }
            }

            /// The same one once more, to stand where `place` stands: in that place's mode.
            pub(crate) fn tied_in_place_of(&self, place: &Self) -> Self {
                Self { cell: Arc::clone(&self.cell), mode: place.mode.clone(), beside: self.beside.tied() }
            }

            /// Whether both are one.
            #[must_use]
            pub fn is_tied_to(&self, other: &Self) -> bool {
                self.cell.id() == other.cell.id()
            }

            pub(crate) fn cell(&self) -> &Arc<Cell> {
                &self.cell
            }

            pub(crate) fn mode(&self) -> &Mode {
                &self.mode
            }
        }

        /// A copy with an identity of its own: updating one leaves the other alone. What is frozen, evaluated or not
        /// saved stays so.
        impl Clone for $name {
            fn clone(&self) -> Self {
                let state = self.cell.lock();
                let cell = Cell::with(state.tensor.clone(), self.cell.kind, state.freezing);
                Self { cell, mode: self.mode.clone(), beside: self.beside.clone() }
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
    Param, Option<Box<Adapter>>
}

cell_newtype! {
    /// A tensor of a model that is saved and moved with it but not trained: running statistics, say. One made by
    /// [`constant`](Self::constant) is not saved either.
    Buffer, ()
}

impl Param {
    /// Stops training it: no gradient is computed for it and no optimizer changes it, whatever the model's struct says.
    ///
    /// [`ModuleExt::freeze`](crate::ModuleExt::freeze) does that to many, by their paths.
    pub fn freeze(&mut self) {
        self.cell.set_frozen(true);
    }

    /// Trains it from the next step on, even where the model's struct has it `#[module(frozen)]`.
    pub fn thaw(&mut self) {
        self.cell.set_frozen(false);
    }

    /// Whether it is not trained: what was last said by [`freeze`](Self::freeze) and [`thaw`](Self::thaw), else what
    /// the model's struct said when the model was built or last named.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        !self.cell.is_trained()
    }
}

impl Buffer {
    /// One that is moved with the model but not saved, as the model makes it anew: a mask, a table of positions.
    #[must_use]
    pub fn constant(value: Tensor) -> Self {
        Self::of(Cell::new(value, Kind::Constant), Mode::new())
    }

    /// Whether it is in no file.
    #[must_use]
    pub fn is_constant(&self) -> bool {
        self.cell.kind() == Kind::Constant
    }
}
