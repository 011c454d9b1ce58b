//! NAdam: Adam with Nesterov's momentum.

use super::adam::Moments;
use super::rule::{Given, Rule, expect_not_negative};
use super::{Settings, Stepper};
use crate::module::Leaf;
use crate::{Result, Var};

/// `NAdam` with weight decay λ added to the gradient, at a parameter's update number `t`:
///
/// ```text
/// µₜ = β₁·(1 − ½·0.96^(t·ψ))
/// g ← dw + λ·w                           or, decoupled,  w ← w·(1 − lr·λ)
/// m ← m + (1 − β₁)·(g − m)
/// v ← β₂·v + (1 − β₂)·g²
/// n ← (1 − µₜ)/(1 − µ₁⋯µₜ)·g + µₜ₊₁/(1 − µ₁⋯µₜ₊₁)·m
/// w ← w − lr·n / (√(v/(1 − β₂ᵗ)) + ε)
/// ```
///
/// PyTorch's formula, with its defaults β = (0.9, 0.999), ε = 1e-8, ψ = 0.004, λ = 0.
/// [Dozat, 2016](https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ).
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let mut net = Linear::new(2, 1).init(&device, Seed::new(1))?;
/// let mut optimizer = NAdam::new(2e-3).weight_decay(0.01).decoupled(true);
/// let tape = Tape::new(&device);
/// let x = tape.input(&Tensor::full(&device, [4, 2], 1.0)?);
/// let grads = tape.backward(&net.forward(&x).square().mean())?;
/// optimizer.step(&mut net, &grads)?;
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct NAdam {
    moments: Moments,
    momentum_decay: f64,
    decoupled: bool,
    stepper: Stepper,
}

impl NAdam {
    /// `NAdam` with this learning rate.
    pub fn new(lr: f64) -> Self {
        let (moments, stepper) = (Moments::default(), Stepper::new(lr, 0.0));
        Self { moments, momentum_decay: 0.004, decoupled: false, stepper }
    }

    /// The decay rates of the moments, as for [`AdamW::betas`](super::AdamW::betas).
    pub fn betas(self, first: f64, second: f64) -> Self {
        Self { moments: Moments { betas: (first, second), ..self.moments }, ..self }
    }

    /// The number added to the denominator, at least 1.2e-38; 1e-8 by default.
    pub fn eps(self, eps: f64) -> Self {
        Self { moments: Moments { eps, ..self.moments }, ..self }
    }

    /// The growth of the momentum from half of β₁ to all of it, ψ: 0 or above; 0.004 by default.
    pub fn momentum_decay(self, momentum_decay: f64) -> Self {
        Self { momentum_decay, ..self }
    }

    /// The weight decay, λ: the share of each parameter that is added to its gradient; 0 by default.
    pub fn weight_decay(self, weight_decay: f64) -> Self {
        Self { stepper: self.stepper.with_weight_decay(weight_decay), ..self }
    }

    /// Decouples weight decay from the gradient if `true`, like [`AdamW`](super::AdamW); `false` by default.
    pub fn decoupled(self, decoupled: bool) -> Self {
        Self { decoupled, ..self }
    }

    /// `µₜ`
    fn momentum(&self, t: f64) -> f64 {
        self.moments.betas.0 * (1.0 - 0.5 * 0.96_f64.powf(t * self.momentum_decay))
    }

    /// `µ₁⋯µₜ`, which underflows to 0 from some `t` on: each factor is below β₁.
    fn product(&self, t: u64) -> f64 {
        let mut product = 1.0;
        for t in 1..=t {
            product *= self.momentum(float(t));
            // Then 1 − µ₁⋯µₜ is 1.
            if product < 1e-17 {
                return 0.0;
            }
        }
        product
    }
}

#[expect(clippy::cast_precision_loss, reason = "nobody makes 2^53 steps")]
fn float(t: u64) -> f64 {
    t as f64
}

impl Rule for NAdam {
    fn name(&self) -> &'static str {
        "nadam"
    }

    fn stepper(&self) -> &Stepper {
        &self.stepper
    }

    fn stepper_mut(&mut self) -> &mut Stepper {
        &mut self.stepper
    }

    fn check(&self) -> Result<()> {
        self.moments.check(self.name())?;
        expect_not_negative(self.name(), "momentum decay", self.momentum_decay)
    }

    fn state(&self, _: &Leaf<'_>) -> &'static [&'static str] {
        Moments::STATE
    }

    fn numbers(&self, settings: Settings, t: u64) -> Vec<f64> {
        let Moments { betas: (beta1, beta2), eps, .. } = self.moments;
        let (momentum, next) = (self.momentum(float(t)), self.momentum(float(t + 1)));
        let product = self.product(t);
        let of_gradient = settings.lr * (1.0 - momentum) / (1.0 - product);
        let of_moment = settings.lr * next / (1.0 - product * next);
        let root_scale = (1.0 - beta2.powf(float(t))).sqrt();
        let decay = if self.decoupled { settings.kept() } else { settings.weight_decay };
        vec![decay, 1.0 - beta1, beta2, 1.0 - beta2, eps, of_gradient, of_moment, root_scale]
    }

    fn variant(&self) -> u64 {
        u64::from(self.decoupled)
    }

    fn update(&self, given: &Given<'_>) -> (Var, Vec<Var>) {
        let [decay, fresh1, old2, fresh2, eps, of_gradient, of_moment, root_scale] = given.numbers();
        let ([m, v], (w, g)) = (given.state(), given.decayed(self.decoupled, decay));
        let m = m + fresh1 * (&g - m);
        let v = old2 * v + fresh2 * g.square();
        let denominator = v.sqrt() / root_scale + eps;
        (w - (of_gradient * g + of_moment * &m) / denominator, vec![m, v])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::tests::assert_senseless;

    #[test]
    fn the_product_of_momenta_is_exact_and_reaches_0() {
        let optimizer = NAdam::new(0.1);
        let plain = |t: u64| (1..=t).map(|t| optimizer.momentum(float(t))).product::<f64>();
        for t in [1, 2, 10, 30] {
            assert!((optimizer.product(t) - plain(t)).abs() <= 1e-15 * plain(t), "{t}");
        }
        assert_eq!((optimizer.product(1000), optimizer.product(u64::MAX)), (0.0, 0.0));
        assert_eq!(NAdam::new(0.1).betas(0.0, 0.9).product(5), 0.0);
    }

    #[test]
    fn senseless_settings_are_errors_of_the_step() {
        assert_senseless(NAdam::new(f64::NAN));
        assert_senseless(NAdam::new(0.1).betas(1.0, 0.9));
        assert_senseless(NAdam::new(0.1).eps(1e-50));
        assert_senseless(NAdam::new(0.1).momentum_decay(-1.0));
    }
}
