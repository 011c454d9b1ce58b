//! Parameters and buffers: tensors with an identity, which change from step to step and are saved.

mod adapter;

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use self::adapter::{Adapter, Use};
use self::adapter::{Beside, OfParam};
use crate::error::{bail, here};
use crate::mode::Mode;
use crate::{DType, Device, Result, Shape, Tensor, TensorType};

/// A tensor that is replaced over time. Tapes that read it see it under one identity.
pub struct Cell {
    id: u64,
    kind: Kind,
    state: Mutex<State>,
}

/// The role of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Trained, saved and moved.
    Param,
    /// Saved and moved.
    Buffer,
    /// Moved.
    Constant,
}

pub(crate) struct State {
    pub(crate) tensor: Tensor,
    /// The number of updates so far. A tape that recorded an older version is stale.
    pub(crate) version: u64,
    names: Names,
    freezing: Freezing,
}

/// The paths of a cell in its model.
#[derive(Clone, Default)]
struct Names {
    path: Option<Arc<str>>,
    /// Further paths, if it is tied.
    aliases: Arc<[String]>,
}

/// The state of freezing: set at run time, else declared in the model's struct.
#[derive(Clone, Copy, Default)]
struct Freezing {
    said: Option<bool>,
    /// The declaration found by the walk that gave the parameter its path.
    declared: bool,
}

impl fmt::Debug for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cell").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Cell {
    pub fn new(tensor: Tensor, kind: Kind) -> Arc<Self> {
        Self::with(tensor, kind, Freezing::default())
    }

    fn with(tensor: Tensor, kind: Kind, freezing: Freezing) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { id, kind, state: Mutex::new(State { tensor, version: 0, names: Names::default(), freezing }) })
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// The state is plain data that a panic cannot leave half changed, so poisoning is ignored.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn path(&self) -> Option<Arc<str>> {
        self.lock().names.path.clone()
    }

    /// The cell's name in messages: its path in the model, if it has one.
    pub(crate) fn label(&self) -> String {
        self.path().map_or_else(|| "a parameter or buffer".to_owned(), |path| format!("`{path}`"))
    }

    /// `true` if this is one of its known paths.
    pub(crate) fn is_called(&self, path: &str) -> bool {
        let names = &self.lock().names;
        names.path.as_deref() == Some(path) || names.aliases.iter().any(|alias| alias == path)
    }

    pub(crate) fn set_names(&self, path: &str, aliases: &[String]) {
        self.lock().names = Names { path: Some(path.into()), aliases: aliases.into() };
    }

    /// Its known paths, the first one first.
    pub(crate) fn names(&self) -> Vec<String> {
        let Names { path, aliases } = self.lock().names.clone();
        path.iter().map(ToString::to_string).chain(aliases.iter().cloned()).collect()
    }

    /// Adds paths: those of a cell that this one replaces.
    pub(crate) fn adopt_names(&self, names: impl IntoIterator<Item = String>) {
        let mut known: HashSet<String> = self.names().into_iter().collect();
        let own = &mut self.lock().names;
        let adopted = names.into_iter().filter(|name| known.insert(name.clone()));
        own.aliases = own.aliases.iter().cloned().chain(adopted).collect();
    }

    pub fn value(&self) -> Tensor {
        self.lock().tensor.clone()
    }

    pub(crate) fn ty(&self) -> TensorType {
        self.lock().tensor.ty()
    }

    pub fn set(&self, tensor: Tensor) {
        let mut state = self.lock();
        state.tensor = tensor;
        state.version += 1;
    }

    /// Like [`set`](Self::set), if the value fits.
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

    /// The state set at run time, else `declared`.
    pub(crate) fn is_frozen_or(&self, declared: bool) -> bool {
        self.lock().freezing.said.unwrap_or(declared)
    }

    pub fn set_frozen(&self, frozen: bool) {
        self.lock().freezing.said = Some(frozen);
    }

    pub(crate) fn declare_frozen(&self, frozen: bool) {
        self.lock().freezing.declared = frozen;
    }

    /// `true` if it gets gradients.
    pub fn is_trained(&self) -> bool {
        let Freezing { said, declared } = self.lock().freezing;
        self.kind == Kind::Param && !said.unwrap_or(declared)
    }
}

