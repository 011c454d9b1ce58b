//! The state that optimizers keep for each parameter, and its form in a file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Optimizer, Rule};
use crate::error::bail;
use crate::grad::trained::listed;
use crate::module::{Leaf, Module, ModuleExt};
use crate::param::{Cell, Kind};
use crate::{Result, Tensor};

/// Everything that an optimizer remembers from its steps, by name.
///
/// `stem.weight.m` is the tensor `m` of the parameter at `stem.weight`, and the number `stem.weight.steps` counts the
/// updates of that parameter. The number `lr` is the learning rate, and `skipped` counts the steps that [were
/// skipped](super::Optimizer::skipped). While micro-batches wait for their step, `accumulated` is [their
/// number](super::Optimizer::accumulated), and `stem.weight.gradient_sum` holds their sum. Counts of 0 are left out.
///
/// Settings that the program gives, like betas and groups, are not part of it.
#[derive(Clone, Debug, Default)]
pub struct OptimizerState {
    /// The [name](Rule::name) of the optimizer: a state means nothing to another one.
    pub optimizer: String,
    /// Momenta, sums and the like, with the shapes of their parameters.
    pub tensors: BTreeMap<String, Tensor>,
    /// Counts and the learning rate.
    pub numbers: BTreeMap<String, f64>,
}

/// The state of one parameter.
#[derive(Default)]
pub(super) struct Kept {
    /// Tensors of the parameter's shape, initially zeros.
    pub(super) cells: Vec<Arc<Cell>>,
    /// The number of updates of the parameter; for a sum, the number of gradients in it.
    pub(super) steps: u64,
    /// Tells other holders of the cells that these have become useless.
    pub(super) life: Arc<()>,
}

impl Kept {
    /// Drops the state that another rank keeps.
    pub(super) fn leave_to_owner(&mut self) {
        if !self.cells.is_empty() {
            *self = Self { steps: self.steps, ..Self::default() };
        }
    }

    /// Creates the state of a new parameter, and moves that of a parameter that went to another device.
    pub(super) fn prepare(&mut self, parameter: &Cell, count: usize) -> Result<()> {
        let tensor = parameter.value();
        self.cells.truncate(count);
        while self.cells.len() < count {
            self.cells.push(Cell::new(Tensor::zeros(tensor.device(), tensor.shape())?, Kind::Buffer));
        }
        for cell in &self.cells {
            let state = cell.value();
            if !state.device().same(tensor.device()) {
                cell.set(state.to_device(tensor.device())?);
            }
        }
        Ok(())
    }
}

const LR: &str = "lr";
const STEPS: &str = "steps";
const SKIPPED: &str = "skipped";
const ACCUMULATED: &str = "accumulated";
/// The name for the sums of micro-batches, which no rule's state may have.
pub(super) const GRADIENT_SUM: &str = "gradient_sum";

/// The name of a parameter's state. A model that is a single parameter has no path to it.
fn named(leaf: &Leaf<'_>, name: &str) -> String {
    if leaf.path.is_empty() { name.to_owned() } else { format!("{}.{name}", leaf.path) }
}

/// The state of all ranks.
pub(super) fn save_whole(rule: &(impl Rule + ?Sized), module: &dyn Module) -> Result<OptimizerState> {
    let own = save(rule, module);
    let names = |leaf: &Leaf<'_>| rule.state(leaf).iter().map(|name| named(leaf, name)).collect();
    match &rule.stepper().shards {
        Some(shards) => super::shards::gather(shards, module, names, own),
        None => Ok(own),
    }
}

pub(super) fn save(rule: &(impl Rule + ?Sized), module: &dyn Module) -> OptimizerState {
    let stepper = rule.stepper();
    let mut state = OptimizerState { optimizer: rule.name().to_owned(), ..OptimizerState::default() };
    state.numbers.insert(LR.to_owned(), stepper.settings.lr);
    #[expect(clippy::cast_precision_loss, reason = "nobody makes 2^53 steps")]
    let counts = [(SKIPPED, stepper.skipped as f64), (ACCUMULATED, stepper.sums.added as f64)];
    let counts = counts.into_iter().filter(|(_, count)| *count > 0.0);
    state.numbers.extend(counts.map(|(name, count)| (name.to_owned(), count)));
    for leaf in module.leaves() {
        if let Some(Kept { cells, .. }) = stepper.sums.cells.get(&leaf.cell().id()).filter(|kept| kept.steps > 0) {
            state.tensors.insert(named(&leaf, GRADIENT_SUM), cells[0].value());
        }
        // A parameter that was never updated has no state.
        let kept = stepper.states.get(&leaf.cell().id()).filter(|kept| kept.steps > 0);
        let Some(Kept { cells, steps, .. }) = kept else { continue };
        #[expect(clippy::cast_precision_loss, reason = "nobody makes 2^53 steps")]
        state.numbers.insert(named(&leaf, STEPS), *steps as f64);
        for (name, cell) in rule.state(&leaf).iter().zip(cells) {
            state.tensors.insert(named(&leaf, name), cell.value());
        }
    }
    state
}

