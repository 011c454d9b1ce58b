//! What optimizers remember of each parameter, and how that is saved.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Rule;
use super::step::listed;
use crate::error::bail;
use crate::module::{Leaf, Module, ModuleExt};
use crate::param::{Cell, Kind};
use crate::{Result, Tensor};

/// Everything that an optimizer remembers from its steps, by name: `stem.weight.m` is what the optimizer calls `m` of the
/// parameter at `stem.weight`, and the number `stem.weight.steps` is how often that one was updated. The number `lr` is the
/// learning rate.
///
/// Settings that the program gives, like betas and groups, are not among it.
#[derive(Clone, Debug, Default)]
pub struct OptimizerState {
    /// What the optimizer [calls itself](Rule::name): what one remembers means nothing to another.
    pub optimizer: String,
    /// Momenta and the like, of the shapes of their parameters.
    pub tensors: BTreeMap<String, Tensor>,
    /// Counts and the learning rate.
    pub numbers: BTreeMap<String, f64>,
}

/// What is kept for one parameter.
#[derive(Default)]
pub(super) struct Kept {
    /// Tensors of the parameter's shape, zeros at first.
    pub(super) cells: Vec<Arc<Cell>>,
    /// How often the parameter was updated.
    pub(super) steps: u64,
}

impl Kept {
    /// Makes what is kept of a parameter that is new, and moves that of one that went to another device.
    pub(super) fn prepare(&mut self, parameter: &Cell, count: usize) -> Result<()> {
        let tensor = parameter.value();
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

/// A name of what is kept for a parameter. A model that is one parameter has no path to it.
fn named(leaf: &Leaf<'_>, name: &str) -> String {
    if leaf.path.is_empty() { name.to_owned() } else { format!("{}.{name}", leaf.path) }
}

pub(super) fn save(rule: &(impl Rule + ?Sized), module: &dyn Module) -> OptimizerState {
    let mut state = OptimizerState { optimizer: rule.name().to_owned(), ..OptimizerState::default() };
    state.numbers.insert(LR.to_owned(), rule.stepper().settings.lr);
    for leaf in module.leaves() {
        let Some(Kept { cells, steps }) = rule.stepper().states.get(&leaf.cell().id()) else { continue };
        #[expect(clippy::cast_precision_loss, reason = "nobody makes 2^53 steps")]
        state.numbers.insert(named(&leaf, STEPS), *steps as f64);
        for (name, cell) in rule.state(&leaf).iter().zip(cells) {
            state.tensors.insert(named(&leaf, name), cell.value());
        }
    }
    state
}

pub(super) fn load(rule: &mut (impl Rule + ?Sized), module: &dyn Module, state: &OptimizerState) -> Result<()> {
    if state.optimizer != rule.name() {
        bail!(Checkpoint, "the state is of the optimizer `{}`, and this one is `{}`", state.optimizer, rule.name());
    }
    let Some(&lr) = state.numbers.get(LR) else {
        bail!(Checkpoint, "{}: the number `{LR}` is missing from the state", rule.name());
    };
    let mut known = BTreeSet::from([LR.to_owned()]);
    let mut loaded = Vec::new();
    for leaf in module.leaves().iter().filter(|leaf| leaf.param().is_some()) {
        let name = named(leaf, STEPS);
        let kept = match state.numbers.get(&name) {
            None => Kept::default(),
            Some(&steps) => {
                let names: Vec<_> = rule.state(leaf).iter().map(|name| named(leaf, name)).collect();
                let tensors = names.iter().map(|name| tensor(leaf, name, state));
                let cells = tensors.map(|tensor| Ok(Cell::new(tensor?, Kind::Buffer))).collect::<Result<_>>()?;
                known.extend(names);
                Kept { cells, steps: count(&name, steps)? }
            }
        };
        known.insert(name);
        loaded.push((leaf.cell().id(), kept));
    }
    let names = state.tensors.keys().chain(state.numbers.keys());
    let unknown: Vec<_> = names.filter(|name| !known.contains(*name)).collect();
    if !unknown.is_empty() {
        let (own, names) = (rule.name(), listed(&unknown));
        bail!(Checkpoint, "the state has {names}, which this model and {own} with these settings do not have");
    }
    let stepper = rule.stepper_mut();
    stepper.settings.lr = lr;
    stepper.states.extend(loaded);
    Ok(())
}

fn count(name: &str, number: f64) -> Result<u64> {
    if !(number >= 0.0 && number.fract() == 0.0 && number < 2f64.powi(53)) {
        bail!(Checkpoint, "the number `{name}` is {number}, which is no count");
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
    use crate::optim::{Adam, Optimizer, Sgd};
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
    fn what_is_kept_has_names() {
        let (mut net, mut sgd) = (net(), Sgd::new(0.25).momentum(0.5));
        assert_eq!(sgd.state_of(&net).numbers, BTreeMap::from([("lr".to_owned(), 0.25)]));
        step(&mut sgd, &mut net);
        let state = sgd.state_of(&net);
        let velocities: Vec<_> = state.tensors.iter().map(|(name, v)| (&**name, v.to_vec().unwrap())).collect();
        assert_eq!(velocities, [("0.velocity", vec![2.0, 4.0]), ("1.0.velocity", vec![6.0])]);
        let numbers: Vec<_> = state.numbers.iter().map(|(name, &number)| (&**name, number)).collect();
        assert_eq!(numbers, [("0.steps", 1.0), ("1.0.steps", 1.0), ("lr", 0.25)]);
        // It is a snapshot.
        step(&mut sgd, &mut net);
        assert_eq!(state.tensors["1.0.velocity"].to_vec().unwrap(), [6.0]);
        // Of a model that is one parameter, names have no path.
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
        let cases: [(Spoil<'_>, &str); 7] = [
            (&|state| state.optimizer = "adamw".into(), "is of the optimizer `adamw`, and this one is `adam`"),
            (&|state| _ = state.numbers.remove("lr"), "`lr` is missing"),
            (&|state| _ = state.tensors.remove("0.m"), "`0.m` is missing"),
            (&|state| _ = state.tensors.insert("0.m".into(), short.clone()), "`0.m` is f32[1] in the state"),
            (&|state| _ = state.tensors.insert("2.m".into(), short.clone()), "the state has `2.m`"),
            (&|state| _ = state.numbers.remove("0.steps"), "the state has `0.m`, `0.v`"),
            (&|state| _ = state.numbers.insert("0.steps".into(), 0.5), "`0.steps` is 0.5, which is no count"),
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
}
