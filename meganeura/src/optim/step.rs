//! What a step is, whatever the rule: find the trained parameters, their gradients and their state; apply the rule; run.

use std::array;
use std::collections::HashMap;
use std::sync::Arc;

use super::finite::FiniteCheck;
use super::group::{Classes, Group, Settings};
use crate::error::bail;
use crate::module::{Leaf, Module, ModuleExt, Role};
use crate::param::{Cell, Kind};
use crate::{Error, ErrorKind, Grads, Result, Tensor, Var};

/// The state that an optimizer keeps for each parameter, and how it steps.
#[derive(Default)]
pub(super) struct Stepper {
    /// By the identity of the parameter.
    states: HashMap<u64, State>,
    pub(super) check_finite: bool,
    pub(super) groups: Vec<Group>,
}

/// What is kept for one parameter.
#[derive(Default)]
struct State {
    /// Tensors of the parameter's shape: momentum, second moment.
    cells: Vec<Arc<Cell>>,
    /// How often the parameter was updated.
    steps: u64,
}

/// What a rule is given: a parameter, its gradient, `N` tensors of state, zeros at first, the number of this update, from 1
/// on, and the settings of its class of parameters.
pub(super) struct Given<const N: usize> {
    pub(super) w: Var,
    pub(super) dw: Var,
    pub(super) state: [Var; N],
    pub(super) t: u64,
    pub(super) class: usize,
    pub(super) settings: Settings,
}

/// A parameter to be updated.
pub(super) struct Trained {
    pub(super) cell: Arc<Cell>,
    pub(super) path: String,
    pub(super) dw: Var,
    /// Its place among the module's leaves.
    leaf: usize,
}

impl Stepper {
    /// Updates each trained parameter, and its state, to what `rule` says. The loss is checked along with the gradients.
    pub(super) fn step<const N: usize>(
        &mut self,
        module: &dyn Module,
        grads: &Grads,
        loss: Option<&Var>,
        default: Settings,
        mut rule: impl FnMut(Given<N>) -> (Var, [Var; N]),
    ) -> Result<()> {
        let leaves = module.leaves();
        let classes = Classes::new(&self.groups, &leaves, default)?;
        let (trained, missing) = trained(&leaves, grads);
        if !missing.is_empty() {
            return Err(no_gradient(&missing, grads));
        }
        if trained.is_empty() && leaves.iter().any(|leaf| leaf.role == Role::Frozen) {
            bail!(NoGradient, "every parameter is frozen, so the step would change nothing; `thaw` some");
        }
        for parameter in &trained {
            self.states.entry(parameter.cell.id()).or_default().prepare(&parameter.cell, N)?;
        }
        let tape = grads.tape();
        let check = self.check_finite.then(|| FiniteCheck::new(tape, &trained, loss));
        let mut stepped = Vec::with_capacity(trained.len());
        let mut updates = Vec::with_capacity(trained.len() * (N + 1));
        // Takes the gradients: those that nobody holds are not kept by the run.
        for Trained { cell, dw, leaf, .. } in trained {
            let State { cells, steps } = &self.states[&cell.id()];
            let w = tape.cell(&cell);
            let state: [Var; N] = array::from_fn(|k| tape.cell(&cells[k]));
            let (class, settings) = classes.of(leaf);
            let given = Given { w: w.clone(), dw, state: state.clone(), t: steps + 1, class, settings };
            let (new_w, new_state) = rule(given);
            let gate = |new: Var, old: &Var| check.as_ref().map_or_else(|| new.clone(), |check| check.gate(&new, old));
            let new_state = new_state.into_iter().zip(&state).map(|(new, old)| gate(new, old));
            stepped.push(cell.id());
            updates.extend(cells.iter().cloned().zip(new_state));
            updates.push((cell, gate(new_w, &w)));
        }
        tape.update(updates)?;
        if let Some(check) = check {
            check.verify()?;
        }
        for id in stepped {
            self.states.entry(id).or_default().steps += 1;
        }
        Ok(())
    }
}

impl State {
    /// Makes the state of a parameter that is new, and moves that of one that went to another device.
    fn prepare(&mut self, parameter: &Cell, count: usize) -> Result<()> {
        let tensor = parameter.lock().tensor.clone();
        while self.cells.len() < count {
            self.cells.push(Cell::new(Tensor::zeros(tensor.device(), tensor.shape())?, Kind::Buffer));
        }
        for cell in &self.cells {
            let state = cell.lock().tensor.clone();
            if !state.device().same(tensor.device()) {
                cell.set(state.to_device(tensor.device())?);
            }
        }
        Ok(())
    }
}

