//! Adam with decoupled weight decay.

use std::collections::HashMap;
use std::fmt;

use super::group::Settings;
use super::step::{Given, Stepper};
use super::{Group, Optimizer};
use crate::error::bail;
use crate::module::Module;
use crate::{Grads, Result, Var};

/// Adam with decoupled weight decay λ, at a parameter's update number `t`:
///
/// ```text
/// w ← w·(1 − lr·λ)
/// m ← m + (1 − β₁)·(dw − m)
/// v ← β₂·v + (1 − β₂)·dw²
/// w ← w − lr/(1 − β₁ᵗ) · m / (√v/√(1 − β₂ᵗ) + ε)
/// ```
///
/// As in PyTorch, with its defaults β = (0.9, 0.999), ε = 1e-8, λ = 0.01; with `weight_decay(0.0)` it is Adam. Parameters
/// count their own updates, so one that is thawed later starts with its own bias correction.
/// [Loshchilov and Hutter, 2017](https://arxiv.org/abs/1711.05101).
///
/// ```
/// use meganeura::prelude::*;
///
/// let optimizer = AdamW::new(1e-3).betas(0.9, 0.95).weight_decay(0.1);
/// assert_eq!(optimizer.lr(), 1e-3);
/// ```
#[must_use]
pub struct AdamW {
    lr: f64,
    betas: (f64, f64),
    eps: f64,
    weight_decay: f64,
    stepper: Stepper,
}

impl AdamW {
    /// AdamW with this learning rate.
    pub fn new(lr: f64) -> Self {
        Self { lr, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.01, stepper: Stepper::default() }
    }

    /// How slowly the moments of the gradient are forgotten: that of the gradient and that of its square, each at least 0
    /// and below 1; (0.9, 0.999) by default.
    pub fn betas(self, first: f64, second: f64) -> Self {
        Self { betas: (first, second), ..self }
    }

    /// What is added to the denominator; 1e-8 by default.
    pub fn eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }

    /// The share of each parameter that a step of learning rate 1 would take away, λ; 0.01 by default.
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
        let Self { lr, betas, eps, weight_decay, .. } = *self;
        if !lr.is_finite() || lr < 0.0 {
            bail!(Argument, "adamw: the learning rate is {lr}; it must be 0 or above");
        }
        if ![betas.0, betas.1].iter().all(|beta| (0.0..1.0).contains(beta)) {
            bail!(Argument, "adamw: the betas {betas:?} are not at least 0 and below 1");
        }
        if !eps.is_finite() || eps < 0.0 {
            bail!(Argument, "adamw: eps is {eps}; it must be 0 or above");
        }
        if !weight_decay.is_finite() || weight_decay < 0.0 {
            bail!(Argument, "adamw: the weight decay is {weight_decay}; it must be 0 or above");
        }
        Ok(())
    }

    fn advance(&mut self, module: &dyn Module, grads: &Grads, loss: Option<&Var>) -> Result<()> {
        self.check()?;
        let tape = grads.tape();
        let Self { lr, betas: (beta1, beta2), weight_decay, .. } = *self;
        let fresh1 = tape.scalar(1.0 - beta1);
        let (old2, fresh2) = (tape.scalar(beta2), tape.scalar(1.0 - beta2));
        let eps = tape.scalar(self.eps);
        let default = Settings { lr, weight_decay };
        let mut factors = HashMap::new();
        self.stepper.step(module, grads, loss, default, |Given { w, dw, state: [m, v], t, class, settings }| {
            let Settings { lr, weight_decay } = settings;
            let Factors { kept, corrected_lr, root_scale } = factors.entry((class, t)).or_insert_with(|| Factors {
                kept: tape.scalar(1.0 - lr * weight_decay),
                corrected_lr: tape.scalar(lr / (1.0 - beta1.powf(t as f64))),
                root_scale: tape.scalar((1.0 - beta2.powf(t as f64)).sqrt()),
            });
            let m = &m + &fresh1 * (&dw - &m);
            let v = &old2 * v + &fresh2 * dw.square();
            let denominator = v.sqrt() / &*root_scale + &eps;
            (w * &*kept - &*corrected_lr * &m / denominator, [m, v])
        })
    }
}

/// What differs between classes of parameters, and between those that were updated a different number of times.
struct Factors {
    kept: Var,
    corrected_lr: Var,
    root_scale: Var,
}

impl Optimizer for AdamW {
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

impl fmt::Debug for AdamW {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lr, betas, eps, weight_decay, stepper } = self;
        write!(f, "AdamW {{ lr: {lr}, betas: {betas:?}, eps: {eps}, weight_decay: {weight_decay}, ")?;
        write!(f, "groups: {:?} }}", stepper.groups)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::tests::{after_three_steps, assert_close};
    use crate::{Device, ErrorKind, Param, Precision, Tape, Tensor};

    #[test]
    fn steps_are_pytorchs() {
        // PyTorch's rule, computed in f64.
        let expected = [0.748_715_106_452_236_2, -1.745_608_553_420_608_5, 3.242_468_648_713_194];
        assert_close(&after_three_steps(AdamW::new(0.0)), &expected);
        let adam = AdamW::new(0.0).weight_decay(0.0);
        let expected = [0.750_999_252_108_376_6, -1.750_394_940_987_643_8, 3.250_166_673_662_898];
        assert_close(&after_three_steps(adam), &expected);
        let other = AdamW::new(0.0).betas(0.8, 0.95).eps(0.1).weight_decay(0.5);
        let expected = [0.664_877_889_870_664_3, -1.543_573_664_246_958, 2.875_798_071_075_187];
        assert_close(&after_three_steps(other), &expected);
    }

    #[test]
    fn parameters_count_their_own_updates() {
        // With β = (0.5, 0.5) and a gradient of 1 each update is the whole learning rate, if the correction is right.
        let device = Device::cpu_with(Precision::Double);
        let mut params = [0.0, 0.0].map(|w| Param::new(Tensor::from_f64(&device, [1], &[w]).unwrap()));
        let mut optimizer = AdamW::new(1.0).betas(0.5, 0.5).weight_decay(0.0);
        for step in 0..4 {
            let tape = Tape::new(&device);
            let loss = tape.param(&params[0]).sum() + tape.param(&params[1]).sum();
            let grads = tape.backward(&loss).unwrap();
            match step {
                0 | 1 => optimizer.step(&mut params[0], &grads).unwrap(),
                _ => optimizer.step(&mut params, &grads).unwrap(),
            }
        }
        let values = params.map(|param| param.value().to_f64_vec().unwrap()[0]);
        assert!((values[0] + 4.0).abs() < 1e-6 && (values[1] + 2.0).abs() < 1e-6, "{values:?}");
    }

    #[test]
    fn senseless_settings_are_errors_of_the_step() {
        let device = Device::cpu();
        let mut w = Param::new(Tensor::full(&device, [1], 1.0).unwrap());
        let tape = Tape::new(&device);
        let grads = tape.backward(&tape.param(&w).sum()).unwrap();
        let adamw = || AdamW::new(0.1);
        for mut optimizer in [
            AdamW::new(f64::INFINITY),
            adamw().betas(1.0, 0.9),
            adamw().betas(0.9, -0.1),
            adamw().eps(f64::NAN),
            adamw().weight_decay(-1.0),
        ] {
            assert_eq!(optimizer.step(&mut w, &grads).unwrap_err().kind(), ErrorKind::Argument);
        }
        assert_eq!(w.value().item().unwrap(), 1.0);
    }
}