/// A state that fits an optimizer and a model, in the form in which they take it.
struct Fitting {
    lr: f64,
    skipped: u64,
    accumulated: u64,
    /// By the identities of the parameters.
    states: Vec<(u64, Kept)>,
    sums: Vec<(u64, Option<Kept>)>,
}

impl Fitting {
    fn new(rule: &(impl Rule + ?Sized), module: &dyn Module, state: &OptimizerState) -> Result<Self> {
        if state.optimizer != rule.name() {
            bail!(Checkpoint, "the state is of the optimizer `{}`, and this one is `{}`", state.optimizer, rule.name());
        }
        let Some(&lr) = state.numbers.get(LR) else {
            bail!(Checkpoint, "{}: the number `{LR}` is missing from the state", rule.name());
        };
        // From a changed file, for example: a step with it would fail or spoil the model.
        if !(lr.is_finite() && lr >= 0.0) {
            bail!(Checkpoint, "{}: the number `{LR}` is {lr} in the state, which is not a learning rate", rule.name());
        }
        let number = |name: &str| state.numbers.get(name).map_or(Ok(0), |&number| count(name, number));
        let (skipped, accumulated) = (number(SKIPPED)?, number(ACCUMULATED)?);
        let mut known = BTreeSet::from([LR, SKIPPED, ACCUMULATED].map(str::to_owned));
        let (mut states, mut sums) = (Vec::new(), Vec::new());
        for leaf in module.leaves().iter().filter(|leaf| leaf.param().is_some()) {
            let cell = |name: &String| Ok(Cell::new(tensor(leaf, name, state)?, Kind::Buffer));
            let name = named(leaf, STEPS);
            let kept = match state.numbers.get(&name) {
                None => Kept::default(),
                Some(&steps) => {
                    let names: Vec<_> = rule.state(leaf).iter().map(|name| named(leaf, name)).collect();
                    let cells = names.iter().map(cell).collect::<Result<_>>()?;
                    known.extend(names);
                    Kept { cells, steps: count(&name, steps)?, ..Kept::default() }
                }
            };
            known.insert(name);
            states.push((leaf.cell().id(), kept));
            // `None` if the parameter was frozen or unused in between.
            let name = named(leaf, GRADIENT_SUM);
            let sum = (accumulated > 0 && state.tensors.contains_key(&name)).then(|| cell(&name)).transpose()?;
            known.extend(sum.is_some().then_some(name));
            sums.push((
                leaf.cell().id(),
                sum.map(|sum| Kept { cells: vec![sum], steps: accumulated, ..Kept::default() }),
            ));
        }
        if accumulated > 0 && sums.iter().all(|(_, sum)| sum.is_none()) {
            bail!(Checkpoint, "the sums of {accumulated} micro-batches are missing from the state: `…{GRADIENT_SUM}`");
        }
        let names = state.tensors.keys().chain(state.numbers.keys());
        let unknown: Vec<_> = names.filter(|name| !known.contains(*name)).collect();
        if !unknown.is_empty() {
            let (own, names) = (rule.name(), listed(&unknown));
            bail!(Checkpoint, "the state has {names}, which this model and {own} with these settings do not have");
        }
        Ok(Self { lr, skipped, accumulated, states, sums })
    }
}

/// Fails unless an optimizer could [load](super::Optimizer::load_state) a state.
pub(crate) fn fits(optimizer: &dyn Optimizer, module: &dyn Module, state: &OptimizerState) -> Result<()> {
    Fitting::new(optimizer, module, state).map(drop)
}

