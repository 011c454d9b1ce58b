//! Settings for some of the parameters.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::bail;
use crate::module::{Leaf, Selection};
use crate::{Param, Result};

/// A number that no other call returns.
pub(super) fn stamp() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Parameters with their own learning rate or weight decay.
///
/// A group is selected by a pattern of paths, as for [`ModuleExt::freeze`](crate::ModuleExt::freeze), or by a rule. The
/// paths are those in the module that the optimizer steps. Settings that no group has are the optimizer's; if several
/// groups set one, the last of them wins.
///
/// ```
/// use meganeura::optim::Group;
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let mut net = [Linear::new(2, 8), Linear::new(8, 1)].init(&device, Seed::new(1))?;
/// let mut optimizer = AdamW::new(1e-3)
///     .group(Group::new("0.**").lr_scale(0.1))
///     .group(Group::by(|_, param| param.shape().rank() < 2).weight_decay(0.0));
///
/// let tape = Tape::new(&device);
/// let x = tape.input(&Tensor::full(&device, [4, 2], 1.0)?);
/// let grads = tape.backward(&net.forward(&x).mean())?;
/// optimizer.step(&mut net, &grads)?;
/// optimizer.groups_mut()[0].set_lr_scale(1.0);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[must_use]
pub struct Group {
    /// The group's identity, whatever its numbers are.
    id: u64,
    selection: Selection<'static>,
    lr: Option<Rate>,
    weight_decay: Option<f64>,
}

#[derive(Clone, Copy, Debug)]
enum Rate {
    Own(f64),
    Scaled(f64),
}

impl Group {
    /// The parameters whose paths match. A step fails if there are none.
    pub fn new(pattern: impl Into<String>) -> Self {
        Self::of(Selection::Pattern(pattern.into()))
    }

    /// The parameters that `rule` accepts, given each of their paths. A step fails if there are none.
    pub fn by(rule: impl Fn(&str, &Param) -> bool + Send + Sync + 'static) -> Self {
        Self::of(Selection::Rule(Box::new(rule)))
    }

