//! A step, whatever the rule: records it, runs it, counts it.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::panic::Location;

use super::accumulate::Sums;
use super::finite::{NotFinite, verify};
use super::group::{Group, Settings};
use super::record::{RecordedStep, record};
use super::rule::Rule;
use super::state::Kept;
use crate::error::bail;
use crate::module::Module;
use crate::world::Shards;
use crate::{Device, Error, ErrorKind, Grads, Result, Var};

/// The common part of every optimizer, besides its [`Rule`]: learning rate, weight decay, groups of parameters, and the
/// state of each parameter.
pub struct Stepper {
    pub(super) settings: Settings,
    pub(super) groups: Vec<Group>,
    pub(super) not_finite: NotFinite,
    /// By the identity of the parameter.
    pub(super) states: HashMap<u64, Kept>,
    /// The owners of the state, if each rank keeps only a part of it.
    pub(super) shards: Option<Shards>,
    pub(super) sums: Sums,
    pub(super) skipped: u64,
    pub(super) last_skip: Option<Error>,
}

impl Stepper {
    /// A stepper without state.
    #[must_use]
    pub fn new(lr: f64, weight_decay: f64) -> Self {
        let settings = Settings { lr, weight_decay };
        let (groups, states, not_finite) = (Vec::new(), HashMap::new(), NotFinite::Unchecked);
        let sums = Sums::default();
        Self { settings, groups, not_finite, states, shards: None, sums, skipped: 0, last_skip: None }
    }

    /// Replaces the weight decay.
    #[must_use]
    pub fn with_weight_decay(mut self, weight_decay: f64) -> Self {
        self.settings.weight_decay = weight_decay;
        self
    }

    /// `true` if steps that are not finite are skipped.
    pub(crate) fn skips(&self) -> bool {
        self.not_finite == NotFinite::Skip
    }

