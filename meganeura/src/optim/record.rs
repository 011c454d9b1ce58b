//! The recording of a step, whatever the rule: finds the trained parameters, their gradients and their state, and
//! applies the rule.

use std::collections::HashMap;
use std::sync::Arc;

use super::finite::{FiniteCheck, NotFinite};
use super::group::{Classes, Settings, settings_within};
use super::rule::{Given, Rule, expect_not_negative};
use super::state::{GRADIENT_SUM, Kept};
use crate::error::bail;
use crate::grad::trained::{Trained, expect_gradients};
use crate::module::{Leaf, Module, ModuleExt};
use crate::param::Cell;
use crate::world::Shards;
use crate::{Grads, Result, Var};

/// A step that is recorded and has yet to run.
pub(super) struct RecordedStep {
    /// The new values of parameters and their state.
    pub(super) updates: Vec<(Arc<Cell>, Var)>,
    /// The parameters, in the order of the module.
    pub(super) stepped: Vec<Arc<Cell>>,
    pub(super) check: Option<FiniteCheck>,
    pub(super) numbers: Vec<Numbers>,
}

/// The rule's numbers for parameters of one class with the same number of updates.
pub(super) struct Numbers {
    /// For each group, whether it has these parameters.
    pub(super) members: Vec<bool>,
    pub(super) settings: Settings,
    pub(super) vars: Vec<Var>,
    /// The identities of the parameters.
    pub(super) parameters: Vec<u64>,
}

/// Refuses settings that are invalid for every rule.
pub(super) fn expect_settings(rule: &(impl Rule + ?Sized)) -> Result<Settings> {
    let settings = rule.stepper().settings;
    expect_not_negative(rule.name(), "learning rate", settings.lr)?;
    expect_not_negative(rule.name(), "weight decay", settings.weight_decay)?;
    rule.check()?;
    Ok(settings)
}

/// Refuses gradients that give a parameter to another rank than the one that keeps its state. All ranks do so.
fn expect_owners(rule: &(impl Rule + ?Sized), trained: &[Trained], shards: Option<&Shards>) -> Result<()> {
    let Some(known) = &rule.stepper().shards else { return Ok(()) };
    let owner = |shards: &Shards, trained: &Trained| shards.owner(trained.cell.id());
    let has_moved = |trained: &&Trained| {
        let now = shards.and_then(|shards| owner(shards, trained));
        owner(known, trained).is_some_and(|before| now != Some(before))
    };
    match trained.iter().find(has_moved) {
        None => Ok(()),
        Some(Trained { path, .. }) => bail!(
            Argument,
            "{}: the optimizer state of `{path}` would move to another rank, because the trained parameters or the averaging \
             changed; before this step, call `whole_state_of` on every rank and `load_state` with its result",
            rule.name()
        ),
    }
}