macro_rules! cell_newtype {
    ($(#[$doc:meta])* $name:ident, $beside:ty) => {
        $(#[$doc])*
        pub struct $name {
            cell: Arc<Cell>,
            /// The mode of this place in the model. A tied tensor may be in evaluation mode in one place and in
            /// training mode in another.
            mode: Mode,
            beside: $beside,
        }

        impl $name {
            /// Creates it with this initial value.
            #[must_use]
            pub fn new(value: Tensor) -> Self {
                Self::of(Cell::new(value, Kind::$name), Mode::new())
            }

            fn of(cell: Arc<Cell>, mode: Mode) -> Self {
                Self { cell, mode, beside: Default::default() }
            }

            /// The current value.
            #[must_use]
            pub fn value(&self) -> Tensor {
                self.cell.value()
            }

            /// The extents along each axis.
            #[must_use]
            pub fn shape(&self) -> Shape {
                self.ty().shape
            }

            /// The type of each element.
            #[must_use]
            pub fn dtype(&self) -> DType {
                self.ty().dtype
            }

            /// The element type and shape.
            #[must_use]
            pub fn ty(&self) -> TensorType {
                self.cell.ty()
            }

            /// The path in its model, such as `blocks.0.conv.weight`, once the model has been walked.
            #[must_use]
            pub fn path(&self) -> Option<Arc<str>> {
                self.cell.path()
            }

            /// Sets the path in its model, for error messages.
            pub fn set_path(&self, path: &str) {
                self.cell.set_names(path, &[]);
            }

            /// Replaces the value by one of the same type. Tapes that recorded the old value become stale.
            ///
            /// # Errors
            ///
            /// Fails if the shape, element type or device differs; then the old value stays.
            #[track_caller]
            pub fn set(&mut self, value: Tensor) -> Result<()> {
                here(|| self.cell.replace(value))
            }

            /// Moves the value to another device.
            ///
            /// # Errors
            ///
            /// Fails if either device does; then the value stays where it was.
            #[track_caller]
            pub fn to_device(&mut self, device: &Device) -> Result<()> {
                here(|| self.cell.to_device(device))
            }

            /// Another handle to the same tensor: one identity and one value in two places.
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

            /// Another handle to the same tensor, to replace `place`. It takes over that place's mode.
            pub(crate) fn tied_in_place_of(&self, place: &Self) -> Self {
                Self { cell: Arc::clone(&self.cell), mode: place.mode.clone(), beside: self.beside.tied() }
            }

            /// `true` if both are handles to the same tensor.
            #[must_use]
            pub fn is_tied_to(&self, other: &Self) -> bool {
                self.cell.id() == other.cell.id()
            }

            #[doc(hidden)]
            pub fn cell(&self) -> &Arc<Cell> {
                &self.cell
            }

            pub(crate) fn mode(&self) -> &Mode {
                &self.mode
            }
        }

        /// A copy with an identity of its own, so updating one does not affect the other. It stays frozen, in
        /// evaluation mode or unsaved if the original is.
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
    Param, OfParam
}

cell_newtype! {
    /// A tensor of a model that is saved and moved with it but not trained, such as running statistics. One made by
    /// [`constant`](Self::constant) is not saved either.
    Buffer, ()
}

impl Param {
    /// Stops training this parameter: it gets no gradient and no optimizer changes it, regardless of the declaration in
    /// the model's struct.
    ///
    /// [`ModuleExt::freeze`](crate::ModuleExt::freeze) freezes many parameters, by their paths.
    pub fn freeze(&mut self) {
        self.cell.set_frozen(true);
    }

    /// Trains this parameter from the next step on, even if the model's struct declares it `#[module(frozen)]`.
    pub fn thaw(&mut self) {
        self.cell.set_frozen(false);
    }

    /// `true` if this parameter is not trained.
    ///
    /// The last call of [`freeze`](Self::freeze) or [`thaw`](Self::thaw) decides, else the declaration in the model's
    /// struct when the model was built or last named.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        !self.cell.is_trained()
    }
}

impl Buffer {
    /// A buffer that is moved with the model but not saved, because the model computes it again: a mask, a table of
    /// positions.
    #[must_use]
    pub fn constant(value: Tensor) -> Self {
        Self::of(Cell::new(value, Kind::Constant), Mode::new())
    }

    /// `true` if this buffer is not saved to files.
    #[must_use]
    pub fn is_constant(&self) -> bool {
        self.cell.kind() == Kind::Constant
    }
}
