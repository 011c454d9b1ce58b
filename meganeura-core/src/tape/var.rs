//! A value on a tape, as the caller holds it.

use std::cell::Cell;
use std::fmt;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use super::Tape;
use crate::error::{here, here_async};
use crate::graph::ValueId;
use crate::ops::{Op, View};
#[cfg(not(target_family = "wasm"))]
use crate::wait::block_on;
use crate::{Buffer, DType, Error, ErrorKind, Param, Result, Shape, Tensor, TensorType};

/// A value on a [`Tape`], which layers take and return. Cheap to clone.
///
/// Nothing is computed until a value is read ([`Var::to_tensor`], [`Var::item`]) or an optimizer steps. An operation
/// whose operands do not fit returns a poisoned `Var`. The first call that needs a value returns the error, with the
/// caller's line.
#[derive(Clone)]
pub struct Var {
    tape: Tape,
    ty: TensorType,
    state: VarState,
}

#[derive(Clone)]
pub(crate) enum VarState {
    Live(Rc<Handle>),
    Poisoned(Error),
}

/// Lives as long as the caller holds the value.
pub(crate) struct Handle {
    /// The value's name, which changes when the tape forgets others.
    pub(crate) id: Cell<ValueId>,
}

impl Var {
    pub(super) fn new(tape: Tape, ty: TensorType, state: VarState) -> Self {
        Self { tape, ty, state }
    }

    pub(crate) fn state(&self) -> &VarState {
        &self.state
    }

    /// The value's name on its tape, or the error that poisoned it.
    #[doc(hidden)]
    pub fn id(&self) -> Result<ValueId> {
        match &self.state {
            VarState::Live(handle) => Ok(handle.id.get()),
            VarState::Poisoned(error) => Err(error.clone()),
        }
    }

    #[doc(hidden)]
    pub fn path(&self) -> Option<Arc<str>> {
        self.id().ok().and_then(|id| self.tape.path_of(id))
    }

    /// The largest of these indices, except ignored ones, if they come from the caller and so are known without a
    /// read-back.
    #[doc(hidden)]
    pub fn largest_index(&self, ignored: Option<u32>) -> Option<u32> {
        self.tape.largest_index(self.id().ok()?, ignored)
    }

    /// Notes that these are indices of `count` classes or rows of an operation, or the ignored index.
    #[track_caller]
    pub(crate) fn note_range(&self, op: &'static str, count: usize, ignored: Option<u32>) {
        if let Ok(value) = self.id() {
            self.tape.note_range(value, op, count, ignored);
        }
    }

    /// The tape that this value is on.
    #[must_use]
    pub fn tape(&self) -> &Tape {
        &self.tape
    }

