//! The log of layers on a tape: while a forward pass is traced, it notes which layer was entered or left before which
//! node. A layer is known by its place in memory, its name and the tensors that it holds; nothing else of a model is
//! known here.

use super::Tape;
use crate::graph::Graph;
use crate::{TensorType, Var};

/// A layer, or another part of a model, when it is entered.
#[derive(Debug)]
pub(crate) struct EnteredModule {
    /// Its name in the enclosing part, if it has one.
    pub(crate) name: Option<String>,
    pub(crate) place: Place,
    /// The `Box` or `Arc` that points to it, if it was entered through one.
    pub(crate) pointer: Option<Place>,
    /// The tensors and modes that it contains.
    pub(crate) held: Vec<Held>,
    /// The type of its input.
    pub(crate) input: TensorType,
}

/// A value in memory. All three fields are needed to tell parts apart: a struct starts where its first field does, and
/// zero-sized values may have any address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    address: usize,
    size: usize,
    /// The name of its type.
    pub(crate) kind: &'static str,
}

/// A parameter, a buffer or a mode that a part holds.
#[derive(Debug)]
pub(crate) struct Held {
    /// The path within the part.
    pub(crate) path: String,
    /// The address of the `Param`, `Buffer` or `Mode`: its place in the model. No identity says that, since tied
    /// parameters share theirs and modes have none. A model is borrowed while its forward pass is traced, so nothing in
    /// it moves, and equal addresses are one place. A layer made for one call lies elsewhere; `cell` finds its tensors.
    pub(crate) address: usize,
    /// The identity of the tensor, which tied parameters share.
    pub(crate) cell: Option<u64>,
}

impl EnteredModule {
    /// A part without a name and without known contents.
    pub(crate) fn new<M: ?Sized>(part: &M, input: TensorType) -> Self {
        Self { name: None, place: Place::of(part), pointer: None, held: Vec::new(), input }
    }
}

impl Place {
    pub(crate) fn of<T: ?Sized>(value: &T) -> Self {
        let address = std::ptr::from_ref(value).cast::<()>().addr();
        Self { address, size: size_of_val(value), kind: std::any::type_name::<T>() }
    }

    /// `true` if the places are the same. The type behind a `dyn` is unknown and not compared.
    pub(crate) fn is(&self, other: &Self) -> bool {
        let is_type = self.kind == other.kind || self.kind.starts_with("dyn ");
        is_type && (self.address, self.size) == (other.address, other.size)
    }
}

/// An entry of the log, made before the node with this number was recorded.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) node: usize,
    pub(crate) what: What,
}

#[derive(Debug)]
pub(crate) enum What {
    Entered(EnteredModule),
    /// The type of its result, if that is not the last value that it recorded.
    Left(Option<TensorType>),
    /// A value was poisoned.
    Failed,
}

/// The guard of an entered layer, which leaves it on drop. Made by [`enter`](crate::module::enter).
#[must_use = "the part is left when this is dropped"]
#[derive(Debug)]
pub struct Entered {
    tape: Option<Tape>,
    gives: Option<TensorType>,
}

impl Entered {
    /// Sets the layer's result, if the layer records further values after it. By default, its result is the last value
    /// that it records.
    ///
    /// ```
    /// use meganeura::module::enter;
    /// use meganeura::prelude::*;
    ///
    /// /// The input's square, and the sum of that.
    /// #[derive(Module)]
    /// struct Squared;
    ///
    /// impl Squared {
    ///     fn run(&self, x: &Var) -> (Var, Var) {
    ///         let mut entered = enter(self, x);
    ///         let y = x.square();
    ///         entered.gives(&y);
    ///         let sum = y.sum();
    ///         (y, sum)
    ///     }
    /// }
    ///
    /// let summary = (Squared, Relu).summary_by([2, 3], |net, x| {
    ///     let (y, sum) = net.0.run(x);
    ///     net.1.forward(&y) + sum
    /// })?;
    /// assert_eq!(summary.rows()[1].output.shape, Shape::from([2, 3]));
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    pub fn gives(&mut self, y: &Var) {
        self.gives = Some(y.ty());
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(tape) = &self.tape {
            tape.note(What::Left(self.gives));
        }
    }
}

impl Tape {
    /// Starts the log of parts that are entered and left.
    pub(crate) fn trace(&self) {
        self.recording.borrow_mut().trace = Some(Vec::new());
    }

    /// Reads the log together with its graph.
    pub(crate) fn traced<R>(&self, read: impl FnOnce(&[Event], &Graph) -> R) -> R {
        let recording = self.recording.borrow();
        read(recording.trace.as_deref().unwrap_or_default(), &recording.graph)
    }

    /// Logs that a part is entered. `describe` is called only while the tape is traced.
    pub(crate) fn enter(&self, describe: &dyn Fn() -> EnteredModule) -> Entered {
        if self.recording.borrow().trace.is_none() {
            return Entered { tape: None, gives: None };
        }
        self.note(What::Entered(describe()));
        Entered { tape: Some(self.clone()), gives: None }
    }

    pub(super) fn note(&self, what: What) {
        let mut recording = self.recording.borrow_mut();
        let node = recording.graph.nodes().len();
        if let Some(trace) = &mut recording.trace {
            trace.push(Event { node, what });
        }
    }
}
