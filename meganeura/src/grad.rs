//! The reverse sweep: appends gradient operations to the tape, and gathers what belongs to one value into one sum.
//!
//! Names no operation: rules come from `Op::vjp`. Un-broadcasting is the gradient rule of the broadcasting view.
//!
//! The sweep goes only where gradients can be asked for: to parameters that are trained, and to values that the caller holds.
//! Below a frozen part of a model it stops, unless the caller holds what went in.
//!
//! What an operation can make again elementwise, from its operands and small results, the rules of elementwise operations on it
//! get so: there it is fused into what they compute and costs arithmetic, where keeping it would cost memory. The rules of
//! others get the value itself.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use crate::graph::{Source, ValueId};
use crate::module::{Leaf, Module, ModuleExt};
use crate::ops::Op;
use crate::param::Cell;
use crate::tape::{Tape, Var};
use crate::{Error, ErrorKind, Param, Result};

/// The gradients of one backward pass, as values on the same tape.
///
/// Nothing is computed until a gradient is read or an optimizer steps, and what is not read costs nothing: gradients can be
/// scaled, clipped, added and differentiated again like any other value. Read or hold a gradient before the step; the step
/// does not keep gradients that nobody holds.
pub struct Grads {
    tape: Tape,
    /// The cotangent of each value that the loss depends on: names, not holds, so that a step computes only what it needs.
    cotangents: HashMap<ValueId, ValueId>,
    /// The parameters that were frozen, by identity.
    frozen: HashSet<u64>,
    /// Gradients that took the place of a parameter's own, by identity: clipped ones, for example.
    replaced: HashMap<u64, ValueId>,
}

impl Tape {
    /// Appends the gradient of a scalar with respect to all parameters that are trained, and to every value that the caller
    /// holds.
    ///
    /// Nothing is appended for what lies below: a frozen part of a model costs nothing unless its input is held in a `Var`.
    ///
    /// Each call sweeps afresh: nothing accumulates from one call to the next, so two losses can be differentiated one
    /// after the other on one tape, or together as their sum. A gradient is a value like any other and may be part of a
    /// later loss.
    ///
    /// # Errors
    ///
    /// What went wrong while recording the loss; if the loss has more than one element or is on another tape; or if an
    /// operation on the way has no gradient rule.
    #[track_caller]
    pub fn backward(&self, loss: &Var) -> Result<Grads> {
        loss.id()?;
        if loss.shape().elements() != 1 {
            let message = "starts at a scalar; reduce the value with `.sum()` or `.mean()`, or give its cotangent to \
                           `backward_with`";
            let error = Error::new(ErrorKind::Shape, message).in_op("backward").operand(loss.ty(), loss.path());
            return Err(error.at(Location::caller()));
        }
        let one = loss.constant(1.0);
        let seed = if loss.shape().rank() == 0 { one } else { one.expand(loss.shape()) };
        self.backward_with(loss, &seed)
    }

    /// Appends the gradient of `Σ y·cotangent`, as [`Tape::backward`].
    ///
    /// # Errors
    ///
    /// As [`Tape::backward`], and if the cotangent has not the value's shape.
    #[track_caller]
    pub fn backward_with(&self, y: &Var, cotangent: &Var) -> Result<Grads> {
        let (start, seed) = (y.id()?, cotangent.id()?);
        if !self.same(y.tape()) || !self.same(cotangent.tape()) {
            let error =
                Error::new(ErrorKind::Argument, "the value belongs to another tape, which has its own `backward`");
            return Err(error.in_op("backward").at(Location::caller()));
        }
        if cotangent.ty() != y.ty() {
            let error = Error::new(ErrorKind::Shape, "the cotangent must have the value's type").in_op("backward_with");
            let error = error.operand(y.ty(), y.path()).operand(cotangent.ty(), cotangent.path());
            return Err(error.at(Location::caller()));
        }
        let last = self.with_graph(|graph| graph.maker_index(start));
        let wanted = self.wanted(last);
        let mut sweep = Sweep { tape: self, wanted, cotangents: HashMap::from([(start, seed)]), again: HashMap::new() };
        for node in (0..=last).rev() {
            sweep.node(node)?;
        }
        let cotangents = sweep.cotangents;
        let frozen = self.cells().iter().filter(|cell| !cell.is_trained()).map(|cell| cell.id()).collect();
        Ok(Grads { tape: self.clone(), cotangents, frozen, replaced: HashMap::new() })
    }

    /// For each value up to those of node `last`, whether its cotangent leads to a gradient that can be asked for.
    fn wanted(&self, last: usize) -> Vec<bool> {
        let mut wanted = self.differentiated();
        self.with_graph(|graph| {
            for node in &graph.nodes()[..=last] {
                if node.inputs.iter().any(|x| wanted[x.index()]) {
                    node.outputs().for_each(|y| wanted[y.index()] = true);
                }
            }
        });
        wanted
    }
}

struct Sweep<'a> {
    tape: &'a Tape,
    /// Whether a value's cotangent leads anywhere.
    wanted: Vec<bool>,
    cotangents: HashMap<ValueId, ValueId>,
    /// What gradient rules get in the place of values that can be made again.
    again: HashMap<ValueId, ValueId>,
}

