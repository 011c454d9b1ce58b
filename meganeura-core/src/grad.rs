//! Gradients of the values on a tape: the result of a backward pass, and which gradients it can return.

mod average;
mod clip;
mod outer;
mod parts;
mod products;
mod replay;
mod shards;
mod sweep;
pub mod trained;

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

/// The gradients of one backward pass, as values on the same tape: [`get`](Self::get) has that of a parameter,
/// [`of`](Self::of) that of an input or of any other value.
///
/// Nothing is computed until a gradient is read or an optimizer steps, and a gradient that is never read costs nothing.
/// Gradients can be scaled, clipped, added and differentiated again like any other value. Read or hold a gradient
/// before the optimizer's step: the step keeps only gradients that are held in a `Var`.
///
/// # Several optimizers
///
/// Several optimizers may step different parts of a model with the same gradients, one after the other, as in PyTorch:
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
/// The first step changes parameters that the other gradients depend on. So in the same run it also computes the
/// gradients of all trained parameters that it does not step itself, for all `Grads` of the tape that are alive. A step
/// of the whole model has none to add. A gradient that no optimizer uses still costs its computation. So if only a part
/// of the trained parameters is ever stepped, [freeze](crate::ModuleExt::freeze) the rest while the step is recorded,
/// and drop the `Grads` of losses that are no longer needed.
pub struct Grads {
    tape: Tape,
    cotangents: Rc<RefCell<Cotangents>>,
    /// The parameters that were frozen, by identity.
    frozen: HashSet<u64>,
    /// Path patterns of parameters that may lack a gradient.
    unused: Vec<String>,
    /// The identities of the parameters whose gradients are sums over several micro-batches, if there are any.
    summed: Option<HashSet<u64>>,
    /// The world whose ranks the gradients are averaged over, if they are.
    world: Option<World>,
    /// The rank that has the mean of each gradient, if ranks have different ones.
    shards: Option<Shards>,
}

impl Tape {
    /// Appends the gradient of a scalar with respect to all trained parameters, and to every value that the caller
    /// holds.
    ///
    /// Nothing is appended below that: a frozen part of a model costs nothing unless its input is held in a `Var`.
    ///
    /// Each call sweeps the tape afresh, and nothing accumulates from one call to the next. So two losses can be
    /// differentiated one after the other on one tape, or together as their sum. A gradient is a value like any other
    /// and may be part of a later loss.
    ///
    /// # Errors
    ///
    /// Any error from recording the loss. Fails also if the loss has more than one element or is on another tape, or if
    /// an operation on the way has no gradient rule.
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

    /// Appends the gradients of `Σ y·cotangent`, like [`Tape::backward`].
    ///
    /// # Errors
    ///
    /// Fails like [`Tape::backward`], and if the cotangent does not have the shape of `y`.
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

    /// The gradients found by a sweep from these pairs of a value and its cotangent.
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

    /// `true` if the loss may depend on the parameter, but its gradient was left out because it was frozen.
    #[doc(hidden)]
    pub fn was_frozen(&self, cell: &Cell) -> bool {
        self.frozen.contains(&cell.id())
    }

    /// The gradient of any value of the tape that was held during the backward pass, an input for example; `None` if
    /// the loss does not depend on it.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// # fn main() -> meganeura::Result<()> {
    /// # let device = Device::cpu();
    /// let tape = Tape::new(&device);
    /// let x = tape.input(&Tensor::new(&device, [1.0, -2.0])?); // held until after `backward`
    /// let grads = tape.backward(&x.square().sum())?;
    /// let dx = grads.of(&x).expect("the loss depends on it");
    /// assert_eq!(dx.to_vec()?, [2.0, -4.0]);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "grad")]
    #[must_use]
    pub fn of(&self, x: &Var) -> Option<Var> {
        if !self.tape.same(x.tape()) {
            return None;
        }
        let gradient = self.cotangents.borrow().of(x.id().ok()?);
        gradient.map(|gradient| self.tape.var(gradient))
    }

    /// Allows parameters whose paths match the pattern to have no gradient.
    ///
    /// Patterns are those of [`ModuleExt::freeze`]. This is for layers that a pass drops at random, or heads that it
    /// does not use. An optimizer's step with these gradients, or their accumulation, skips such parameters: their
    /// values, their optimizer state and their update counts stay. Other parameters are stepped as usual.
    ///
    /// Otherwise a missing gradient is an error that names the parameters, since one that is left out by mistake would
    /// never train. The paths are those in the module that is stepped. May be called several times; `"**"` matches all
    /// parameters.
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