/// Prepares the state of every parameter that this rank owns.
fn prepare_state(
    rule: &mut (impl Rule + ?Sized),
    leaves: &[Leaf<'_>],
    trained: &[Trained],
    shards: Option<&Shards>,
) -> Result<()> {
    for Trained { cell, leaf, .. } in trained {
        let names = rule.state(&leaves[*leaf]);
        if names.contains(&GRADIENT_SUM) {
            bail!(
                Argument,
                "{}: `{GRADIENT_SUM}` holds the sum of micro-batches; name the state of the rule otherwise",
                rule.name()
            );
        }
        let is_own = shards.is_none_or(|shards| shards.is_own(cell.id()));
        let kept = rule.stepper_mut().states.entry(cell.id()).or_default();
        if is_own {
            kept.prepare(cell, names.len())?;
        } else {
            kept.leave_to_owner();
        }
    }
    match (&mut rule.stepper_mut().shards, shards) {
        (Some(known), Some(shards)) => known.extend(shards),
        (known, Some(shards)) => *known = Some(shards.clone()),
        (_, None) => {}
    }
    Ok(())
}

/// The rule's new values of a parameter's state, and last of the parameter itself, each with the old value.
fn replaced(rule: &(impl Rule + ?Sized), given: Given<'_>, path: &str) -> Result<Vec<(Var, Var)>> {
    let (new_w, new_state) = rule.update(&given);
    let Given { w, state, .. } = given;
    if new_state.len() != state.len() {
        bail!(Argument, "{}: the rule gives {} tensors of state for {}", rule.name(), new_state.len(), state.len());
    }
    let pairs: Vec<_> = new_state.into_iter().zip(state).chain([(new_w, w)]).collect();
    for (new, old) in &pairs {
        new.id().map_err(|error| error.context(path))?;
        if new.ty() != old.ty() || !old.tape().same(new.tape()) {
            bail!(Shape, "{}: the rule gives {} in the place of {} of `{path}`", rule.name(), new.ty(), old.ty());
        }
    }
    Ok(pairs)
}

/// Records a step with these gradients. A check covers the loss as well as the gradients.
pub(super) fn record(
    rule: &mut (impl Rule + ?Sized),
    module: &dyn Module,
    grads: &Grads,
    loss: Option<&Var>,
) -> Result<RecordedStep> {
    let default = expect_settings(rule)?;
    let leaves = module.leaves();
    let classes = Classes::new(&rule.stepper().groups, &leaves)?;
    let trained = expect_gradients(&leaves, grads)?;
    let shards = grads.shards();
    expect_owners(rule, &trained, shards)?;
    prepare_state(rule, &leaves, &trained, shards)?;
    let tape = grads.tape();
    let is_checked = rule.stepper().not_finite != NotFinite::Unchecked;
    // If one rank's step is held back, those of all are.
    let of_all = loss.zip(grads.world()).map(|(loss, world)| loss.all_mean(world));
    let check = is_checked.then(|| FiniteCheck::new(tape, &trained, of_all.as_ref().or(loss), shards));
    // Parameters of one class with the same number of updates share their numbers.
    let mut known: HashMap<(usize, u64), usize> = HashMap::new();
    let mut numbers: Vec<Numbers> = Vec::new();
    let mut stepped = Vec::with_capacity(trained.len());
    let mut updates = Vec::new();
    // For all parameters, their new values on this rank.
    let mut values = Vec::with_capacity(trained.len());
    // Takes the gradients by value, so that the run does not keep those that nobody holds.
    for Trained { cell, path, dw, leaf } in trained {
        let Kept { cells, steps, .. } = &rule.stepper().states[&cell.id()];
        let (class, members) = classes.of(leaf);
        let at = match known.get(&(class, *steps)) {
            Some(&at) => at,
            None => {
                let settings = settings_within(&rule.stepper().groups, members, default)?;
                let vars = rule.numbers(settings, steps + 1).into_iter().map(|number| tape.scalar(number)).collect();
                let (members, parameters) = (members.to_vec(), Vec::new());
                numbers.push(Numbers { members, settings, vars, parameters });
                known.insert((class, *steps), numbers.len() - 1);
                numbers.len() - 1
            }
        };
        numbers[at].parameters.push(cell.id());
        if shards.is_some_and(|shards| !shards.is_own(cell.id())) {
            // Not read, but every rank takes part in the exchanges that compute the gradient.
            values.push(dw);
            stepped.push(cell);
            continue;
        }
        let Numbers { settings, vars, .. } = &numbers[at];
        let state = cells.iter().map(|cell| tape.cell(cell)).collect();
        let given = Given { leaf: &leaves[leaf], w: tape.cell(&cell), dw, settings: *settings, state, numbers: vars };
        let parameter = cell.id();
        for (cell, (new, old)) in cells.iter().chain([&cell]).cloned().zip(replaced(rule, given, &path)?) {
            let gated = check.as_ref().map_or_else(|| new.clone(), |check| check.gate(&new, &old));
            // All ranks share the parameter; its state is this rank's own.
            if shards.is_some() && cell.id() == parameter {
                values.push(gated);
            } else {
                updates.push((cell, gated));
            }
        }
        stepped.push(cell);
    }
    if let Some(shards) = shards {
        let parameters: Vec<_> = stepped.iter().map(|cell| cell.id()).collect();
        let values = shards.exchange_from_owners(&parameters, &values.iter().collect::<Vec<_>>());
        updates.extend(stepped.iter().cloned().zip(values));
    }
    if let Some(check) = &check {
        tape.gate_buffers(|new, old| check.gate(new, old));
    }
    Ok(RecordedStep { updates, stepped, check, numbers })
}
