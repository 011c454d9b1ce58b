//! What a recording notes of the parts of a model that record into it, while somebody asks: which part was entered
//! before which node, and which was left. A tape knows nothing else of models.

use super::Tape;
use crate::graph::Graph;
use crate::{Device, Inputs, Result, TensorType, Var};

/// A part of a model that is entered.
#[derive(Debug)]
pub(crate) struct Part {
    /// Its name in the part around it, where that says one.
    pub(crate) name: Option<String>,
    /// The name of its type.
    pub(crate) kind: &'static str,
    /// Its address and size: what tells that a part and one named around it are the same.
    pub(crate) place: (usize, usize),
    /// What it holds: the path within the part, and the identity of a parameter, a buffer or a mode.
    pub(crate) held: Vec<(String, Identity)>,
    /// The type of its input.
    pub(crate) input: TensorType,
}

/// What tells a tensor or a mode of a model from all others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Identity {
    Cell(u64),
    /// The address of a mode.
    Mode(usize),
}

/// What happened, before the node of this number was recorded.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) node: usize,
    pub(crate) what: What,
}

#[derive(Debug)]
pub(crate) enum What {
    Entered(Part),
    /// With the type of what it gives, if that is not the last value that it recorded.
    Left(Option<TensorType>),
    /// A value was poisoned.
    Failed,
}

/// A part that is left when this is dropped. Of a tape that is not traced, nothing.
#[must_use = "the part is left when this is dropped"]
#[derive(Debug)]
pub struct Entered {
    tape: Option<Tape>,
    gives: Option<TensorType>,
}

impl Entered {
    /// Says what the part gives, if that is not the last value that it records.
    pub(crate) fn gives(&mut self, y: &Var) {
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
    /// An inference tape with inputs that have no tensors: nothing on it can be computed, and nothing need be.
    #[track_caller]
    pub(crate) fn declared<I: Inputs>(device: &Device, inputs: &I) -> Result<(Self, Vec<TensorType>, I::Vars)> {
        let tape = Self::inference(device);
        let types = inputs.types(device.precision().dtype());
        let mut declared = Vec::with_capacity(types.len());
        for (k, &ty) in types.iter().enumerate() {
            declared.push(tape.declare(k, ty)?);
        }
        let vars = inputs.vars(&mut declared.into_iter());
        Ok((tape, types, vars))
    }

    /// Notes from here on which parts are entered and left.
    pub(crate) fn trace(&self) {
        self.recording.borrow_mut().trace = Some(Vec::new());
    }

    /// What was noted, with the graph that it is about.
    pub(crate) fn traced<R>(&self, read: impl FnOnce(&[Event], &Graph) -> R) -> R {
        let recording = self.recording.borrow();
        read(recording.trace.as_deref().unwrap_or_default(), &recording.graph)
    }

    /// Notes that a part is entered, which is described only if somebody wants to know.
    pub(crate) fn enter(&self, describe: impl FnOnce() -> Part) -> Entered {
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
