//! Gradients of a tape's values: what a backward pass gives, and who may ask it for what.

mod products;
mod replay;
mod sweep;

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;

use crate::error::here;
use crate::graph::ValueId;
use crate::module::{Leaf, Module, ModuleExt, Role, Selection};
use crate::param::Cell;
use crate::tape::{Cotangents, Tape, Var};
use crate::world::{Shards, World};
use crate::{Error, ErrorKind, Param, Result};

/// The gradients of one backward pass, as values on the same tape.
///
/// Nothing is computed until a gradient is read or an optimizer steps, and what is not read costs nothing: gradients
/// can be scaled, clipped, added and differentiated again like any other value. Read or hold a gradient before the
/// step; the step does not keep the gradients that it goes along, unless somebody holds them.
///
/// # Several optimizers
///
/// Optimizers may step different parts of a model along the same gradients, one after the other, as in PyTorch:
///
/// ```
/// use meganeura::prelude::*;
///
/// # fn main() -> meganeura::Result<()> {
/// let device = Device::cpu();
/// let mut net = (Linear::new(4, 8), Linear::new(8, 1)).init(&device, Seed::new(1))?;
/// let (mut slow, mut fast) = (Sgd::new(1e-3).momentum(0.9), AdamW::new(1e-2));
/// let tape = Tape::new(&device);
/// let loss = net.forward(&tape.input(&Tensor::full(&device, [2, 4], 1.0)?)).square().mean();
/// let grads = tape.backward(&loss)?;
/// slow.step(&mut net.0, &grads)?;
/// fast.step(&mut net.1, &grads)?;
/// # Ok(())
/// # }
/// ```
///
/// The first step changes parameters that the other gradients depend on. So it computes these gradients along, those of
/// all trained parameters that it does not step itself, for as many `Grads` of the tape as somebody holds. A step of
/// the whole model has none to compute. If only a part of what is trained is ever stepped,
/// [freeze](crate::ModuleExt::freeze) the rest while the step is recorded, or drop the `Grads` of losses that are done
/// with: a gradient that nobody steps along costs its computation.
pub struct Grads {
    tape: Tape,
    cotangents: Rc<RefCell<Cotangents>>,
    /// The parameters that were frozen, by identity.
    frozen: HashSet<u64>,
    /// Patterns of the paths of parameters that need no gradient.
    unused: Vec<String>,
    /// The parameters whose gradients are those of several micro-batches, by identity, if any are.
    summed: Option<HashSet<u64>>,
    /// The world whose ranks they are the mean of, if they are.
    world: Option<World>,
    /// Which rank has the mean of which parameter's, if not all have all.
    shards: Option<Shards>,
}

