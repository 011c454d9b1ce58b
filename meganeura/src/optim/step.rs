//! What a step is, whatever the rule: find the trained parameters, their gradients and their state; apply the rule; run.

use std::collections::HashMap;
use std::fmt;

use super::accumulate::Sums;
use super::finite::{FiniteCheck, NotFinite};
use super::group::{Classes, Group, Settings};
use super::rule::{Given, Rule, expect_not_negative};
use super::state::{GRADIENT_SUM, Kept};
use super::trained::{Trained, expect_gradients};
use crate::error::bail;
use crate::module::{Module, ModuleExt};
use crate::{Error, ErrorKind, Grads, Result, Var};

/// What every optimizer has besides its [`Rule`]: learning rate, weight decay, groups of parameters, and the state of each
/// parameter.
pub struct Stepper {
    pub(super) settings: Settings,
    pub(super) groups: Vec<Group>,
    pub(super) not_finite: NotFinite,
    /// By the identity of the parameter.
    pub(super) states: HashMap<u64, Kept>,
    pub(super) sums: Sums,
    pub(super) skipped: u64,
    pub(super) last_skip: Option<Error>,
}

impl Stepper {
    /// One that has not stepped yet.
    #[must_use]
    pub fn new(lr: f64, weight_decay: f64) -> Self {
        let settings = Settings { lr, weight_decay };
        let (groups, states, not_finite) = (Vec::new(), HashMap::new(), NotFinite::Unchecked);
        Self { settings, groups, not_finite, states, sums: Sums::default(), skipped: 0, last_skip: None }
    }

    /// The same with another weight decay.
    #[must_use]
    pub fn with_weight_decay(mut self, weight_decay: f64) -> Self {
        self.settings.weight_decay = weight_decay;
        self
    }

    /// What becomes of a step that was held back.
    fn refuse(&mut self, error: Error) -> Result<()> {
        if error.kind() != ErrorKind::NotFinite || self.not_finite != NotFinite::Skip {
            return Err(error);
        }
        self.skipped += 1;
        self.last_skip = Some(error);
        Ok(())
    }
}

impl fmt::Debug for Stepper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { settings, groups, not_finite, states, .. } = self;
        write!(f, "Stepper {{ {settings:?}, {groups:?}, {not_finite:?}, {} parameters }}", states.len())
    }
}

/// Updates each trained parameter, and its state, to what `rule` says. The loss is checked along with the gradients.
pub(super) fn step(
    rule: &mut (impl Rule + ?Sized),
    module: &dyn Module,
    grads: &Grads,
    loss: Option<&Var>,
) -> Result<()> {
    let settings = rule.stepper().settings;
    expect_not_negative(rule.name(), "learning rate", settings.lr)?;
    expect_not_negative(rule.name(), "weight decay", settings.weight_decay)?;
    rule.check()?;
    let leaves = module.leaves();
    let classes = Classes::new(&rule.stepper().groups, &leaves, settings)?;
    let trained = expect_gradients(&leaves, grads)?;
    for Trained { cell, leaf, .. } in &trained {
        let names = rule.state(&leaves[*leaf]);
        if names.contains(&GRADIENT_SUM) {
            bail!(
                Argument,
                "{}: `{GRADIENT_SUM}` is what micro-batches come to, and no name for a rule's state",
                rule.name()
            );
        }
        rule.stepper_mut().states.entry(cell.id()).or_default().prepare(cell, names.len())?;
    }
    let tape = grads.tape();
    let is_checked = rule.stepper().not_finite != NotFinite::Unchecked;
    let check = is_checked.then(|| FiniteCheck::new(tape, &trained, loss));
    // Parameters of one class that were updated equally often have their numbers in common.
    let mut numbers: HashMap<(usize, u64), Vec<Var>> = HashMap::new();
    let mut stepped = Vec::with_capacity(trained.len());
    let mut updates = Vec::new();
    // Takes the gradients: those that nobody holds are not kept by the run.
    for Trained { cell, path, dw, leaf } in trained {
        let Kept { cells, steps } = &rule.stepper().states[&cell.id()];
        let (class, settings) = classes.of(leaf);
        let number = |number: f64| tape.scalar(number);
        let record = || rule.numbers(settings, steps + 1).into_iter().map(number).collect();
        let numbers = numbers.entry((class, *steps)).or_insert_with(record);
        let state = cells.iter().map(|cell| tape.cell(cell)).collect();
        let given = Given { leaf: &leaves[leaf], w: tape.cell(&cell), dw, settings, state, numbers };
        let (new_w, new_state) = rule.update(&given);
        let Given { w, state, .. } = given;
        if new_state.len() != state.len() {
            bail!(Argument, "{}: the rule gives {} tensors of state for {}", rule.name(), new_state.len(), state.len());
        }
        let cells = cells.iter().chain([&cell]).cloned();
        for ((cell, new), old) in cells.zip(new_state.into_iter().chain([new_w])).zip(state.iter().chain([&w])) {
            new.id().map_err(|error| error.context(&path))?;
            if new.ty() != old.ty() || !tape.same(new.tape()) {
                bail!(Shape, "{}: the rule gives {} in the place of {} of `{path}`", rule.name(), new.ty(), old.ty());
            }
            updates.push((cell, check.as_ref().map_or_else(|| new.clone(), |check| check.gate(&new, old))));
        }
        stepped.push(cell.id());
    }
    if let Some(check) = &check {
        tape.gate_buffers(|new, old| check.gate(new, old));
    }
    tape.update(updates)?;
    if let Some(Err(error)) = check.map(FiniteCheck::verify) {
        return rule.stepper_mut().refuse(error);
    }
    let stepper = rule.stepper_mut();
    stepper.last_skip = None;
    for id in stepped {
        stepper.states.entry(id).or_default().steps += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use meganeura_derive::Module;

    use super::*;
    use crate::module::{At, Slot};
    use crate::optim::{AdamW, Optimizer, Sgd};
    use crate::{Device, Param, Tape, Tensor};

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
}
