//! Lion: steps of one size, along the sign of the momentum.

use super::rule::{Given, Rule, expect_share};
use super::{Settings, Stepper};
use crate::module::Leaf;
use crate::{Result, Var};

/// Lion, with decoupled weight decay λ:
///
/// ```text
/// u ← sign(β₁·m + (1 − β₁)·dw)
/// w ← w·(1 − lr·λ) − lr·u
/// m ← β₂·m + (1 − β₂)·dw
/// ```
///
/// With the authors' defaults β = (0.9, 0.99), λ = 0. Every step is of size `lr`, so the authors recommend a third to a
/// tenth of AdamW's learning rate, and a weight decay larger by as much. Lion keeps one tensor per parameter.
/// [Chen et al., 2023](https://arxiv.org/abs/2302.06675), algorithm 2.
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let mut w = Param::new(Tensor::from_slice(&device, [2], &[1.0, -100.0])?);
/// let mut optimizer = Lion::new(0.25);
/// let tape = Tape::new(&device);
/// let grads = tape.backward(&tape.param(&w).square().sum())?;
/// optimizer.step(&mut w, &grads)?;
/// assert_eq!(w.value().to_vec()?, [0.75, -99.75]);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct Lion {
    betas: (f64, f64),
    stepper: Stepper,
}

impl Lion {
    /// Lion with this learning rate.
    pub fn new(lr: f64) -> Self {
        Self { betas: (0.9, 0.99), stepper: Stepper::new(lr, 0.0) }
    }

    /// The weight of the momentum in the step, and its decay rate, each at least 0 and below 1; (0.9, 0.99) by default.
    pub fn betas(self, step: f64, momentum: f64) -> Self {
        Self { betas: (step, momentum), ..self }
    }

    /// The weight decay, λ: the share of a parameter that a step with learning rate 1 subtracts; 0 by default.
    pub fn weight_decay(self, weight_decay: f64) -> Self {
        Self { stepper: self.stepper.with_weight_decay(weight_decay), ..self }
    }
}

impl Rule for Lion {
    fn name(&self) -> &'static str {
        "lion"
    }

    fn stepper(&self) -> &Stepper {
        &self.stepper
    }

    fn stepper_mut(&mut self) -> &mut Stepper {
        &mut self.stepper
    }

    fn check(&self) -> Result<()> {
        expect_share(self.name(), "first beta", self.betas.0)?;
        expect_share(self.name(), "second beta", self.betas.1)
    }

    fn state(&self, _: &Leaf<'_>) -> &'static [&'static str] {
        &["m"]
    }

    fn numbers(&self, settings: Settings, _: u64) -> Vec<f64> {
        let (beta1, beta2) = self.betas;
        vec![settings.kept(), settings.lr, beta1, 1.0 - beta1, beta2, 1.0 - beta2]
    }

    fn update(&self, given: &Given<'_>) -> (Var, Vec<Var>) {
        let ([kept, lr, old1, fresh1, old2, fresh2], [m]) = (given.numbers(), given.state());
        let direction = (old1 * m + fresh1 * &given.dw).sign();
        (&given.w * kept - lr * direction, vec![old2 * m + fresh2 * &given.dw])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::tests::assert_senseless;

    #[test]
    fn senseless_settings_are_errors_of_the_step() {
        assert_senseless(Lion::new(-0.1));
        assert_senseless(Lion::new(0.1).betas(1.0, 0.9));
        assert_senseless(Lion::new(0.1).betas(0.9, f64::NAN));
    }
}