    /// `true` if a parameter may lack a gradient. One that was frozen in the backward pass may not, as it would have
    /// one otherwise.
    #[doc(hidden)]
    pub fn may_lack(&self, leaf: &Leaf<'_>) -> bool {
        let is_unused = |pattern: &String| Selection::Pattern(pattern.clone()).selects(leaf);
        !self.was_frozen(leaf.cell()) && self.unused.iter().any(is_unused)
    }

    /// `true` if any trained parameter has a gradient.
    #[doc(hidden)]
    pub fn reach_parameters(&self) -> bool {
        self.tape.cells().iter().any(|cell| cell.is_trained() && self.of_cell(cell).is_some())
    }

    /// The gradient of the parameter with this path; `None` without such a parameter or gradient.
    ///
    /// Parameters get paths from the `init` of a model with `#[derive(Module)]`, from the first optimizer step, and
    /// from `name_parameters`. So a tuple of layers has no paths before its first step; [`named`](Self::named) needs
    /// none. A tied parameter has several paths, and one gradient: the sum.
    #[must_use]
    pub fn by_path(&self, path: &str) -> Option<Var> {
        self.tape.cells().iter().filter(|cell| cell.is_called(path)).find_map(|cell| self.of_cell(cell))
    }

    /// The gradients of a model's parameters, with their paths in the model, in the order of a visit. Parameters
    /// without a gradient are left out.
    ///
    /// # Errors
    ///
    /// [`NoGradient`](ErrorKind::NoGradient) if there are trained parameters and none has a gradient, unless all [may
    /// lack one](Self::allow_unused). Then the gradients are those of another model.
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

    /// The error for a module of which no parameter has a gradient here.
    #[doc(hidden)]
    pub fn none_of(&self, leaves: &[Leaf<'_>]) -> Error {
        let of = |role| leaves.iter().filter(move |leaf| leaf.role == role).map(|leaf| &leaf.path);
        let message = match (of(Role::Trained).next(), of(Role::Frozen).next()) {
            (Some(path), _) => {
                let cells = self.tape.cells();
                let others = match cells.iter().find(|cell| self.of_cell(cell).is_some()).map(|cell| cell.path()) {
                    Some(Some(other)) => format!("other parameters have, such as `{other}`"),
                    Some(None) => "other parameters have".to_owned(),
                    None => "no other parameter has either".to_owned(),
                };
                format!(
                    "no parameter of the module has a gradient, for example `{path}`; {others} (a clone's parameters are not its \
                     original's)"
                )
            }
            (None, Some(_)) => {
                "every parameter of the module is frozen, so there is no gradient; `thaw` some".to_owned()
            }
            (None, None) => "the module has no parameters, so there is no gradient".to_owned(),
        };
        Error::new(ErrorKind::NoGradient, message)
    }

    /// `true` unless some of these gradients are sums over micro-batches, and that of this parameter is not.
    #[doc(hidden)]
    pub fn has_sum_of(&self, cell: &Cell) -> bool {
        self.summed.as_ref().is_none_or(|summed| summed.contains(&cell.id()))
    }

    /// The same gradients, with some parameters' replaced by sums over micro-batches.
    #[must_use]
    #[doc(hidden)]
    pub fn with_sums(mut self, entries: Vec<(Arc<Cell>, Var)>) -> Self {
        self.summed = Some(entries.iter().map(|(cell, _)| cell.id()).collect());
        self.with_entries(entries)
    }

    /// The world whose ranks these gradients are averaged over, if they are.
    #[doc(hidden)]
    pub fn world(&self) -> Option<&World> {
        self.world.as_ref()
    }

    #[doc(hidden)]
    pub fn note_world(&mut self, world: &World) {
        self.world = Some(world.clone());
    }

    /// The rank that has each gradient, if not all ranks have all.
    #[doc(hidden)]
    pub fn shards(&self) -> Option<&Shards> {
        self.shards.as_ref()
    }

    #[doc(hidden)]
    pub fn note_shards(&mut self, shards: Shards) {
        self.shards = Some(shards);
    }

    /// The same gradients, with some parameters' replaced by values computed from them.
    #[must_use]
    #[doc(hidden)]
    pub fn with_entries(self, entries: Vec<(Arc<Cell>, Var)>) -> Self {
        for (cell, gradient) in entries {
            let gradient = gradient.id().expect("what is made from gradients fits");
            self.cotangents.borrow_mut().replace(cell.id(), gradient);
        }
        self
    }
}

/// A copy of the gradients, to be clipped or accumulated separately.
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
