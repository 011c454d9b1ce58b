//! RAdam: Adam that waits for a reliable second moment.

use super::adam::Moments;
use super::rule::{Given, Rule};
use super::{Settings, Stepper};
use crate::module::Leaf;
use crate::{Result, Var};

/// `RAdam` with weight decay λ added to the gradient, at a parameter's update number `t`:
///
/// ```text
/// g ← dw + λ·w                           or, decoupled,  w ← w·(1 − lr·λ)
/// m ← m + (1 − β₁)·(g − m)
/// v ← β₂·v + (1 − β₂)·g²
/// ρ∞ = 2/(1 − β₂) − 1,  ρ = ρ∞ − 2t·β₂ᵗ/(1 − β₂ᵗ)
/// r = √((ρ − 4)(ρ − 2)·ρ∞ / ((ρ∞ − 4)(ρ∞ − 2)·ρ))
/// w ← w − lr·m/(1 − β₁ᵗ) · (r·√(1 − β₂ᵗ)/(√v + ε) if ρ > 5, else 1)
/// ```
///
/// The variance of `v` is that of ρ gradients. While these are few, the step is one of plain momentum, so no warm-up is
/// needed. PyTorch's formula, with its defaults β = (0.9, 0.999), ε = 1e-8, λ = 0.
/// [Liu et al., 2019](https://arxiv.org/abs/1908.03265).
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let mut w = Param::new(Tensor::from_slice(&device, [1], &[8.0])?);
/// let mut optimizer = RAdam::new(0.125);
/// let tape = Tape::new(&device);
/// let grads = tape.backward(&tape.param(&w).square().sum())?;
/// optimizer.step(&mut w, &grads)?; // along the gradient, 16, itself
/// assert!((w.value().item()? - 6.0).abs() < 1e-5);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct RAdam {
    moments: Moments,
    decoupled: bool,
    stepper: Stepper,
}

impl RAdam {
    /// `RAdam` with this learning rate.
    pub fn new(lr: f64) -> Self {
        Self { moments: Moments::default(), decoupled: false, stepper: Stepper::new(lr, 0.0) }
    }

    /// The decay rates of the moments, as for [`AdamW::betas`](super::AdamW::betas).
    pub fn betas(self, first: f64, second: f64) -> Self {
        Self { moments: Moments { betas: (first, second), ..self.moments }, ..self }
    }

    /// The number added to the denominator, at least 1.2e-38; 1e-8 by default.
    pub fn eps(self, eps: f64) -> Self {
        Self { moments: Moments { eps, ..self.moments }, ..self }
    }

    /// The weight decay, λ: the share of each parameter that is added to its gradient; 0 by default.
    pub fn weight_decay(self, weight_decay: f64) -> Self {
        Self { stepper: self.stepper.with_weight_decay(weight_decay), ..self }
    }

    /// Decouples weight decay from the gradient if `true`, like [`AdamW`](super::AdamW); `false` by default.
    pub fn decoupled(self, decoupled: bool) -> Self {
        Self { decoupled, ..self }
    }

    /// The factors of the step: without a denominator, and divided by `√v + ε`. One of them is 0.
    fn factors(&self, t: f64) -> (f64, f64) {
        let beta2 = self.moments.betas.1;
        let (all, left) = (2.0 / (1.0 - beta2) - 1.0, 1.0 - beta2.powf(t));
        let seen = all - 2.0 * t * (1.0 - left) / left;
        if seen <= 5.0 {
            return (1.0, 0.0);
        }
        let rectified = (seen - 4.0) * (seen - 2.0) * all / ((all - 4.0) * (all - 2.0) * seen);
        (0.0, (rectified * left).sqrt())
    }
}

impl Rule for RAdam {
    fn name(&self) -> &'static str {
        "radam"
    }

    fn stepper(&self) -> &Stepper {
        &self.stepper
    }

    fn stepper_mut(&mut self) -> &mut Stepper {
        &mut self.stepper
    }

    fn check(&self) -> Result<()> {
        self.moments.check(self.name())
    }

    fn state(&self, _: &Leaf<'_>) -> &'static [&'static str] {
        Moments::STATE
    }

    fn numbers(&self, settings: Settings, t: u64) -> Vec<f64> {
        let Moments { betas: (beta1, beta2), eps, .. } = self.moments;
        #[expect(clippy::cast_precision_loss, reason = "nobody makes 2^53 steps")]
        let t = t as f64;
        let corrected_lr = settings.lr / (1.0 - beta1.powf(t));
        let (plain, adaptive) = self.factors(t);
        let decay = if self.decoupled { settings.kept() } else { settings.weight_decay };
        vec![decay, 1.0 - beta1, beta2, 1.0 - beta2, eps, corrected_lr * plain, corrected_lr * adaptive]
    }

    fn variant(&self) -> u64 {
        u64::from(self.decoupled)
    }

    fn update(&self, given: &Given<'_>) -> (Var, Vec<Var>) {
        let [decay, fresh1, old2, fresh2, eps, plain, adaptive] = given.numbers();
        let ([m, v], (w, g)) = (given.state(), given.decayed(self.decoupled, decay));
        let m = m + fresh1 * (&g - m);
        let v = old2 * v + fresh2 * g.square();
        (w - &m * (plain + adaptive / (v.sqrt() + eps)), vec![m, v])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::tests::assert_senseless;

    #[test]
    fn rectification_starts_at_the_sixth_step_and_tends_to_adam() {
        let optimizer = RAdam::new(0.1);
        assert_eq!(optimizer.factors(5.0), (1.0, 0.0));
        let (plain, adaptive) = optimizer.factors(6.0);
        assert!(plain == 0.0 && adaptive > 0.0 && adaptive < 0.01, "{adaptive}");
        assert!((optimizer.factors(1e6).1 - 1.0).abs() < 1e-12);
        // With so short a memory, this phase never ends.
        assert_eq!(RAdam::new(0.1).betas(0.9, 0.5).factors(1e6), (1.0, 0.0));
    }

    #[test]
    fn senseless_settings_are_errors_of_the_step() {
        assert_senseless(RAdam::new(f64::NAN));
        assert_senseless(RAdam::new(0.1).betas(0.9, 1.0));
        assert_senseless(RAdam::new(0.1).eps(1e-50));
    }
}
