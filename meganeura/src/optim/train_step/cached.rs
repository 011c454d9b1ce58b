//! The compiled form of a training step, for one structure of its inputs, its parameters and its optimizer.

use std::panic::Location;
use std::sync::{Arc, Weak};

use crate::error::bail;
use crate::module::{At, Module, ModuleExt};
use crate::optim::accumulate::Basis;
use crate::optim::finite::{FiniteCheck, NotFinite, verify};
use crate::optim::group::{Group, settings_within};
use crate::optim::record::{Numbers, RecordedStep, record};
use crate::optim::state::Kept;
use crate::optim::{Optimizer, step};
use crate::param::Cell;
use crate::tape::CompiledStep;
use crate::{Grads, Result, Tensor, TensorType, Var};

/// A step, or the addition of a micro-batch to earlier ones, for one structure.
pub(super) struct CachedStep {
    step: CompiledStep,
    /// The parameters of the module, and whether they were trained.
    parameters: Vec<(Arc<Cell>, bool)>,
    /// The state of the module when the step was recorded.
    sight: Sight,
    /// The number of the closure's results; those of the check come after them.
    results: usize,
    /// The basis of the sums of micro-batches, if there are any.
    basis: Option<Basis>,
    /// The count of numbers that a call passes.
    numbers: usize,
    effect: Effect,
}

/// The effect of a call, besides its results.
enum Effect {
    /// Adds the gradients of these parameters to their sums.
    Adds(Vec<u64>),
    Updates(Update),
}

/// A step of the optimizer.
struct Update {
    structure: Structure,
    numbers: Vec<Numbers>,
    stepped: Vec<Stepped>,
    /// The names of the checked values.
    checked: Vec<String>,
}

/// A parameter that is stepped, and its state, by their identities.
struct Stepped {
    parameter: u64,
    state: Vec<u64>,
    /// Dropped with the state.
    life: Weak<()>,
}

/// The properties of an optimizer that decide what is recorded.
#[derive(PartialEq)]
struct Structure {
    rule: &'static str,
    variant: u64,
    groups: Vec<u64>,
    not_finite: NotFinite,
}

impl Structure {
    fn of(rule: &dyn Optimizer) -> Self {
        let stepper = rule.stepper();
        let groups = stepper.groups.iter().map(Group::id).collect();
        Self { rule: rule.name(), variant: rule.variant(), groups, not_finite: stepper.not_finite }
    }
}

/// The recording of a step, up to the gradients.
pub(super) struct Recorder<'a> {
    pub(super) types: &'a [TensorType],
    /// The loss first.
    pub(super) results: &'a [Var],
    /// The basis of the gradients, if they are sums.
    pub(super) basis: Option<Basis>,
    pub(super) sight: Sight,
}

impl Recorder<'_> {
    /// Adds the gradients to those of earlier micro-batches.
    pub(super) fn addition(
        self,
        optimizer: &mut dyn Optimizer,
        module: &dyn Module,
        grads: &Grads,
    ) -> Result<CachedStep> {
        let mut addition = optimizer.stepper_mut().sums.record(module, grads)?;
        let recorder = Self { basis: Some(std::mem::take(&mut addition.basis)), ..self };
        let (added, updates) = addition.updates();
        recorder.compile(module, grads, &[], updates, Vec::new(), Effect::Adds(added.into_iter().collect()))
    }

    /// Steps along the gradients.
    pub(super) fn update(
        self,
        optimizer: &mut dyn Optimizer,
        module: &dyn Module,
        grads: &Grads,
    ) -> Result<CachedStep> {
        let RecordedStep { updates, stepped, check, mut numbers } =
            record(optimizer, module, grads, self.results.first())?;
        let stepper = optimizer.stepper();
        let state = |cell: Arc<Cell>| {
            let Kept { cells, life, .. } = &stepper.states[&cell.id()];
            let state = cells.iter().map(|cell| cell.id()).collect();
            Stepped { parameter: cell.id(), state, life: Arc::downgrade(life) }
        };
        let stepped = stepped.into_iter().map(state).collect();
        // If they were held, they would keep the tape.
        let words: Vec<Var> = numbers.iter_mut().flat_map(|numbers| std::mem::take(&mut numbers.vars)).collect();
        let checks: Vec<&Var> = check.iter().flat_map(FiniteCheck::vars).collect();
        let checked = check.as_ref().map_or_else(Vec::new, FiniteCheck::names);
        let update = Update { structure: Structure::of(optimizer), numbers, stepped, checked };
        self.compile(module, grads, &checks, updates, words, Effect::Updates(update))
    }

    fn compile(
        mut self,
        module: &dyn Module,
        grads: &Grads,
        checks: &[&Var],
        updates: Vec<(Arc<Cell>, Var)>,
        numbers: Vec<Var>,
        effect: Effect,
    ) -> Result<CachedStep> {
        let wanted: Vec<&Var> = self.results.iter().chain(checks.iter().copied()).collect();
        let mut words = self.basis.as_mut().map_or_else(Vec::new, |basis| std::mem::take(&mut basis.numbers));
        words.extend(numbers);
        let leaves = module.leaves();
        let parameters = leaves.iter().filter(|leaf| leaf.param().is_some()).map(|leaf| Arc::clone(leaf.cell()));
        Ok(CachedStep {
            step: grads.tape().compile_step(self.types, &wanted, updates, &words)?,
            parameters: parameters.map(|cell| (Arc::clone(&cell), cell.is_trained())).collect(),
            sight: self.sight,
            results: self.results.len(),
            basis: self.basis,
            numbers: words.len(),
            effect,
        })
    }
}

