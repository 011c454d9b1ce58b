//! Training steps that are recorded once.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::sync::Arc;

use super::Optimizer;
use super::finite::{FiniteCheck, NotFinite, verify};
use super::group::settings_within;
use super::record::{Numbers, Recorded, expect_settings, record};
use super::step;
use crate::error::{bail, here};
use crate::module::{Module, ModuleExt};
use crate::param::Cell;
use crate::tape::{CompiledStep, Outputs, Tensors};
use crate::{Error, Grads, Result, Tape, Tensor, TensorType, Var};

/// Compiled steps that are kept: one for the batches of an epoch, one for its last, and a few more.
const KEPT: usize = 8;

/// A training step that is recorded once for each shape of its inputs: forward, loss, backward and update as one call.
///
/// A tape for every step costs the host about a microsecond for each operation, which small models wait for. A `TrainStep` runs its closure
/// when it is called first, keeps the plan, and only binds tensors and numbers from then on. It computes the same bits.
///
/// The closure gets the batch, a [`Var`] or a tuple or an array of them, and gives the loss, or a tuple or an array that begins with
/// the loss: what follows are values to read along with it, such as a metric. [`call`](Self::call) takes the tensors and gives as many.
///
/// ```
/// use meganeura::optim::{Schedule, TrainStep};
/// use meganeura::prelude::*;
///
/// # fn main() -> meganeura::Result<()> {
/// let device = Device::cpu();
/// let net = (Linear::new(4, 16), Relu, Linear::new(16, 3)).init(&device, Seed::new(1))?;
/// let mut optimizer = AdamW::new(1e-2);
/// let mut step = TrainStep::new(&net, |net, (x, labels): &(Var, Var)| net.forward(x).cross_entropy(labels))
///     .gradients(|net, grads| grads.clip_norm(net, 1.0));
/// let x = Tensor::full(&device, [2, 4], 0.5)?;
/// let labels = Tensor::indices(&device, [2], &[0, 2])?;
/// let schedule = Schedule::cosine(1e-2, 10, 0.0);
/// let mut losses = Vec::new();
/// for number in 0..10 {
///     optimizer.set_lr(schedule.at(number));
///     losses.push(step.call(&mut optimizer, (&x, &labels))?.item()?);
/// }
/// assert!(losses[9] < losses[0]);
/// # Ok(())
/// # }
/// ```
///
/// # What is seen and what is kept
///
/// * Parameters, buffers and the optimizer's state are **seen** as they are in each call: one may evaluate, save, load or average
///   the model in between. So are the learning rate, weight decay, groups' numbers, and whatever else the [`Rule`](super::Rule) computes from them.
/// * Each call draws **new random numbers**, those that the next [`Tape::new`] would draw.
/// * It is **recorded anew** for other shapes, when parameters are frozen or thawed, for another optimizer, and where the optimizer's groups,
///   or what it does about NaN, change.
/// * Everything else that the closures read is **kept** as it was when they ran: tensors that they bring onto the tape, numbers, the mode of
///   parts of the model. What is to change from step to step is an input. Reading a value inside is an error, as there is none yet.
///
/// # Speed
///
/// See `BENCHMARKS.md`: `bench --compile`.
pub struct TrainStep<'a, M: Deref, I, O> {
    module: M,
    loss: Box<LossFn<'a, M::Target, I, O>>,
    gradients: Box<GradientsFn<'a, M::Target>>,
    compiled: Vec<Compiled>,
    recorded: u64,
}

type LossFn<'a, M, I, O> = dyn FnMut(&M, &I) -> O + 'a;
type GradientsFn<'a, M> = dyn FnMut(&M, Grads) -> Result<Grads> + 'a;

/// A step for one structure.
struct Compiled {
    step: CompiledStep,
    structure: Structure,
    /// The parameters of the module, and whether they were trained.
    parameters: Vec<(Arc<Cell>, bool)>,
    numbers: Vec<Numbers>,
    /// For each parameter that is stepped, its identity and those of its state.
    stepped: Vec<(u64, Vec<u64>)>,
    /// How many results the closure gave; the check's come after them.
    results: usize,
    /// What the check looks at.
    checked: Vec<String>,
}