    /// The element type and shape.
    #[must_use]
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// The extents along each axis.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.ty.shape
    }

    /// The type of each element.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// The error of an operation that led to this value, if there was one.
    #[must_use]
    #[track_caller]
    pub fn error(&self) -> Option<Error> {
        here(|| self.id()).err()
    }

    /// The value, poisoned by an error.
    #[must_use]
    #[track_caller]
    #[doc(hidden)]
    pub fn fail(&self, error: Error) -> Self {
        match &self.state {
            VarState::Poisoned(_) => self.clone(),
            VarState::Live(_) => self.tape.poisoned(self.ty, error.at(Location::caller())),
        }
    }

    /// Poisons the value with an error, for an operation or a layer that refuses it as an operand.
    ///
    /// The first call that needs a value returns the error, with the caller's line, `op`, this operand's type and, if
    /// it is a parameter, its path.
    ///
    /// ```
    /// use meganeura::ErrorKind;
    /// use meganeura::prelude::*;
    ///
    /// fn halves(x: &Var) -> Var {
    ///     match x.shape().dims() {
    ///         [rows, width] if width % 2 == 0 => x.reshape([*rows, 2, width / 2]),
    ///         _ => x.refuse("halves", ErrorKind::Shape, "takes rows of an even width"),
    ///     }
    /// }
    ///
    /// let device = Device::cpu();
    /// let x = Tape::new(&device).input(&Tensor::zeros(&device, [2, 3])?);
    /// let error = halves(&x).relu().to_vec().unwrap_err();
    /// assert!(error.to_string().starts_with("halves: takes rows of an even width\n  operand 0: f32[2, 3]"));
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn refuse(&self, op: &'static str, kind: ErrorKind, message: impl Into<String>) -> Self {
        let error = Error::new(kind, message).in_op(op).operand(self.ty(), self.path());
        self.fail(error.at(Location::caller()))
    }

    /// Puts a parameter on this value's tape.
    #[must_use]
    #[track_caller]
    pub fn param(&self, param: &Param) -> Self {
        self.tape.param(param)
    }

    /// Puts a model's buffer on this value's tape.
    #[must_use]
    #[track_caller]
    pub fn buffer(&self, buffer: &Buffer) -> Self {
        self.tape.buffer(buffer)
    }

    /// Appends an operation with one result.
    #[track_caller]
    #[doc(hidden)]
    pub fn record(&self, op: impl Into<Op>, x: &[&Self]) -> Self {
        self.tape.record(op.into(), x, Location::caller()).swap_remove(0)
    }

    /// Appends an operation with `N` results; all poisoned if one is.
    #[track_caller]
    pub(crate) fn record_many<const N: usize>(&self, op: impl Into<Op>, x: &[&Self]) -> [Self; N] {
        let results = self.tape.record(op.into(), x, Location::caller());
        std::array::from_fn(|k| results[k.min(results.len() - 1)].clone())
    }

    /// Appends an operation; one poisoned result if it does not fit.
    #[track_caller]
    pub(crate) fn record_all(&self, op: impl Into<Op>, x: &[&Self]) -> Vec<Self> {
        self.tape.record(op.into(), x, Location::caller()).into_vec()
    }

    /// Appends an elementwise operation after broadcasting its operands to one shape, as NumPy does.
    #[track_caller]
    pub(crate) fn record_broadcast(&self, op: impl Into<Op>, x: &[&Self]) -> Self {
        let shape = x.iter().try_fold(Shape::SCALAR, |shape, var| shape.broadcast(&var.shape()));
        let Some(shape) = shape.filter(|shape| x.iter().any(|var| var.shape() != *shape)) else {
            return self.record(op, x);
        };
        let location = Location::caller();
        let expand = |var: &Self| match var.shape() == shape {
            true => var.clone(),
            false => self.tape.record(View::Expand(shape).into(), &[var], location).swap_remove(0),
        };
        let x: SmallVec<[_; 3]> = x.iter().map(|var| expand(var)).collect();
        self.record(op, &x.iter().collect::<SmallVec<[_; 3]>>())
    }

    /// The value as a tensor. Computes all other held values in the same run.
    ///
    /// Read a loss after the optimizer's step, which computes it along with everything else. Reading it before the step
    /// runs the forward pass on its own, and the step runs it again.
    ///
    /// # Errors
    ///
    /// Any error from recording, and errors of the device. [`StaleTape`](crate::ErrorKind::StaleTape) if a parameter
    /// has changed since.
    #[track_caller]
    pub fn to_tensor(&self) -> Result<Tensor> {
        here(|| self.tape.tensor_of(self.id()?))
    }

    /// The value's numbers, in row-major order. Waits for the device.
    ///
    /// # Errors
    ///
    /// Fails like [`Var::to_tensor`].
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        block_on(self.to_vec_async())
    }

    /// Like [`Var::to_vec`], without blocking the thread.
    ///
    /// # Errors
    ///
    /// Fails like [`Var::to_tensor`].
    #[track_caller]
    pub fn to_vec_async(&self) -> impl Future<Output = Result<Vec<f32>>> {
        here_async(async { self.to_tensor()?.to_vec_async().await })
    }

    /// The number of a one-element value, such as a loss. Waits for the device.
    ///
    /// # Errors
    ///
    /// Fails if there are more elements, or like [`Var::to_tensor`].
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    pub fn item(&self) -> Result<f32> {
        block_on(self.item_async())
    }

    /// Like [`Var::item`], without blocking the thread.
    ///
    /// # Errors
    ///
    /// Fails like [`Var::item`].
    #[track_caller]
    pub fn item_async(&self) -> impl Future<Output = Result<f32>> {
        here_async(async { self.to_tensor()?.item_async().await })
    }
}

impl fmt::Debug for Var {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            VarState::Live(handle) => write!(f, "Var({:?}: {})", handle.id.get(), self.ty),
            VarState::Poisoned(error) => write!(f, "Var(poisoned: {error})"),
        }
    }
}