/// Everything on a module that a visit shows and that decides a recording: the identity of each tensor, in the order of
/// the visit, and the mode of each place. Modes and shared modules change without `&mut` access to the module.
///
/// Whether parameters are trained is compared by their cells. A module's other fields change through
/// [`module_mut`](super::TrainStep::module_mut) only, which discards the recordings.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Sight(Vec<(Option<u64>, bool)>);

impl Sight {
    pub(super) fn of(module: &dyn Module) -> Self {
        let mut seen = Vec::new();
        module.visit(At::root(), &mut |_, slot| {
            if let Some(mode) = slot.mode() {
                seen.push((slot.cell().map(|cell| cell.id()), mode.is_evaluated()));
            }
        });
        Self(seen)
    }
}

impl CachedStep {
    /// `true` if it can never fit again: the optimizer that it was recorded with is gone, or has loaded another state.
    pub(super) fn is_dead(&self) -> bool {
        match &self.effect {
            Effect::Adds(_) => false,
            Effect::Updates(update) => update.stepped.iter().any(|stepped| stepped.life.strong_count() == 0),
        }
    }

    /// `true` if recording this module with this batch and this optimizer would give the same step; `adds` if it would
    /// add up gradients.
    pub(super) fn fits(&self, inputs: &[&Tensor], sight: &Sight, optimizer: &dyn Optimizer, adds: bool) -> bool {
        let sums = &optimizer.stepper().sums;
        self.step.takes(inputs)
            && self.sight == *sight
            && self.parameters.iter().all(|(cell, is_trained)| cell.is_trained() == *is_trained)
            && self.basis.as_ref().is_none_or(|basis| basis.values(sums).is_some())
            && match &self.effect {
                Effect::Adds(_) => adds,
                Effect::Updates(update) => !adds && self.basis.is_some() == (sums.added > 0) && update.fits(optimizer),
            }
    }

    /// An estimate of the host memory that it takes.
    pub(super) fn host_bytes(&self) -> usize {
        self.step.host_bytes()
    }

    /// Waits for the device where gradients are checked.
    pub(super) async fn call(
        &mut self,
        inputs: &[&Tensor],
        optimizer: &mut dyn Optimizer,
        line: &'static Location<'static>,
    ) -> Result<Vec<Tensor>> {
        let sums = &optimizer.stepper().sums;
        let mut words = self.basis.as_ref().and_then(|basis| basis.values(sums)).unwrap_or_default();
        let Effect::Updates(Update { numbers, stepped, checked, .. }) = &self.effect else {
            let results = self.step.call(inputs, words)?;
            self.count(optimizer);
            return Ok(results);
        };
        for Numbers { members, parameters, .. } in numbers {
            let stepper = optimizer.stepper();
            let settings = settings_within(&stepper.groups, members, stepper.settings)?;
            words.extend(optimizer.numbers(settings, stepper.states[&parameters[0]].steps + 1));
        }
        if words.len() != self.numbers {
            bail!(Argument, "{}: the rule has {} numbers, and had {}", optimizer.name(), words.len(), self.numbers);
        }
        let mut results = self.step.call(inputs, words)?;
        let checks = results.split_off(self.results);
        self.count(optimizer);
        let verdict = verify(checked, &checks).await;
        step::finish(optimizer.stepper_mut(), stepped.iter().map(|stepped| stepped.parameter), verdict, line)?;
        Ok(results)
    }

    /// Records the new counts of the sums of micro-batches.
    fn count(&self, optimizer: &mut dyn Optimizer) {
        let sums = &mut optimizer.stepper_mut().sums;
        match &self.effect {
            Effect::Adds(added) => sums.count(added.iter().copied()),
            Effect::Updates(_) if self.basis.is_none() => {}
            Effect::Updates(_) => sums.clear(),
        }
    }
}

impl Update {
    fn fits(&self, optimizer: &dyn Optimizer) -> bool {
        let stepper = optimizer.stepper();
        let is_known = |Stepped { parameter, state, .. }: &Stepped| {
            let kept = stepper.states.get(parameter);
            kept.is_some_and(|kept| kept.cells.iter().map(|cell| cell.id()).eq(state.iter().copied()))
        };
        let is_alike = |numbers: &Numbers| {
            let mut steps = numbers.parameters.iter().map(|id| stepper.states.get(id).map(|kept| kept.steps));
            let first = steps.next();
            // Rules omit a weight decay of 0.
            let settings = settings_within(&stepper.groups, &numbers.members, stepper.settings);
            let decays = settings.is_ok_and(|settings| settings.weight_decay != 0.0);
            steps.all(|steps| Some(steps) == first) && decays == (numbers.settings.weight_decay != 0.0)
        };
        Structure::of(optimizer) == self.structure
            && self.stepped.iter().all(is_known)
            && self.numbers.iter().all(is_alike)
    }
}