    fn of(selection: Selection<'static>) -> Self {
        Self { id: stamp(), selection, lr: None, weight_decay: None }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Sets their learning rate, independent of the optimizer's.
    pub fn lr(mut self, lr: f64) -> Self {
        self.set_lr(lr);
        self
    }

    /// Sets their learning rate as a multiple of the optimizer's, whose schedule it follows.
    pub fn lr_scale(mut self, scale: f64) -> Self {
        self.set_lr_scale(scale);
        self
    }

    /// Sets their weight decay.
    pub fn weight_decay(mut self, weight_decay: f64) -> Self {
        self.set_weight_decay(weight_decay);
        self
    }

    /// Like [`lr`](Self::lr), from the next step on.
    pub fn set_lr(&mut self, lr: f64) {
        self.lr = Some(Rate::Own(lr));
    }

    /// Like [`lr_scale`](Self::lr_scale), from the next step on.
    pub fn set_lr_scale(&mut self, scale: f64) {
        self.lr = Some(Rate::Scaled(scale));
    }

    /// Like [`weight_decay`](Self::weight_decay), from the next step on.
    pub fn set_weight_decay(&mut self, weight_decay: f64) {
        self.weight_decay = Some(weight_decay);
    }

    fn check(&self) -> Result<()> {
        if self.lr.is_none() && self.weight_decay.is_none() {
            bail!(
                Argument,
                "the group {:?} sets nothing; give it an `lr`, `lr_scale` or `weight_decay`",
                self.selection
            );
        }
        let lr = self.lr.map(|(Rate::Own(lr) | Rate::Scaled(lr))| lr);
        for (what, number) in [("learning rate", lr), ("weight decay", self.weight_decay)] {
            if let Some(number) = number.filter(|number| !number.is_finite() || *number < 0.0) {
                bail!(Argument, "the {what} of the group {:?} is {number}; it must be 0 or above", self.selection);
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { selection, lr, weight_decay, .. } = self;
        write!(f, "Group {{ {selection:?}, lr: {lr:?}, weight_decay: {weight_decay:?} }}")
    }
}

/// The settings that every optimizer has, and a [`Group`] may override.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Settings {
    /// The learning rate.
    pub lr: f64,
    /// The weight decay, λ.
    pub weight_decay: f64,
}

impl Settings {
    /// The share of a parameter that decoupled weight decay keeps: `1 − lr·λ`.
    #[must_use]
    pub fn kept(&self) -> f64 {
        1.0 - self.lr * self.weight_decay
    }
}

/// Assigns parameters to settings. Parameters are in one class if they are in the same groups, not if their numbers
/// happen to be equal: so the structure of a step, and with it its plan, does not depend on the numbers.
pub(super) struct Classes {
    /// The class of each leaf.
    classes: Vec<usize>,
    /// For each class, and for each group, whether the group has the parameters of the class.
    members: Vec<Vec<bool>>,
}

/// The settings of a class, given the groups that have it. Invalid numbers are an error.
pub(super) fn settings_within(groups: &[Group], members: &[bool], default: Settings) -> Result<Settings> {
    let within = groups.iter().zip(members).filter_map(|(group, is_member)| is_member.then_some(group));
    let mut settings = default;
    for group in within {
        group.check()?;
        match group.lr {
            None => {}
            Some(Rate::Own(lr)) => settings.lr = lr,
            Some(Rate::Scaled(scale)) => settings.lr = scale * default.lr,
        }
        settings.weight_decay = group.weight_decay.unwrap_or(settings.weight_decay);
    }
    Ok(settings)
}

impl Classes {
    pub(super) fn new(groups: &[Group], leaves: &[Leaf<'_>]) -> Result<Self> {
        let mut memberships = vec![vec![false; groups.len()]; leaves.len()];
        for (k, group) in groups.iter().enumerate() {
            let meant = group.selection.among(leaves).map_err(|error| error.context("a group of the optimizer"))?;
            group.check()?;
            for leaf in meant {
                memberships[leaf][k] = true;
            }
        }
        let (mut members, mut known) = (Vec::new(), HashMap::new());
        let mut class_of = |membership: Vec<bool>| {
            *known.entry(membership).or_insert_with_key(|membership| {
                members.push(membership.clone());
                members.len() - 1
            })
        };
        let classes = memberships.into_iter().map(&mut class_of).collect();
        Ok(Self { classes, members })
    }

    /// The class of a leaf, and the groups that have it.
    pub(super) fn of(&self, leaf: usize) -> (usize, &[bool]) {
        let class = self.classes[leaf];
        (class, &self.members[class])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::{AdamW, Optimizer, Sgd};
    use crate::{Device, ErrorKind, Grads, ModuleExt, Tape, Tensor};

    type Net = [(Param, Param); 2];

    fn net() -> Net {
        let param = || Param::new(Tensor::full(&Device::cpu(), [1], 1.0).unwrap());
        [(param(), param()), (param(), param())]
    }

    /// Gradients of 1 for all parameters.
    fn grads(net: &Net) -> Grads {
        let tape = Tape::new(net[0].0.value().device());
        let sum = net.named_parameters().into_iter().map(|(_, w)| tape.param(w).sum()).reduce(|a, b| a + b);
        tape.backward(&sum.unwrap()).unwrap()
    }

    fn step(optimizer: &mut dyn Optimizer, net: &mut Net) -> Result<()> {
        let grads = grads(net);
        optimizer.step(net, &grads)
    }

    fn values(net: &Net) -> Vec<f32> {
        net.leaves().iter().map(|leaf| leaf.value().item().unwrap()).collect()
    }

    #[test]
    fn groups_have_rates_and_decays_of_their_own() {
        let mut net = net();
        let mut sgd = Sgd::new(0.5)
            .weight_decay(1.0)
            .group(Group::new("0.**").lr_scale(0.5))
            .group(Group::new("*.1").weight_decay(0.0))
            .group(Group::by(|path, _| path == "1.1").lr(0.125));
        // w − lr·(1 + λ·w)
        step(&mut sgd, &mut net).unwrap();
        assert_eq!(values(&net), [0.5, 0.75, 0.0, 0.875]);
        // The second learning rate follows the optimizer's, the last one does not.
        sgd.set_lr(0.25);
        sgd.groups_mut()[1].set_weight_decay(2.0);
        step(&mut sgd, &mut net).unwrap();
        assert_eq!(values(&net), [0.5 - 0.125 * 1.5, 0.75 - 0.125 * 2.5, -0.25, 0.875 - 0.125 * 2.75]);
    }

    #[test]
    fn adam_has_them_too() {
        let mut net = net();
        let mut adam = AdamW::new(0.5)
            .weight_decay(0.5)
            .group(Group::new("0.*").lr(0.25))
            .group(Group::new("*.0").weight_decay(0.0));
        step(&mut adam, &mut net).unwrap();
        // Adam's first step has the size of the learning rate.
        for (found, expected) in values(&net).into_iter().zip([0.75, 0.875 - 0.25, 0.5, 0.75 - 0.5]) {
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
    }

    #[test]
    fn numbers_that_change_make_no_new_plan() {
        let mut net = net();
        let device = net[0].0.value().device().clone();
        let mut adam = AdamW::new(0.5).group(Group::new("0.*").lr(0.25));
        // One of the rates equals the optimizer's own.
        for lr in [0.25, 0.5, 0.125] {
            adam.groups_mut()[0].set_lr(lr);
            step(&mut adam, &mut net).unwrap();
            assert_eq!(device.stats().plans, 1);
        }
    }

    #[test]
    fn a_group_without_parameters_or_with_senseless_numbers_is_an_error_of_the_step() {
        let mut net = net();
        let mut fail = |group| step(&mut Sgd::new(0.5).group(group), &mut net).unwrap_err();
        let error = fail(Group::new("0.bias"));
        assert_eq!(error.kind(), ErrorKind::Argument);
        assert!(
            error.to_string().starts_with("a group of the optimizer: the pattern `0.bias` selects no parameter"),
            "{error}"
        );
        assert!(fail(Group::by(|_, _| false)).to_string().contains("the rule selects none"));
        for group in
            [Group::new("**").lr(-1.0), Group::new("**").lr_scale(f64::NAN), Group::new("**").weight_decay(-1.0)]
        {
            assert!(fail(group).to_string().contains("must be 0 or above"));
        }
        let error = fail(Group::new("**"));
        assert!(error.kind() == ErrorKind::Argument && error.to_string().contains("sets nothing"), "{error}");
        assert_eq!(values(&net), [1.0; 4]);
    }
}
