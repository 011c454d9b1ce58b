//! Stochastic gradient descent.

use std::collections::HashMap;
use std::fmt;

use super::group::Settings;
use super::step::{Given, Stepper};
use super::{Group, Optimizer};
use crate::error::bail;
use crate::module::Module;
use crate::{Grads, Result, Var};

/// Stochastic gradient descent with momentum µ and weight decay λ:
///
/// ```text
/// g ← dw + λ·w
/// v ← µ·v + g
/// w ← w − lr·v            or, with Nesterov's momentum,  w ← w − lr·(g + µ·v)
/// ```
///
/// As in PyTorch, without dampening. [Sutskever et al., 2013](https://proceedings.mlr.press/v28/sutskever13.html).
///
/// ```
/// use meganeura::prelude::*;
///
/// let optimizer = Sgd::new(0.1).momentum(0.9).nesterov(true).weight_decay(5e-4);
/// assert_eq!(optimizer.lr(), 0.1);
/// ```
#[must_use]
pub struct Sgd {
    lr: f64,
    momentum: f64,
    nesterov: bool,
    weight_decay: f64,
    stepper: Stepper,
}

impl Sgd {
    /// Plain gradient descent with this learning rate.
    pub fn new(lr: f64) -> Self {
        Self { lr, momentum: 0.0, nesterov: false, weight_decay: 0.0, stepper: Stepper::default() }
    }

    /// The share of the last step that is taken again, µ: at least 0 and below 1; 0 by default.
    pub fn momentum(self, momentum: f64) -> Self {
        Self { momentum, ..self }
    }

    /// Whether the momentum is Nesterov's; it is not by default.
    pub fn nesterov(self, nesterov: bool) -> Self {
        Self { nesterov, ..self }
    }

    /// The share of each parameter that is added to its gradient, λ; 0 by default.
    pub fn weight_decay(self, weight_decay: f64) -> Self {
        Self { weight_decay, ..self }
    }

    /// Whether a gradient with NaN or infinity is an error that leaves the model, and this optimizer, as they were; it is
    /// not by default. The verdict is computed along with the step, but each step then waits for the device.
    pub fn check_finite(mut self, check_finite: bool) -> Self {
        self.stepper.check_finite = check_finite;
        self
    }

    /// Gives some of the parameters settings of their own. Of several groups that have a parameter in common, the last one
    /// that says something holds.
    pub fn group(mut self, group: Group) -> Self {
        self.stepper.groups.push(group);
        self
    }

    fn check(&self) -> Result<()> {
        let Self { lr, momentum, nesterov, weight_decay, .. } = *self;
        if !lr.is_finite() || lr < 0.0 {
            bail!(Argument, "sgd: the learning rate is {lr}; it must be 0 or above");
        }
        if !(0.0..1.0).contains(&momentum) {
            bail!(Argument, "sgd: the momentum {momentum} is not at least 0 and below 1");
        }
        if !weight_decay.is_finite() || weight_decay < 0.0 {
            bail!(Argument, "sgd: the weight decay is {weight_decay}; it must be 0 or above");
        }
        if nesterov && momentum == 0.0 {
            bail!(Argument, "sgd: Nesterov's momentum needs a momentum: `.momentum(0.9)`");
        }
        Ok(())
    }

    fn advance(&mut self, module: &dyn Module, grads: &Grads, loss: Option<&Var>) -> Result<()> {
        self.check()?;
        let tape = grads.tape();
        let Self { lr, momentum, nesterov, weight_decay, .. } = *self;
        let default = Settings { lr, weight_decay };
        let mu = tape.scalar(momentum);
        let mut rates = HashMap::new();
        // The learning rate of a class of parameters, and their gradient with its decay.
        let mut prepare = |w: &Var, dw: Var, class: usize, settings: Settings| {
            let number = |value: f64| tape.scalar(value);
            let (lr, decay) =
                rates.entry(class).or_insert_with(|| (number(settings.lr), number(settings.weight_decay)));
            (lr.clone(), if settings.weight_decay == 0.0 { dw } else { dw + &*decay * w })
        };
        if momentum == 0.0 {
            return self.stepper.step(module, grads, loss, default, |Given { w, dw, class, settings, .. }| {
                let (lr, g) = prepare(&w, dw, class, settings);
                (w - lr * g, [])
            });
        }
        self.stepper.step(module, grads, loss, default, |Given { w, dw, state: [v], class, settings, .. }| {
            let (lr, g) = prepare(&w, dw, class, settings);
            let v = &mu * v + &g;
            let direction = if nesterov { g + &mu * &v } else { v.clone() };
            (w - lr * direction, [v])
        })
    }
}

impl Optimizer for Sgd {
    fn step(&mut self, module: &mut dyn Module, grads: &Grads) -> Result<()> {
        self.advance(module, grads, None)
    }

    fn step_with_loss(&mut self, module: &mut dyn Module, grads: &Grads, loss: &Var) -> Result<()> {
        self.advance(module, grads, Some(loss))
    }

    fn lr(&self) -> f64 {
        self.lr
    }

    fn set_lr(&mut self, lr: f64) {
        self.lr = lr;
    }

    fn groups_mut(&mut self) -> &mut Vec<Group> {
        &mut self.stepper.groups
    }
}

impl fmt::Debug for Sgd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lr, momentum, nesterov, weight_decay, stepper } = self;
        write!(f, "Sgd {{ lr: {lr}, momentum: {momentum}, nesterov: {nesterov}, weight_decay: {weight_decay}, ")?;
        write!(f, "groups: {:?} }}", stepper.groups)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::tests::{after_three_steps, assert_close};
    use crate::{Device, ErrorKind, Param, Tape, Tensor};

    #[test]
    fn steps_are_pytorchs() {
        // PyTorch's rule, computed in f64.
        assert_close(&after_three_steps(Sgd::new(0.0)), &[0.769_5, -1.759_875, 4.752]);
        assert_close(&after_three_steps(Sgd::new(0.0).weight_decay(0.1)), &[0.748_534_5, -1.714_184, 4.651_888_5]);
        let momentum = || Sgd::new(0.0).momentum(0.9).weight_decay(0.1);
        assert_close(&after_three_steps(momentum()), &[0.566_374_5, -1.510_064, 5.749_708_5]);
        let nesterov = momentum().nesterov(true);
        assert_close(&after_three_steps(nesterov), &[0.405_174_235_5, -1.302_043_256, 7.626_983_521_5]);
    }

    #[test]
    fn senseless_settings_are_errors_of_the_step() {
        let device = Device::cpu();
        let mut w = Param::new(Tensor::full(&device, [1], 1.0).unwrap());
        let tape = Tape::new(&device);
        let grads = tape.backward(&tape.param(&w).sum()).unwrap();
        let sgd = || Sgd::new(0.1);
        for mut optimizer in [
            Sgd::new(f64::NAN),
            Sgd::new(-0.1),
            sgd().momentum(1.0),
            sgd().momentum(-0.1),
            sgd().weight_decay(-1.0),
            sgd().nesterov(true),
        ] {
            assert_eq!(optimizer.step(&mut w, &grads).unwrap_err().kind(), ErrorKind::Argument);
        }
        assert_eq!(w.value().item().unwrap(), 1.0);
    }
}