/// What of an optimizer decides what is recorded.
#[derive(PartialEq)]
struct Structure {
    rule: &'static str,
    groups: usize,
    not_finite: NotFinite,
}

impl Structure {
    fn of(rule: &dyn Optimizer) -> Self {
        let stepper = rule.stepper();
        Self { rule: rule.name(), groups: stepper.groups.len(), not_finite: stepper.not_finite }
    }
}

impl<'a, M, I, O> TrainStep<'a, M, I, O>
where
    M: Deref<Target: Module + Sized>,
    I: Outputs,
    O: Outputs,
{
    /// A step of a module's parameters down the loss that the closure records, given the module and the batch. The module is borrowed, or
    /// owned by a pointer: `&net`, `&mut net`, a `Box`, an `Rc`.
    #[must_use]
    pub fn new(module: M, loss: impl FnMut(&M::Target, &I) -> O + 'a) -> Self {
        let gradients = Box::new(|_: &M::Target, grads| Ok(grads));
        Self { module, loss: Box::new(loss), gradients, compiled: Vec::new(), recorded: 0 }
    }

    /// What to do with the gradients before the optimizer gets them, such as [`Grads::clip_norm`].
    #[must_use]
    pub fn gradients(mut self, change: impl FnMut(&M::Target, Grads) -> Result<Grads> + 'a) -> Self {
        self.gradients = Box::new(change);
        self
    }

    /// The module.
    #[must_use]
    pub fn module(&self) -> &M::Target {
        &self.module
    }

    /// The module, to freeze parts of it or to set values.
    #[must_use]
    pub fn module_mut(&mut self) -> &mut M::Target
    where
        M: DerefMut,
    {
        &mut self.module
    }

    /// How often the closures have run.
    #[must_use]
    pub fn recorded(&self) -> u64 {
        self.recorded
    }

    /// Takes a step with this batch; the loss and what else the closure gave, as tensors on the device.
    ///
    /// A GPU is given the work and this returns; reading the loss waits for it. An optimizer that [checks](Optimizer::check_finite)
    /// its gradients waits at once, and looks at the loss as well.
    ///
    /// # Errors
    ///
    /// Those of recording, of [`Tape::backward`] and of [`Optimizer::step`]; if the batch is on another device than the model.
    #[track_caller]
    pub fn call(
        &mut self,
        optimizer: &mut dyn Optimizer,
        batch: <I::Tensors as Tensors>::Refs<'_>,
    ) -> Result<O::Tensors> {
        let line = Location::caller();
        here(|| {
            let inputs = I::Tensors::list(batch);
            expect_settings(optimizer)?;
            let at = match self.compiled.iter().position(|compiled| compiled.fits(&inputs, optimizer)) {
                Some(at) => at,
                None => {
                    let compiled = self.compile(&inputs, optimizer)?;
                    if self.compiled.len() == KEPT {
                        self.compiled.remove(0);
                    }
                    self.compiled.push(compiled);
                    self.compiled.len() - 1
                }
            };
            let results = self.compiled[at].call(&inputs, optimizer, line)?;
            Ok(O::Tensors::collect(&mut results.into_iter()))
        })
    }

    fn compile(&mut self, inputs: &[&Tensor], optimizer: &mut dyn Optimizer) -> Result<Compiled> {
        let Some(first) = inputs.first() else { bail!(Argument, "a training step needs a batch") };
        let types: Vec<TensorType> = inputs.iter().map(|tensor| tensor.ty()).collect();
        let (tape, vars) = Tape::of_step(first.device(), &types)?;
        self.recorded += 1;
        let results = (self.loss)(&self.module, &I::collect(&mut vars.into_iter())).vars();
        let Some(loss) = results.first() else { bail!(Argument, "a training step needs a loss") };
        let grads = (self.gradients)(&self.module, tape.backward(loss)?)?;
        let Recorded { updates, stepped, check, numbers } = record(optimizer, &*self.module, &grads, Some(loss))?;
        let wanted: Vec<&Var> = results.iter().chain(check.iter().flat_map(FiniteCheck::vars)).collect();
        let words: Vec<Var> = numbers.iter().flat_map(|numbers| numbers.vars.iter().cloned()).collect();
        let step = tape.compile_step(&types, &wanted, updates, &words)?;
        let stepper = optimizer.stepper();
        let state = |cell: Arc<Cell>| {
            let cells = &stepper.states[&cell.id()].cells;
            (cell.id(), cells.iter().map(|cell| cell.id()).collect())
        };
        let leaves = self.module.leaves();
        let parameters = leaves.iter().filter(|leaf| leaf.param().is_some()).map(|leaf| Arc::clone(leaf.cell()));
        Ok(Compiled {
            step,
            structure: Structure::of(optimizer),
            parameters: parameters.map(|cell| (Arc::clone(&cell), cell.is_trained())).collect(),
            numbers,
            stepped: stepped.into_iter().map(state).collect(),
            results: results.len(),
            checked: check.map_or_else(Vec::new, |check| check.names()),
        })
    }
}