/// The parameters that are not frozen: those with a gradient, and those without. Tells all that have no path theirs.
pub(super) fn trained<'a>(leaves: &'a [Leaf<'a>], grads: &Grads) -> (Vec<Trained>, Vec<&'a Leaf<'a>>) {
    let (mut trained, mut missing) = (Vec::new(), Vec::new());
    for (index, leaf) in leaves.iter().enumerate() {
        // A part that is stepped by itself keeps the names that it has in the whole.
        if leaf.cell().path().is_none() {
            leaf.name();
        }
        let Some(param) = leaf.param().filter(|_| leaf.role == Role::Trained) else { continue };
        match grads.get(param) {
            Some(dw) => {
                trained.push(Trained { cell: Arc::clone(leaf.cell()), path: leaf.path.clone(), dw, leaf: index });
            }
            None => missing.push(leaf),
        }
    }
    (trained, missing)
}

fn no_gradient(missing: &[&Leaf<'_>], grads: &Grads) -> Error {
    let paths = |leaves: &[&Leaf<'_>]| listed(&leaves.iter().map(|leaf| &leaf.path).collect::<Vec<_>>());
    let (frozen, unused): (Vec<&Leaf<'_>>, Vec<_>) = missing.iter().partition(|leaf| grads.was_frozen(leaf.cell()));
    let message = match &unused[..] {
        [] => format!(
            "the backward pass found {} frozen; record the step again (a model made of parts of another that has them frozen \
             needs `name_parameters` before)",
            paths(&frozen)
        ),
        unused => format!(
            "the loss does not depend on {}, so nothing would train there; use what `forward` left out, or freeze it: \
             `#[module(frozen)]` on the field, or `freeze`",
            paths(unused)
        ),
    };
    Error::new(ErrorKind::NoGradient, message)
}

/// Paths for a message, the first few if there are many.
pub(super) fn listed<P: AsRef<str>>(paths: &[P]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<_> = paths.iter().take(SHOWN).map(|path| format!("`{}`", path.as_ref())).collect();
    match paths.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use meganeura_derive::Module;

    use super::*;
    use crate::module::{At, Slot};
    use crate::optim::{AdamW, Optimizer, Sgd};
    use crate::{Device, Param, Tape};

    #[derive(Module)]
    struct Net {
        used: Param,
        #[module(frozen)]
        fixed: Param,
        unused: Option<Param>,
    }

    fn net(unused: Option<f32>) -> Net {
        let device = Device::cpu();
        let param = |value: f32| Param::new(Tensor::full(&device, [1], value).unwrap());
        Net { used: param(1.0), fixed: param(2.0), unused: unused.map(param) }
    }

    fn value(param: &Param) -> f32 {
        param.value().item().unwrap()
    }

    fn tape(param: &Param) -> Tape {
        Tape::new(param.value().device())
    }

    /// The loss `used·fixed` and its gradients.
    fn loss(net: &Net) -> (Var, Grads) {
        let tape = tape(&net.used);
        let loss = (tape.param(&net.used) * tape.param(&net.fixed)).sum();
        let grads = tape.backward(&loss).unwrap();
        (loss, grads)
    }

    #[test]
    fn frozen_parameters_stay() {
        let mut net = net(None);
        let (_, grads) = loss(&net);
        Sgd::new(0.5).step(&mut net, &grads).unwrap();
        assert_eq!((value(&net.used), value(&net.fixed)), (0.0, 2.0));
        assert_eq!(net.used.path().as_deref(), Some("used"));
    }

    #[test]
    fn what_is_thawed_is_trained_from_the_next_backward_pass_on() {
        let mut net = net(None);
        net.name_parameters();
        let (_, grads) = loss(&net);
        assert!(grads.get(&net.fixed).is_none());
        net.thaw("fixed").unwrap();
        let error = Sgd::new(0.5).step(&mut net, &grads).unwrap_err();
        assert!(error.to_string().contains("backward pass found `fixed` frozen"), "{error}");
        net.freeze("used").unwrap();
        let (_, grads) = loss(&net);
        Sgd::new(0.5).step(&mut net, &grads).unwrap();
        assert_eq!((value(&net.used), value(&net.fixed)), (1.0, 1.5));
        net.freeze("**").unwrap();
        let (_, grads) = loss(&net);
        let error = Sgd::new(0.5).step(&mut net, &grads).unwrap_err();
        assert!(error.to_string().contains("every parameter is frozen"), "{error}");
    }

    #[test]
    fn what_another_model_had_frozen_is_not_silently_left_alone() {
        let net = net(None);
        net.name_parameters();
        let mut other = (net.used.tied(), net.fixed.tied());
        let error = Sgd::new(0.5).step(&mut other, &loss(&net).1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoGradient);
        assert!(
            error.to_string().contains("found `1` frozen") && error.to_string().contains("name_parameters"),
            "{error}"
        );
        other.name_parameters();
        Sgd::new(0.5).step(&mut other, &loss(&net).1).unwrap();
        assert_eq!(value(&net.fixed), 1.5);
    }

    #[test]
    fn a_missing_gradient_is_named_before_anything_changes() {
        let mut net = net(Some(3.0));
        let (_, grads) = loss(&net);
        let error = Sgd::new(0.5).step(&mut net, &grads).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoGradient);
        assert!(error.to_string().contains("does not depend on `unused`"), "{error}");
        assert_eq!(value(&net.used), 1.0);
    }

    #[test]
    fn stepping_twice_along_the_same_gradients_is_an_error() {
        let mut net = net(None);
        let (_, grads) = loss(&net);
        Sgd::new(0.5).step(&mut net, &grads).unwrap();
        assert_eq!(Sgd::new(0.5).step(&mut net, &grads).unwrap_err().kind(), ErrorKind::StaleTape);
        assert_eq!(value(&net.used), 0.0);
    }

    #[test]
    fn values_held_are_computed_along() {
        let mut net = net(None);
        let (loss, grads) = loss(&net);
        let norm = grads.norm(&net);
        Sgd::new(0.5).step(&mut net, &grads).unwrap();
        assert_eq!((loss.item().unwrap(), norm.item().unwrap()), (2.0, 2.0));
    }

    #[test]
    fn a_schedule_makes_no_new_plan() {
        let mut net = net(None);
        let device = net.used.value().device().clone();
        let mut optimizer = AdamW::new(0.1).check_finite(true);
        for lr in [0.1, 0.2, 0.3] {
            optimizer.set_lr(lr);
            let grads = loss(&net).1.clip_norm(&net, lr).unwrap();
            optimizer.step(&mut net, &grads).unwrap();
            assert_eq!(device.stats().plans, 1);
        }
    }

    #[test]
    fn state_follows_the_parameter_to_another_device() {
        let mut net = net(None);
        let mut optimizer = Sgd::new(0.5).momentum(0.5);
        for expected in [0.0, -1.5] {
            net.to_device(&Device::cpu()).unwrap();
            let (_, grads) = loss(&net);
            optimizer.step(&mut net, &grads).unwrap();
            assert_eq!(value(&net.used), expected);
        }
    }

    /// The same parameter under two paths, frozen in one of them.
    struct Tied(Param);

    impl Module for Tied {
        fn visit<'a>(&'a self, at: At<'_>, f: &mut dyn FnMut(At<'_>, Slot<'a>)) {
            f(at.field("first").frozen(), Slot::Param(&self.0));
            f(at.field("second"), Slot::Param(&self.0));
            f(at.field("third"), Slot::Param(&self.0));
        }

        fn visit_mut<'a>(&'a mut self, _: At<'_>, _: &mut dyn FnMut(At<'_>, crate::module::SlotMut<'a>)) {}
    }

    #[test]
    fn tied_parameters_are_updated_once() {
        let mut net = Tied(net(None).used);
        let tape = tape(&net.0);
        let w = tape.param(&net.0);
        let grads = tape.backward(&(&w * &w).sum()).unwrap();
        Sgd::new(0.25).step(&mut net, &grads).unwrap();
        assert_eq!(value(&net.0), 0.5);
    }

    #[test]
    fn long_lists_are_cut() {
        let paths: Vec<_> = (0..10).map(|i| i.to_string()).collect();
        assert_eq!(listed(&paths[..2]), "`0`, `1`");
        assert_eq!(listed(&paths), "`0`, `1`, `2`, `3`, `4`, `5`, `6`, `7` and 2 more");
    }
}