/// `true` if an optimizer has stepped parameters, but none of this module: its state belongs to another model.
pub(crate) fn is_of_another(optimizer: &dyn Optimizer, module: &dyn Module) -> bool {
    let states = &optimizer.stepper().states;
    !states.is_empty() && !module.leaves().iter().any(|leaf| states.contains_key(&leaf.cell().id()))
}

pub(super) fn load(rule: &mut (impl Rule + ?Sized), module: &dyn Module, state: &OptimizerState) -> Result<()> {
    let Fitting { lr, skipped, accumulated, states, sums } = Fitting::new(rule, module, state)?;
    let stepper = rule.stepper_mut();
    stepper.settings.lr = lr;
    stepper.shards = None;
    stepper.states.extend(states);
    stepper.sums.added = accumulated;
    stepper.sums.module = None;
    for (id, sum) in sums {
        match sum {
            Some(sum) => stepper.sums.cells.insert(id, sum),
            None => stepper.sums.cells.remove(&id),
        };
    }
    (stepper.skipped, stepper.last_skip) = (skipped, None);
    Ok(())
}

fn count(name: &str, number: f64) -> Result<u64> {
    if !(number >= 0.0 && number.fract() == 0.0 && number < 2f64.powi(53)) {
        bail!(Checkpoint, "the number `{name}` is {number}, which is not a count");
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
    Ok(number as u64)
}

/// A tensor of the state, on the device of its parameter.
fn tensor(leaf: &Leaf<'_>, name: &str, state: &OptimizerState) -> Result<Tensor> {
    let Some(tensor) = state.tensors.get(name) else {
        bail!(Checkpoint, "the tensor `{name}` is missing from the state");
    };
    let parameter = leaf.value();
    if tensor.shape() != parameter.shape() || !tensor.ty().dtype.is_float() {
        bail!(Checkpoint, "`{name}` is {} in the state, its parameter is {}", tensor.ty(), parameter.ty());
    }
    tensor.to_device(parameter.device()).map_err(|error| error.context(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::{Accumulate, Adam, Sgd};
    use crate::{Device, ErrorKind, Param, Tape};

    type Net = (Param, Vec<Param>);

    fn net() -> Net {
        let param = |data: &[f32]| Param::new(Tensor::from_slice(&Device::cpu(), [data.len()], data).unwrap());
        (param(&[1.0, 2.0]), vec![param(&[3.0])])
    }

    fn step(optimizer: &mut dyn Optimizer, net: &mut Net) {
        let tape = Tape::new(&Device::cpu());
        let loss = tape.param(&net.0).square().sum() + tape.param(&net.1[0]).square().sum();
        let grads = tape.backward(&loss).unwrap();
        optimizer.step(net, &grads).unwrap();
    }

    #[test]
    fn state_entries_are_named_by_path() {
        let (mut net, mut sgd) = (net(), Sgd::new(0.25).momentum(0.5));
        assert_eq!(sgd.state_of(&net).numbers, BTreeMap::from([("lr".to_owned(), 0.25)]));
        step(&mut sgd, &mut net);
        let state = sgd.state_of(&net);
        let velocities: Vec<_> = state.tensors.iter().map(|(name, v)| (&**name, v.to_vec().unwrap())).collect();
        assert_eq!(velocities, [("0.velocity", vec![2.0, 4.0]), ("1.0.velocity", vec![6.0])]);
        let numbers: Vec<_> = state.numbers.iter().map(|(name, &number)| (&**name, number)).collect();
        assert_eq!(numbers, [("0.steps", 1.0), ("1.0.steps", 1.0), ("lr", 0.25)]);
        // The state is a snapshot.
        step(&mut sgd, &mut net);
        assert_eq!(state.tensors["1.0.velocity"].to_vec().unwrap(), [6.0]);
        // If the model is a single parameter, names have no path.
        let mut w = net.0.clone();
        let tape = Tape::new(&Device::cpu());
        let grads = tape.backward(&tape.param(&w).sum()).unwrap();
        sgd.step(&mut w, &grads).unwrap();
        assert_eq!(sgd.state_of(&w).tensors.keys().collect::<Vec<_>>(), ["velocity"]);
    }

    #[test]
    fn a_state_that_does_not_fit_changes_nothing() {
        let (mut net, mut adam) = (net(), Adam::new(0.1));
        step(&mut adam, &mut net);
        let good = adam.state_of(&net);
        let short = Tensor::zeros(&Device::cpu(), [1]).unwrap();
        type Spoil<'a> = &'a dyn Fn(&mut OptimizerState);
        let cases: [(Spoil<'_>, &str); 14] = [
            (&|state| state.optimizer = "adamw".into(), "is of the optimizer `adamw`, and this one is `adam`"),
            (&|state| _ = state.numbers.remove("lr"), "`lr` is missing"),
            (
                &|state| _ = state.numbers.insert("lr".into(), f64::NAN),
                "`lr` is NaN in the state, which is not a learning",
            ),
            (&|state| _ = state.numbers.insert("lr".into(), f64::INFINITY), "`lr` is inf in the state"),
            (&|state| _ = state.numbers.insert("lr".into(), f64::NEG_INFINITY), "`lr` is -inf in the state"),
            (&|state| _ = state.numbers.insert("lr".into(), -1e-3), "`lr` is -0.001 in the state"),
            (&|state| _ = state.tensors.remove("0.m"), "`0.m` is missing"),
            (&|state| _ = state.tensors.insert("0.m".into(), short.clone()), "`0.m` is f32[1] in the state"),
            (&|state| _ = state.tensors.insert("2.m".into(), short.clone()), "the state has `2.m`"),
            (&|state| _ = state.numbers.remove("0.steps"), "the state has `0.m`, `0.v`"),
            (&|state| _ = state.numbers.insert("0.steps".into(), 0.5), "`0.steps` is 0.5, which is not a count"),
            (&|state| _ = state.numbers.insert("skipped".into(), -1.0), "`skipped` is -1, which is not a count"),
            (&|state| _ = state.numbers.insert("accumulated".into(), 2.0), "sums of 2 micro-batches are missing"),
            (&|state| _ = state.tensors.insert("0.gradient_sum".into(), short.clone()), "has `0.gradient_sum`"),
        ];
        for (spoil, message) in cases {
            let mut bad = good.clone();
            bad.numbers.insert("lr".into(), 7.0);
            spoil(&mut bad);
            let error = adam.load_state(&net, &bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Checkpoint);
            assert!(error.to_string().contains(message), "{error}");
            assert_eq!((adam.lr(), adam.state_of(&net).numbers), (0.1, good.numbers.clone()));
        }
        assert!(Sgd::new(0.1).load_state(&net, &good).is_err(), "another optimizer's");
    }

    /// A parameter that is frozen and was never updated is in no state, however often the state is saved and loaded.
    #[test]
    fn a_loaded_state_can_be_saved() {
        let (mut net, mut sgd) = (net(), Sgd::new(0.25).momentum(0.5));
        net.1[0].freeze();
        step(&mut sgd, &mut net);
        let state = sgd.state_of(&net);
        let mut other = Sgd::new(0.25).momentum(0.5);
        for _ in 0..2 {
            other.load_state(&net, &state).unwrap();
            let again = other.state_of(&net);
            assert_eq!(again.numbers, state.numbers);
            assert_eq!(again.tensors.keys().collect::<Vec<_>>(), ["0.velocity"]);
            other.load_state(&net, &again).unwrap();
        }
    }

    #[test]
    fn skipped_steps_are_counted_on() {
        let (mut net, mut sgd) = (net(), Sgd::new(0.25).skip_not_finite(true));
        net.0.set(Tensor::full(&Device::cpu(), [2], f32::NAN).unwrap()).unwrap();
        step(&mut sgd, &mut net);
        let mut other = Sgd::new(0.25);
        other.load_state(&net, &sgd.state_of(&net)).unwrap();
        assert_eq!((sgd.skipped(), other.skipped()), (1, 1));
        other.load_state(&net, &Sgd::new(0.25).state_of(&net)).unwrap();
        assert_eq!(other.skipped(), 0);
    }

    #[test]
    fn sums_are_there_while_they_wait() {
        let (net, mut sgd, how) = (net(), Sgd::new(0.25), Accumulate::sum(2));
        for expected in [vec!["0.gradient_sum", "1.0.gradient_sum"], vec![]] {
            let tape = Tape::new(&Device::cpu());
            let loss = tape.param(&net.0).square().sum() + tape.param(&net.1[0]).square().sum();
            sgd.accumulate(&net, tape.backward(&loss).unwrap(), how).unwrap();
            let state = sgd.state_of(&net);
            assert_eq!(state.tensors.keys().collect::<Vec<_>>(), expected);
            assert_eq!(state.numbers.contains_key("accumulated"), !expected.is_empty());
        }
    }
}