    /// Handles a step that was held back.
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

/// Updates each trained parameter, and its state, by `rule`. A check covers the loss as well as the gradients. A
/// skipped step is noted with the user's line. Waits for the device where gradients are checked.
pub(super) async fn step(
    rule: &mut (impl Rule + ?Sized),
    module: &dyn Module,
    grads: &Grads,
    loss: Option<&Var>,
    line: &'static Location<'static>,
) -> Result<()> {
    let RecordedStep { updates, stepped, check, numbers } = record(rule, module, grads, loss)?;
    // If they were held, the run would return them.
    drop(numbers);
    let stepped: HashSet<u64> = stepped.iter().map(|cell| cell.id()).collect();
    grads.tape().update_keeping_gradients(updates, &stepped)?;
    let verdict = match check {
        Some(check) => match check.verdicts() {
            Ok(verdicts) => verify(&check.names(), &verdicts).await,
            Err(error) => Err(error),
        },
        None => Ok(()),
    };
    finish(rule.stepper_mut(), stepped, verdict, line)
}

/// Refuses a step that would have to wait to know whether it was taken.
pub(super) fn expect_no_wait(stepper: &Stepper, device: &Device, instead: &str) -> Result<()> {
    if cfg!(target_family = "wasm") && device.is_gpu() && stepper.not_finite != NotFinite::Unchecked {
        bail!(
            Argument,
            "a step that checks its gradients waits for the GPU, which a page's thread cannot; await `{instead}`"
        );
    }
    Ok(())
}

/// Counts a step that ran, unless it was held back.
pub(super) fn finish(
    stepper: &mut Stepper,
    stepped: impl IntoIterator<Item = u64>,
    verdict: Result<()>,
    line: &'static Location<'static>,
) -> Result<()> {
    if let Err(error) = verdict {
        return stepper.refuse(error.at(line));
    }
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
    use crate::module::{At, ModuleExt, Slot};
    use crate::optim::{AdamW, Optimizer, Sgd};
    use crate::{Buffer, Param, Tape, Tensor};

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
    fn thawed_parameters_train_from_the_next_backward_pass_on() {
        let mut net = net(None);
        net.name_parameters();
        let (_, grads) = loss(&net);
        assert!(grads.get(&net.fixed).is_none());
        net.thaw("fixed").unwrap();
        let error = Sgd::new(0.5).step(&mut net, &grads).unwrap_err();
        assert!(error.to_string().contains("frozen during the backward pass: `fixed`;"), "{error}");
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
    fn parameters_frozen_in_another_model_are_an_error() {
        let net = net(None);
        net.name_parameters();
        let mut other = (net.used.tied(), net.fixed.tied());
        let error = Sgd::new(0.5).step(&mut other, &loss(&net).1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoGradient);
        assert!(
            error.to_string().contains("during the backward pass: `1`;")
                && error.to_string().contains("name_parameters"),
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

    /// Two factors, whose gradients depend on each other, and a buffer.
    #[derive(Module)]
    struct Pair {
        a: Param,
        b: Param,
        seen: Buffer,
    }

    fn pair() -> Pair {
        let tensor = |data: &[f32]| Tensor::from_slice(&Device::cpu(), [2], data).unwrap();
        let seen = Buffer::new(tensor(&[0.0; 2]));
        Pair { a: Param::new(tensor(&[1.0, 2.0])), b: Param::new(tensor(&[3.0, -4.0])), seen }
    }

    /// The loss `Σ factor·a·b²`, whose gradients are `factor·b²` and `2·factor·a·b`.
    fn pair_loss(pair: &Pair, factor: f32) -> (Var, Grads) {
        let tape = tape(&pair.a);
        let (a, b) = (tape.param(&pair.a), tape.param(&pair.b));
        tape.update_buffer(&pair.seen, |old| old + &a);
        let factor = tape.input(&Tensor::full(&tape.device(), [2], factor).unwrap());
        let loss = (factor * a * b.square()).sum();
        let grads = tape.backward(&loss).unwrap();
        (loss, grads)
    }

    fn values(pair: &Pair) -> [Vec<f32>; 3] {
        [pair.a.value(), pair.b.value(), pair.seen.value()].map(|tensor| tensor.to_vec().unwrap())
    }

    #[test]
    fn optimizers_step_parts_along_the_same_gradients() {
        let (mut parts, mut whole) = (pair(), pair());
        let (mut sgd, mut first, mut second) =
            (Sgd::new(0.5).momentum(0.5), Sgd::new(0.5).momentum(0.5), AdamW::new(0.5));
        let mut third = Sgd::new(0.5).momentum(0.5);
        for _ in 0..3 {
            let (_, grads) = pair_loss(&whole, 0.125);
            let grads = grads.clip_norm(&whole, 3.0).unwrap();
            sgd.step(&mut whole, &grads).unwrap();
            let (loss, grads) = pair_loss(&parts, 0.125);
            // The norm covers both parts, though they step one after the other.
            let grads = grads.clip_norm(&parts, 3.0).unwrap();
            first.step(&mut parts.a, &grads).unwrap();
            third.step(&mut parts.b, &grads).unwrap();
            assert_eq!(values(&parts), values(&whole));
            // Each parameter once.
            let twice: [(&mut dyn Optimizer, &mut Param); 2] =
                [(&mut second, &mut parts.a), (&mut third, &mut parts.b)];
            for (optimizer, param) in twice {
                assert_eq!(optimizer.step(param, &grads).unwrap_err().kind(), ErrorKind::StaleTape);
            }
            assert_eq!(loss.tape().apply().unwrap_err().kind(), ErrorKind::StaleTape);
            assert_eq!(values(&parts), values(&whole));
        }
    }

    #[test]
    fn gradients_of_several_losses_wait_for_their_steps() {
        let mut net = pair();
        let tape = tape(&net.a);
        let product = tape.param(&net.a) * tape.param(&net.b);
        let (one, other) = (tape.backward(&product.sum()).unwrap(), tape.backward(&(product.square().sum())).unwrap());
        Sgd::new(1.0).step(&mut net.a, &one).unwrap();
        Sgd::new(0.25).step(&mut net.b, &other).unwrap();
        // a − b, and b − 0.25·2·a²·b with the old a.
        assert_eq!(values(&net)[..2], [vec![-2.0, 6.0], vec![3.0 - 0.5 * 3.0, -4.0 + 0.5 * 16.0]]);
    }

    #[test]
    fn gradients_are_outputs_only_if_another_step_needs_them() {
        let outputs = |net: &Pair| net.a.value().device().plan_memory().last().unwrap().outputs;
        let mut net = pair();
        let (_, grads) = pair_loss(&net, 1.0);
        Sgd::new(0.5).step(&mut net, &grads).unwrap();
        assert_eq!(outputs(&net), 0);
        // Nor is a gradient an output if the parameter is frozen, or if nobody holds its `Grads`.
        net.b.freeze();
        let (_, grads) = pair_loss(&net, 1.0);
        Sgd::new(0.5).step(&mut net.a, &grads).unwrap();
        assert_eq!(outputs(&net), 0);
        net.b.thaw();
        let (loss, grads) = pair_loss(&net, 1.0);
        drop(loss.tape().backward(&loss.sqrt()).unwrap());
        drop(loss);
        Sgd::new(0.5).step(&mut net.a, &grads).unwrap();
        assert_eq!(outputs(&net), 8, "the gradient of b, two floats");
        Sgd::new(0.5).step(&mut net.b, &grads).unwrap();
        assert_eq!(outputs(&net), 0);
    }

    #[test]
    fn each_step_checks_its_own_gradients() {
        let mut net = pair();
        let tape = tape(&net.a);
        // The gradient of a is infinite, that of b is 1.
        let zero = tape.input(&Tensor::zeros(&tape.device(), [2]).unwrap());
        tape.update_buffer(&net.seen, |old| old + 1.0);
        let loss = (tape.param(&net.a) / zero + tape.param(&net.b)).sum();
        let grads = tape.backward(&loss).unwrap();
        let error = Sgd::new(1.0).check_finite(true).step(&mut net.a, &grads).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFinite);
        Sgd::new(1.0).check_finite(true).step(&mut net.b, &grads).unwrap();
        // Buffers belong to the first step, which was held back.
        assert_eq!(values(&net), [vec![1.0, 2.0], vec![2.0, -5.0], vec![0.0, 0.0]]);
    }

    #[test]
    fn stale_gradients_of_other_parts_do_not_fail_a_step() {
        let mut net = pair();
        let (loss, grads) = pair_loss(&net, 1.0);
        let tape = loss.tape().clone();
        Sgd::new(0.5).step(&mut net.a, &grads).unwrap();
        // Depends on the old a, which is gone: this value cannot be read, but b can still step.
        let stale = tape.param(&net.a) * 2.0;
        let later = tape.backward(&(tape.param(&net.b) * 3.0 + &stale).sum()).unwrap();
        Sgd::new(0.5).step(&mut net.b, &later).unwrap();
        assert_eq!(values(&net)[1], [3.0 - 1.5, -4.0 - 1.5]);
        assert_eq!(stale.to_vec().unwrap_err().kind(), ErrorKind::StaleTape);
        assert_eq!(loss.item().unwrap(), 9.0 + 32.0);
    }

    #[test]
    fn allowed_unused_parameters_do_not_change() {
        let mut net = net(Some(3.0));
        let mut optimizer = AdamW::new(0.5).check_finite(true);
        let tape = tape(&net.used);
        let both = tape.param(&net.used) * tape.param(net.unused.as_ref().unwrap());
        let grads = tape.backward(&both.sum()).unwrap();
        optimizer.step(&mut net, &grads).unwrap();
        let before = optimizer.state_of(&net);
        let (_, grads) = loss(&net);
        let grads = grads.allow_unused("nothing.*").allow_unused("un*").clip_norm(&net, 1.0).unwrap();
        let (used, unused) = (value(&net.used), value(net.unused.as_ref().unwrap()));
        optimizer.step(&mut net, &grads).unwrap();
        assert_ne!(value(&net.used), used);
        assert_eq!(value(net.unused.as_ref().unwrap()), unused);
        let after = optimizer.state_of(&net);
        let moments = |state: &crate::optim::OptimizerState, name: &str| {
            (state.tensors[&format!("{name}.m")].item().unwrap(), state.numbers[&format!("{name}.steps")])
        };
        assert_eq!(moments(&after, "unused"), moments(&before, "unused"));
        assert_eq!((moments(&before, "used").1, moments(&after, "used").1), (1.0, 2.0));
    }

    #[test]
    fn only_named_parameters_may_be_unused() {
        let mut net = net(Some(3.0));
        let grads = loss(&net).1.allow_unused("used");
        let error = Sgd::new(0.5).step(&mut net, &grads).unwrap_err();
        assert!(error.to_string().contains("`unused`") && error.to_string().contains("allow_unused"), "{error}");
        // A parameter that was frozen during the backward pass is not merely unused.
        let grads = loss(&net).1.allow_unused("**");
        net.thaw("fixed").unwrap();
        let error = Sgd::new(0.5).step(&mut net, &grads).unwrap_err();
        assert!(error.to_string().contains("during the backward pass: `fixed`;"), "{error}");
        net.freeze("fixed").unwrap();
        // A loss that does not depend on the model at all is still a mistake.
        let tape = tape(&net.used);
        let detached = tape.param(&net.used).detach().sum();
        let grads = tape.backward(&detached).unwrap().allow_unused("**");
        let error = Sgd::new(0.5).step(&mut net, &grads).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoGradient);
        assert!(error.to_string().contains("no parameter at all"), "{error}");
        // A whole part may be unused if another part is used.
        let grads = loss(&net).1.allow_unused("**");
        Sgd::new(0.5).step(&mut net.unused, &grads).unwrap();
        Sgd::new(0.5).step(&mut net.used, &grads).unwrap();
        assert_eq!((value(&net.used), value(net.unused.as_ref().unwrap())), (0.0, 3.0));
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
    fn gradients_of_an_inference_tape_are_refused() {
        let mut net = net(None);
        let tape = Tape::inference(net.used.value().device());
        let grads = tape.backward(&(tape.param(&net.used) * 2.0).sum()).unwrap();
        assert_eq!(grads.get(&net.used).unwrap().item().unwrap(), 2.0, "gradients are there for other purposes");
        let mut sgd = Sgd::new(0.5);
        let how = crate::optim::Accumulate::mean(2);
        for error in
            [sgd.step(&mut net, &grads).unwrap_err(), sgd.accumulate(&net, grads.clone(), how).map(drop).unwrap_err()]
        {
            assert_eq!(error.kind(), ErrorKind::Argument);
            assert!(error.to_string().contains("a tape for inference") && error.location().is_some(), "{error}");
        }
        assert_eq!(value(&net.used), 1.0);
    }

    #[test]
    fn reads_before_the_step_are_counted() {
        let mut net = pair();
        let device = net.a.value().device().clone();
        let mut sgd = Sgd::new(0.1);
        // Read after the step, or of what no parameter decides.
        let (loss, grads) = pair_loss(&net, 1.0);
        (loss.tape().input(&Tensor::full(&device, [2], 1.0).unwrap()) * 2.0).to_vec().unwrap();
        sgd.step(&mut net, &grads).unwrap();
        loss.item().unwrap();
        assert_eq!(device.stats().early_reads, 0);
        // Once for each step, however many values were read.
        let (loss, grads) = pair_loss(&net, 1.0);
        grads.norm(&net).item().unwrap();
        loss.item().unwrap();
        sgd.step(&mut net, &grads).unwrap();
        assert_eq!(device.stats().early_reads, 1);
        // A step of another part shares nothing with the read.
        let (loss, grads) = pair_loss(&net, 1.0);
        (loss.tape().param(&net.b) * 2.0).to_vec().unwrap();
        sgd.step(&mut net.a, &grads).unwrap();
        sgd.step(&mut net.b, &grads).unwrap();
        assert_eq!(device.stats().early_reads, 1);
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
