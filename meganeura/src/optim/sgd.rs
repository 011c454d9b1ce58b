//! Stochastic gradient descent.

use super::rule::{Given, Rule, expect_share};
use super::{Settings, Stepper};
use crate::error::bail;
use crate::module::Leaf;
use crate::{Result, Var};

/// Stochastic gradient descent with momentum µ and weight decay λ:
///
/// ```text
/// g ← dw + λ·w
/// v ← µ·v + g
/// w ← w − lr·v            or, with Nesterov's momentum,  w ← w − lr·(g + µ·v)
/// ```
///
/// PyTorch's formula, without dampening. [Sutskever et al., 2013](https://proceedings.mlr.press/v28/sutskever13.html).
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let mut w = Param::new(Tensor::from_slice(&device, [1], &[1.0])?);
/// let mut optimizer = Sgd::new(0.25).momentum(0.5);
/// for expected in [0.5, 0.0] {
///     let tape = Tape::new(&device);
///     let grads = tape.backward(&tape.param(&w).square().sum())?;
///     optimizer.step(&mut w, &grads)?;
///     assert_eq!(w.value().item()?, expected);
/// }
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct Sgd {
    momentum: f64,
    nesterov: bool,
    stepper: Stepper,
}

impl Sgd {
    /// Plain gradient descent with this learning rate.
    pub fn new(lr: f64) -> Self {
        Self { momentum: 0.0, nesterov: false, stepper: Stepper::new(lr, 0.0) }
    }

    /// The momentum, µ: the share of the last step that is added again, at least 0 and below 1; 0 by default.
    pub fn momentum(self, momentum: f64) -> Self {
        Self { momentum, ..self }
    }

    /// Uses Nesterov's momentum if `true`; `false` by default.
    pub fn nesterov(self, nesterov: bool) -> Self {
        Self { nesterov, ..self }
    }

    /// The weight decay, λ: the share of each parameter that is added to its gradient; 0 by default.
    pub fn weight_decay(self, weight_decay: f64) -> Self {
        Self { stepper: self.stepper.with_weight_decay(weight_decay), ..self }
    }
}

impl Rule for Sgd {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn stepper(&self) -> &Stepper {
        &self.stepper
    }

    fn stepper_mut(&mut self) -> &mut Stepper {
        &mut self.stepper
    }

    fn check(&self) -> Result<()> {
        expect_share(self.name(), "momentum", self.momentum)?;
        if self.nesterov && self.momentum == 0.0 {
            bail!(Argument, "sgd: Nesterov's momentum needs a momentum: `.momentum(0.9)`");
        }
        Ok(())
    }

    fn state(&self, _: &Leaf<'_>) -> &'static [&'static str] {
        if self.momentum == 0.0 { &[] } else { &["velocity"] }
    }

    fn numbers(&self, Settings { lr, weight_decay }: Settings, _: u64) -> Vec<f64> {
        vec![lr, weight_decay, self.momentum]
    }

    fn variant(&self) -> u64 {
        u64::from(self.momentum != 0.0) | u64::from(self.nesterov) << 1
    }

    fn update(&self, given: &Given<'_>) -> (Var, Vec<Var>) {
        let [lr, decay, mu] = given.numbers();
        let g = given.decayed_gradient(decay);
        if self.momentum == 0.0 {
            return (&given.w - lr * g, vec![]);
        }
        let [v] = given.state();
        let v = mu * v + &g;
        let direction = if self.nesterov { g + mu * &v } else { v.clone() };
        (&given.w - lr * direction, vec![v])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::tests::{after_three_steps, assert_close, assert_senseless};

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
        let sgd = || Sgd::new(0.1);
        for optimizer in [
            Sgd::new(f64::NAN),
            Sgd::new(-0.1),
            sgd().momentum(1.0),
            sgd().momentum(-0.1),
            sgd().weight_decay(-1.0),
            sgd().nesterov(true),
        ] {
            assert_senseless(optimizer);
        }
    }
}