impl Sweep<'_> {
    /// Sends the cotangents of a node's results on to its operands.
    fn node(&mut self, index: usize) -> Result<()> {
        let step = self.tape.with_graph(|graph| {
            let node = &graph.nodes()[index];
            match &node.source {
                Source::Op(op)
                    if node.inputs.iter().any(|x| self.wanted[x.index()])
                        && node.outputs().any(|y| self.cotangents.contains_key(&y)) =>
                {
                    Some((op.clone(), node.inputs.clone(), node.outputs().collect::<Vec<_>>()))
                }
                _ => None,
            }
        });
        let Some((op, inputs, outputs)) = step else { return Ok(()) };
        let x: Vec<_> = match op {
            Op::Pointwise(_) => inputs.iter().map(|&v| self.again(v)).collect(),
            Op::View(_) | Op::Kernel(_) => inputs.iter().map(|&v| self.tape.var(v)).collect(),
        };
        let y: Vec<_> = outputs.iter().map(|&v| self.tape.var(v)).collect();
        let dy: Vec<_> = outputs.iter().map(|v| self.cotangents.get(v).map(|&dy| self.tape.var(dy))).collect();
        let here = |error: Error| error.in_op(op.name()).at(self.tape.origin_of(index));
        let dx = self.tape.on_behalf_of(index, || op.vjp(&x, &y, &dy)).map_err(here)?;
        if dx.len() != x.len() {
            let message = format!("the gradient rule gives {} gradients for {} operands", dx.len(), x.len());
            return Err(here(Error::new(ErrorKind::Argument, message)));
        }
        for ((value, x), dx) in inputs.into_iter().zip(&x).zip(dx) {
            let Some(dx) = dx else { continue };
            if !self.tape.same(dx.tape()) {
                let message = "the gradient rule gives a value of another tape";
                return Err(here(Error::new(ErrorKind::Argument, message)));
            }
            if dx.error().is_none() && dx.ty() != x.ty() {
                let message = format!("the gradient rule gives a gradient {} for an operand {}", dx.ty(), x.ty());
                return Err(here(Error::new(ErrorKind::Shape, message)));
            }
            if !self.wanted[value.index()] {
                continue;
            }
            let sum = match self.cotangents.get(&value) {
                Some(&sum) => self.tape.on_behalf_of(index, || self.tape.var(sum) + dx),
                None => dx,
            };
            self.cotangents.insert(value, sum.id()?);
        }
        Ok(())
    }

    /// A value, made again if its operation can do that.
    fn again(&mut self, value: ValueId) -> Var {
        if let Some(&again) = self.again.get(&value) {
            return self.tape.var(again);
        }
        let (node, step) = self.tape.with_graph(|graph| {
            let node = graph.maker(value);
            let step = match &node.source {
                Source::Op(op) if node.first == value => {
                    Some((op.clone(), node.inputs.clone(), node.outputs().collect::<Vec<_>>()))
                }
                _ => None,
            };
            (graph.maker_index(value), step)
        });
        let again = step.and_then(|(op, inputs, outputs)| {
            let vars = |values: Vec<ValueId>| values.into_iter().map(|v| self.tape.var(v)).collect::<Vec<_>>();
            self.tape.on_behalf_of(node, || op.again(&vars(inputs), &vars(outputs)))?.id().ok()
        });
        let again = again.unwrap_or(value);
        self.again.insert(value, again);
        self.tape.var(again)
    }
}

impl Grads {
    /// The tape that the gradients are on.
    #[must_use]
    pub fn tape(&self) -> &Tape {
        &self.tape
    }

    /// The gradient of a parameter; `None` if the loss does not depend on it, or if it was frozen.
    #[must_use]
    pub fn get(&self, param: &Param) -> Option<Var> {
        self.of_cell(param.cell())
    }

    pub(crate) fn of_cell(&self, cell: &Cell) -> Option<Var> {
        let own = || self.cotangents.get(&self.tape.value_of(cell)?);
        self.replaced.get(&cell.id()).or_else(own).map(|&gradient| self.tape.var(gradient))
    }

    /// Whether the loss may depend on it, and its gradient was left out.
    pub(crate) fn was_frozen(&self, cell: &Cell) -> bool {
        self.frozen.contains(&cell.id())
    }

    /// The gradient of any value of the tape that was held during the backward pass; `None` if the loss does not depend on it.
    #[must_use]
    pub fn of(&self, x: &Var) -> Option<Var> {
        if !self.tape.same(x.tape()) {
            return None;
        }
        self.cotangents.get(&x.id().ok()?).map(|&gradient| self.tape.var(gradient))
    }

    /// The gradient of the parameter with this path, among those of parameters that were named: the `init` of a model with
    /// `#[derive(Module)]`, the first optimizer step and `name_parameters` do that. So a tuple of layers has no names before its
    /// first step; [`named`](Self::named) needs none. A tied parameter has several paths, and one gradient: the sum.
    #[must_use]
    pub fn by_path(&self, path: &str) -> Option<Var> {
        self.tape.cells().iter().filter(|cell| cell.is_called(path)).find_map(|cell| self.of_cell(cell))
    }

    /// The gradients in the shape of a model: of each of its parameters that has one, with the path in it, in the order of a
    /// visit.
    #[must_use]
    pub fn named(&self, module: &dyn Module) -> Vec<(String, Var)> {
        let gradient = |leaf: Leaf<'_>| Some((self.get(leaf.param()?)?, leaf.path));
        module.leaves().into_iter().filter_map(gradient).map(|(gradient, path)| (path, gradient)).collect()
    }

    /// The same gradients, with others, made from them, in the place of some parameters'.
    #[must_use]
    pub(crate) fn with_entries(mut self, entries: Vec<(Arc<Cell>, Var)>) -> Self {
        for (cell, gradient) in entries {
            self.replaced.insert(cell.id(), gradient.id().expect("what is made from gradients fits"));
        }
        self
    }
}

impl fmt::Debug for Grads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Grads({} values)", self.cotangents.len())
    }
}
