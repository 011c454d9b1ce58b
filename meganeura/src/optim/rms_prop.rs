//! `RMSProp`: gradients divided by their recent magnitude.

use super::rule::{Given, Rule, expect_eps, expect_share};
use super::{Settings, Stepper};
use crate::module::Leaf;
use crate::{Result, Var};

/// `RMSProp` with weight decay λ and momentum µ:
///
/// ```text
/// g ← dw + λ·w
/// v ← α·v + (1 − α)·g²
/// d ← √v + ε              or, centered,  a ← α·a + (1 − α)·g,  d ← √(v − a²) + ε
/// w ← w − lr·g/d          or, with momentum,  b ← µ·b + g/d,  w ← w − lr·b
/// ```
///
/// PyTorch's formula, with its defaults α = 0.99, ε = 1e-8; a variance that rounding makes negative counts as 0.
/// [Hinton, 2012](https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf). Centered:
/// [Graves, 2013](https://arxiv.org/abs/1308.0850).
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let mut w = Param::new(Tensor::from_slice(&device, [1], &[8.0])?);
/// let mut optimizer = RmsProp::new(0.5).alpha(0.75).momentum(0.9);
/// let tape = Tape::new(&device);
/// let grads = tape.backward(&tape.param(&w).square().sum())?;
/// optimizer.step(&mut w, &grads)?;
/// assert!((w.value().item()? - 7.0).abs() < 1e-6);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct RmsProp {
    alpha: f64,
    eps: f64,
    momentum: f64,
    centered: bool,
    stepper: Stepper,
}

impl RmsProp {
    /// `RMSProp` with this learning rate.
    pub fn new(lr: f64) -> Self {
        Self { alpha: 0.99, eps: 1e-8, momentum: 0.0, centered: false, stepper: Stepper::new(lr, 0.0) }
    }

    /// The decay rate of the squared gradients' average, α: at least 0 and below 1; 0.99 by default.
    pub fn alpha(self, alpha: f64) -> Self {
        Self { alpha, ..self }
    }

    /// The number added to the denominator, at least 1.2e-38; 1e-8 by default.
    pub fn eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }

    /// The momentum, µ: the share of the last step that is added again, at least 0 and below 1; 0 by default.
    pub fn momentum(self, momentum: f64) -> Self {
        Self { momentum, ..self }
    }

    /// Divides gradients by their deviation from their mean if `true`, rather than from 0; `false` by default.
    pub fn centered(self, centered: bool) -> Self {
        Self { centered, ..self }
    }

    /// The weight decay, λ: the share of each parameter that is added to its gradient; 0 by default.
    pub fn weight_decay(self, weight_decay: f64) -> Self {
        Self { stepper: self.stepper.with_weight_decay(weight_decay), ..self }
    }
}

impl Rule for RmsProp {
    fn name(&self) -> &'static str {
        "rms_prop"
    }

    fn stepper(&self) -> &Stepper {
        &self.stepper
    }

    fn stepper_mut(&mut self) -> &mut Stepper {
        &mut self.stepper
    }

    fn check(&self) -> Result<()> {
        expect_share(self.name(), "alpha", self.alpha)?;
        expect_share(self.name(), "momentum", self.momentum)?;
        expect_eps(self.name(), self.eps)
    }

    fn state(&self, _: &Leaf<'_>) -> &'static [&'static str] {
        match (self.centered, self.momentum != 0.0) {
            (false, false) => &["v"],
            (false, true) => &["v", "velocity"],
            (true, false) => &["v", "mean"],
            (true, true) => &["v", "mean", "velocity"],
        }
    }

    fn numbers(&self, Settings { lr, weight_decay }: Settings, _: u64) -> Vec<f64> {
        vec![lr, weight_decay, self.alpha, 1.0 - self.alpha, self.eps, self.momentum]
    }

    fn variant(&self) -> u64 {
        u64::from(self.momentum != 0.0) | u64::from(self.centered) << 1
    }

    fn update(&self, given: &Given<'_>) -> (Var, Vec<Var>) {
        let [lr, decay, old, fresh, eps, mu] = given.numbers();
        let g = given.decayed_gradient(decay);
        let mut kept = given.state.iter();
        let mut next = || kept.next().expect("as many as `state` names");
        let v = old * next() + fresh * g.square();
        let mut state = vec![v.clone()];
        let variance = if self.centered {
            let mean = old * next() + fresh * &g;
            state.push(mean.clone());
            (v - mean.square()).relu()
        } else {
            v
        };
        let mut step = g / (variance.sqrt() + eps);
        if self.momentum != 0.0 {
            step = mu * next() + step;
            state.push(step.clone());
        }
        (&given.w - lr * step, state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::tests::assert_senseless;

    #[test]
    fn senseless_settings_are_errors_of_the_step() {
        assert_senseless(RmsProp::new(f64::NAN));
        assert_senseless(RmsProp::new(0.1).alpha(1.0));
        assert_senseless(RmsProp::new(0.1).momentum(-0.5));
        assert_senseless(RmsProp::new(0.1).eps(-1e-8));
        assert_senseless(RmsProp::new(0.1).eps(1e-50));
    }
}