impl Tape {
    /// Appends the gradient of a scalar with respect to all parameters that are trained, and to every value that the
    /// caller holds.
    ///
    /// Nothing is appended for what lies below: a frozen part of a model costs nothing unless its input is held in a
    /// `Var`.
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
        here(|| loss.id())?;
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
        let (start, seed) = here(|| Ok((y.id()?, cotangent.id()?)))?;
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
        here(|| self.sweep_from(&[(start, seed)]))
    }

    /// The gradients that a sweep from these cotangents finds, each with the value that it is one of.
    fn sweep_from(&self, seeds: &[(ValueId, ValueId)]) -> Result<Grads> {
        let cotangents = sweep::sweep(self, 0, seeds, self.differentiated())?;
        let frozen = self.cells().iter().filter(|cell| !cell.is_trained()).map(|cell| cell.id()).collect();
        Ok(Grads {
            tape: self.clone(),
            cotangents: self.register(Cotangents::new(cotangents)),
            frozen,
            unused: Vec::new(),
            summed: None,
            world: None,
            shards: None,
        })
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
        let gradient = self.cotangents.borrow().of_parameter(cell.id(), self.tape.value_of(cell));
        gradient.map(|gradient| self.tape.var(gradient))
    }

    /// Whether the loss may depend on it, and its gradient was left out.
    pub(crate) fn was_frozen(&self, cell: &Cell) -> bool {
        self.frozen.contains(&cell.id())
    }

    /// The gradient of any value of the tape that was held during the backward pass; `None` if the loss does not depend
    /// on it.
    #[must_use]
    pub fn of(&self, x: &Var) -> Option<Var> {
        if !self.tape.same(x.tape()) {
            return None;
        }
        let gradient = self.cotangents.borrow().of(x.id().ok()?);
        gradient.map(|gradient| self.tape.var(gradient))
    }

    /// Lets parameters be without a gradient where their paths match the pattern, as for [`ModuleExt::freeze`]: layers
    /// that a pass leaves out at random, heads that it does not use. An optimizer's step along these gradients, or an
    /// accumulation of them, leaves such parameters as they are, with what it remembers of them and the count of their
    /// updates; the others are stepped as ever.
    ///
    /// Without this they are an error, which names them: a parameter that is left out by mistake would never train. The
    /// paths are those in the module that is stepped. May be called several times; `"**"` stands for all parameters.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// # fn main() -> meganeura::Result<()> {
    /// let device = Device::cpu();
    /// let mut heads = [Linear::new(4, 3), Linear::new(4, 5)].init(&device, Seed::new(1))?;
    /// let mut optimizer = AdamW::new(1e-3);
    /// for task in [0, 1, 0] {
    ///     let tape = Tape::new(&device);
    ///     let x = tape.input(&Tensor::full(&device, [2, 4], 1.0)?);
    ///     let loss = heads[task].forward(&x).square().mean();
    ///     let grads = tape.backward(&loss)?.allow_unused("*.weight").allow_unused("*.bias");
    ///     optimizer.step(&mut heads, &grads)?;
    /// }
    /// assert_eq!(optimizer.state_of(&heads).numbers["0.weight.steps"], 2.0);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn allow_unused(mut self, pattern: impl Into<String>) -> Self {
        self.unused.push(pattern.into());
        self
    }

    /// `true` if a parameter may be without a gradient. One that the backward pass found frozen may not: it would have
    /// one.
    pub(crate) fn may_lack(&self, leaf: &Leaf<'_>) -> bool {
        let is_unused = |pattern: &String| Selection::Pattern(pattern.clone()).selects(leaf);
        !self.was_frozen(leaf.cell()) && self.unused.iter().any(is_unused)
    }

    /// `true` if any trained parameter has a gradient.
    pub(crate) fn reach_parameters(&self) -> bool {
        self.tape.cells().iter().any(|cell| cell.is_trained() && self.of_cell(cell).is_some())
    }

    /// The gradient of the parameter with this path, among those of parameters that were named: the `init` of a model
    /// with `#[derive(Module)]`, the first optimizer step and `name_parameters` do that. So a tuple of layers has no
    /// names before its first step; [`named`](Self::named) needs none. A tied parameter has several paths, and one
    /// gradient: the sum.
    #[must_use]
    pub fn by_path(&self, path: &str) -> Option<Var> {
        self.tape.cells().iter().filter(|cell| cell.is_called(path)).find_map(|cell| self.of_cell(cell))
    }

    /// The gradients in the shape of a model: of each of its parameters that has one, with the path in it, in the order
    /// of a visit.
    ///
    /// # Errors
    ///
    /// [`NoGradient`](ErrorKind::NoGradient) if there are parameters to train, and none has a gradient, unless all
    /// [may lack one](Self::allow_unused): they are another model's gradients.
    #[track_caller]
    pub fn named(&self, module: &dyn Module) -> Result<Vec<(String, Var)>> {
        here(|| {
            let leaves = module.leaves();
            let gradient = |leaf: &Leaf<'_>| Some((leaf.path.clone(), self.get(leaf.param()?)?));
            let named: Vec<_> = leaves.iter().filter_map(gradient).collect();
            match named.is_empty() && leaves.iter().any(|leaf| leaf.role == Role::Trained && !self.may_lack(leaf)) {
                true => Err(self.none_of(&leaves)),
                false => Ok(named),
            }
        })
    }

    /// The error for a module none of whose parameters has a gradient here.
    pub(crate) fn none_of(&self, leaves: &[Leaf<'_>]) -> Error {
        let of = |role| leaves.iter().filter(move |leaf| leaf.role == role).map(|leaf| &leaf.path);
        let message = match (of(Role::Trained).next(), of(Role::Frozen).next()) {
            (Some(path), _) => {
                let cells = self.tape.cells();
                let others = match cells.iter().find(|cell| self.of_cell(cell).is_some()).map(|cell| cell.path()) {
                    Some(Some(path)) => format!("others, such as `{path}`"),
                    Some(None) => "others".to_owned(),
                    None => "none".to_owned(),
                };
                format!(
                    "none of the module's parameters has a gradient, `{path}` for one; the gradients are of {others} (a clone's \
                     parameters are not its original's)"
                )
            }
            (None, Some(_)) => {
                "every parameter of the module is frozen, so there is no gradient; `thaw` some".to_owned()
            }
            (None, None) => "the module has no parameters, so there is no gradient".to_owned(),
        };
        Error::new(ErrorKind::NoGradient, message)
    }

    /// `true` unless others of these gradients are of several micro-batches, and the one of this parameter is not.
    pub(crate) fn has_sum_of(&self, cell: &Cell) -> bool {
        self.summed.as_ref().is_none_or(|summed| summed.contains(&cell.id()))
    }

    /// The same gradients, with those of several micro-batches in the place of some parameters'.
    #[must_use]
    pub(crate) fn with_sums(mut self, entries: Vec<(Arc<Cell>, Var)>) -> Self {
        self.summed = Some(entries.iter().map(|(cell, _)| cell.id()).collect());
        self.with_entries(entries)
    }

    /// The world whose ranks these are the mean of, if they are.
    pub(crate) fn world(&self) -> Option<&World> {
        self.world.as_ref()
    }

    pub(crate) fn note_world(&mut self, world: &World) {
        self.world = Some(world.clone());
    }

    /// Who has which of these, if not all ranks have all.
    pub(crate) fn shards(&self) -> Option<&Shards> {
        self.shards.as_ref()
    }

    pub(crate) fn note_shards(&mut self, shards: Shards) {
        self.shards = Some(shards);
    }

    /// The same gradients, with others, made from them, in the place of some parameters'.
    #[must_use]
    pub(crate) fn with_entries(self, entries: Vec<(Arc<Cell>, Var)>) -> Self {
        for (cell, gradient) in entries {
            let gradient = gradient.id().expect("what is made from gradients fits");
            self.cotangents.borrow_mut().replace(cell.id(), gradient);
        }
        self
    }
}

/// The same gradients once more, to be clipped or accumulated apart from these.
impl Clone for Grads {
    fn clone(&self) -> Self {
        let cotangents = self.tape.register(self.cotangents.borrow().clone());
        let (unused, summed) = (self.unused.clone(), self.summed.clone());
        let (world, shards) = (self.world.clone(), self.shards.clone());
        Self { tape: self.tape.clone(), cotangents, frozen: self.frozen.clone(), unused, summed, world, shards }
    }
}

impl fmt::Debug for Grads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Grads({} values)", self.cotangents.borrow().len())
    }
}