impl Compiled {
    /// Whether recording the step with this batch and this optimizer would give the same.
    fn fits(&self, inputs: &[&Tensor], optimizer: &dyn Optimizer) -> bool {
        let stepper = optimizer.stepper();
        let types = inputs.iter().map(|tensor| tensor.ty());
        let is_known = |(id, state): &(u64, Vec<u64>)| {
            let kept = stepper.states.get(id);
            kept.is_some_and(|kept| kept.cells.iter().map(|cell| cell.id()).eq(state.iter().copied()))
        };
        let is_alike = |numbers: &Numbers| {
            let mut steps = numbers.parameters.iter().map(|id| stepper.states.get(id).map(|kept| kept.steps));
            let first = steps.next();
            // Rules leave out what a weight decay of 0 would do.
            let settings = settings_within(&stepper.groups, &numbers.members, stepper.settings);
            let decays = settings.is_ok_and(|settings| settings.weight_decay != 0.0);
            steps.all(|steps| Some(steps) == first) && decays == (numbers.settings.weight_decay != 0.0)
        };
        types.eq(self.step.types().iter().copied())
            && inputs.iter().all(|tensor| self.step.device().takes(tensor))
            && Structure::of(optimizer) == self.structure
            && self.parameters.iter().all(|(cell, is_trained)| cell.is_trained() == *is_trained)
            && self.stepped.iter().all(is_known)
            && self.numbers.iter().all(is_alike)
    }

    fn call(
        &mut self,
        inputs: &[&Tensor],
        optimizer: &mut dyn Optimizer,
        line: &'static Location<'static>,
    ) -> Result<Vec<Tensor>> {
        let mut words = Vec::new();
        for Numbers { members, vars, parameters, .. } in &self.numbers {
            let stepper = optimizer.stepper();
            let settings = settings_within(&stepper.groups, members, stepper.settings)?;
            let numbers = optimizer.numbers(settings, stepper.states[&parameters[0]].steps + 1);
            if numbers.len() != vars.len() {
                let message =
                    format!("{}: the rule has {} numbers, and had {}", optimizer.name(), numbers.len(), vars.len());
                return Err(Error::new(crate::ErrorKind::Argument, message));
            }
            words.extend(numbers);
        }
        let mut results = self.step.call(inputs, words)?;
        let checks = results.split_off(self.results);
        let verdict = if checks.is_empty() { Ok(()) } else { verify(&self.checked, |k| checks[k].item()) };
        step::finish(optimizer.stepper_mut(), self.stepped.iter().map(|(id, _)| *id), verdict, line)?;
        Ok(results)
    }
}

impl<M: Deref, I, O> fmt::Debug for TrainStep<'_, M, I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TrainStep({} compiled)", self.compiled.len())
    }
}
