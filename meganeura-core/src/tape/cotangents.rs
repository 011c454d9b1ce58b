//! The names of cotangents that a backward pass leaves on the tape.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::{Rc, Weak};

use super::{Leaf, Tape, TapeState};
use crate::graph::ValueId;

/// The cotangents of one backward pass. They do not keep values alive as a `Var` does, so a run computes only those
/// that it needs. The tape renames them when it forgets other values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cotangents {
    /// The cotangent of each value.
    own: HashMap<ValueId, ValueId>,
    /// Values that replaced a parameter's own gradient, such as clipped ones, by the parameter's identity.
    replaced: HashMap<u64, ValueId>,
}

impl Cotangents {
    pub(crate) fn new(own: HashMap<ValueId, ValueId>) -> Self {
        Self { own, replaced: HashMap::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.own.len()
    }

    pub(crate) fn of(&self, value: ValueId) -> Option<ValueId> {
        self.own.get(&value).copied()
    }

    /// The gradient of the parameter with this identity. `value` is the parameter on the tape, if it was used.
    pub(crate) fn of_parameter(&self, id: u64, value: Option<ValueId>) -> Option<ValueId> {
        self.replaced.get(&id).copied().or_else(|| self.of(value?))
    }

    pub(crate) fn replace(&mut self, id: u64, gradient: ValueId) {
        self.replaced.insert(id, gradient);
    }

    /// The cotangents of values for which `is_held` returns `true`, and all replaced gradients.
    pub(super) fn named<'a>(&'a self, is_held: impl Fn(ValueId) -> bool + 'a) -> impl Iterator<Item = ValueId> + 'a {
        let own = self.own.iter().filter(move |(value, _)| is_held(**value)).map(|(_, cotangent)| cotangent);
        own.chain(self.replaced.values()).copied()
    }

    /// Renames all values; entries without a new name are dropped.
    pub(super) fn rename(&mut self, renamed: impl Fn(ValueId) -> Option<ValueId>) {
        let own = std::mem::take(&mut self.own).into_iter();
        self.own = own.filter_map(|(value, cotangent)| Some((renamed(value)?, renamed(cotangent)?))).collect();
        let replaced = std::mem::take(&mut self.replaced).into_iter();
        self.replaced = replaced.filter_map(|(id, gradient)| Some((id, renamed(gradient)?))).collect();
    }
}

impl Tape {
    /// Makes the tape keep the named values for as long as the result lives.
    pub(crate) fn register(&self, cotangents: Cotangents) -> Rc<RefCell<Cotangents>> {
        let cotangents = Rc::new(RefCell::new(cotangents));
        let known = &mut self.recording.borrow_mut().cotangents;
        known.retain(|other| other.strong_count() > 0);
        known.push(Rc::downgrade(&cotangents));
        cotangents
    }
}

impl TapeState {
    /// The gradients that a later step may use: those of trained parameters, except parameters that are `stepped` now
    /// or have already changed.
    pub(super) fn other_gradients(&self, stepped: &HashSet<u64>) -> Vec<ValueId> {
        let tables: Vec<_> = self.cotangents.iter().filter_map(Weak::upgrade).collect();
        let mut gradients = Vec::new();
        for leaf in &self.leaves {
            let Leaf::Cell { cell, version, value } = leaf else { continue };
            if stepped.contains(&cell.id()) || !cell.is_trained() || cell.lock().version != *version {
                continue;
            }
            gradients.extend(tables.iter().filter_map(|table| table.borrow().of_parameter(cell.id(), Some(*value))));
        }
        gradients
    }
}
